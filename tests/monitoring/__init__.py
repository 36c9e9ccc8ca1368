"""Queries and texts that explain runs, queues and workers."""
