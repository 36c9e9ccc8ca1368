"""Remote steps over PostgreSQL."""

from .database import PostgresDatabase

__all__ = ["PostgresDatabase"]
