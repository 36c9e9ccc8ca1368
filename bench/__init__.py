"""The benchmark suite: Stepfast beside the alternatives, on one database, in one run."""
