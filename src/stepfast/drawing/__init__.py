"""Runs and graphs as pictures."""
