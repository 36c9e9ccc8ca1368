"""``stepfast_worker`` and ``stepfast_console``."""
