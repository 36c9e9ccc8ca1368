"""For tests of tasks: execute what is enqueued, in a ``TransactionTestCase``."""

from __future__ import annotations

from collections.abc import Sequence

from django.core import mail
from django.db import transaction

from .applications import backend_named, own_backends
from .backend import outside_of_runs
from .interface import DEFAULT_TASK_BACKEND_ALIAS

__all__ = ["run_tasks"]


def run_tasks(queues: Sequence[str] | None = None, *, backend: str = DEFAULT_TASK_BACKEND_ALIAS) -> None:
    """Execute the tasks that are due, also those that they enqueue, and return when none is left. Each is executed in a
    thread of a worker in this process, on the test's database."""
    ours = backend_named(backend)
    if transaction.get_connection(ours.database).in_atomic_block:
        raise RuntimeError(
            "run_tasks was called in a transaction, which no worker sees into: use TransactionTestCase in place of "
            "TestCase, and call it after transaction.atomic()"
        )
    outside_of_runs(ours.declare_all().sync.drain, queues)  # asgiref would find the blocked thread in this context


def flushed(database: str) -> None:
    """Remove all runs when a ``TransactionTestCase`` empties its tables; outside of tests `flush` leaves them alone."""
    if not hasattr(mail, "outbox"):
        return
    for backend in own_backends():
        if backend.database == database and backend.used:
            backend.remove_all()
