"""One file per page: what it reads, and what it shows of it."""
