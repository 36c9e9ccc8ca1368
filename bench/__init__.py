"""The benchmark suite: Holdfast beside the alternatives, on one database, in one run."""
