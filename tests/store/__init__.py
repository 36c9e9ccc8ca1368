"""The store suite: one set of tests, run unchanged on every database."""
