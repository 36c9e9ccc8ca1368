"""What people are shown of runs, queues and workers: in words, by bounded queries."""
