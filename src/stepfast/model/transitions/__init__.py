"""Transitions: what becomes of a run, decided by pure functions of its state and an event."""
