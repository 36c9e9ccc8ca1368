"""Schedules and debounced starts."""
