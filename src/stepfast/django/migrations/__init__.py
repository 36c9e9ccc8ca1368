"""The one migration: Stepfast makes its tables itself."""
