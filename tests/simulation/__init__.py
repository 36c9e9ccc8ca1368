"""Deterministic simulation: the real engine, workers and SQLite store under one seeded scheduler. See README.md."""
