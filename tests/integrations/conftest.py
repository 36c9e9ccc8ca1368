"""Integrations are tested with their frameworks, in an environment of their own (`make test-integrations`).

The databases are those of all tests: `url`, `postgres_url`, `sqlite_url`.
"""
