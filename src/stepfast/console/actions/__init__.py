"""What can be done from the pages: one file per kind of thing that it is done to."""
