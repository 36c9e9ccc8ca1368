"""The store on PostgreSQL 12 or later: asyncpg, no extension, no superuser, no session state."""

from .store import PostgresStore

__all__ = ["PostgresStore"]
