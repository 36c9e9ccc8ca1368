"""What durable means: contexts, replay, steps. Knows nothing of workers or SQL."""
