"""What a stretch of work cost: time, CPU of the client and of the server, log bytes, transactions."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import asyncpg

TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """One reading, or the difference of two."""

    seconds: float
    client_cpu: float
    server_cpu: float = 0.0
    wal_bytes: int = 0
    transactions: int = 0

    def since(self, earlier: Usage) -> Usage:
        """What was used between two readings."""
        return Usage(
            self.seconds - earlier.seconds,
            self.client_cpu - earlier.client_cpu,
            self.server_cpu - earlier.server_cpu,
            self.wal_bytes - earlier.wal_bytes,
            self.transactions - earlier.transactions,
        )


class Meter:
    """Reads the counters of this process and, where there is one, of the Postgres server beside it.

    Postgres backends hand in their transaction counts about once a second and when they exit: readings
    that need `transactions` are taken while the engine under test is closed.
    """

    def __init__(self, url: str | None) -> None:
        self._url = url

    async def read(self) -> Usage:
        """All counters now."""
        server, wal, transactions = 0.0, 0, 0
        if self._url is not None:
            server, wal, transactions = await self._read_server(self._url)
        return Usage(perf_counter(), client_cpu(), server, wal, transactions)

    async def _read_server(self, url: str) -> tuple[float, int, int]:
        connection = await asyncpg.connect(url)
        try:
            row = await connection.fetchrow(
                "SELECT pg_backend_pid(), (pg_current_wal_lsn() - '0/0')::bigint, xact_commit + xact_rollback"
                " FROM pg_stat_database WHERE datname = current_database()"
            )
            return server_cpu(postmaster_of(row[0])), row[1], row[2]
        finally:
            await connection.close()


def client_cpu() -> float:
    """CPU seconds of this process and of the worker processes it has waited for."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def server_cpu(postmaster: int) -> float:
    """CPU seconds of a Postgres server: every living process of it, and all that have exited."""
    total = sum(_stat(postmaster)[13 - 2 : 17 - 2], start=0)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = _stat(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
            if fields[1] == postmaster:
                total += fields[11] + fields[12]
    return total / TICK


def postmaster_of(backend: int) -> int:
    """The process that started this backend."""
    return _stat(backend)[1]


def resident_bytes(pid: int) -> int:
    """Memory a process holds now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _stat(pid: int) -> list[int]:
    """/proc/<pid>/stat from the third field on; the state letter becomes 0."""
    text = Path(f"/proc/{pid}/stat").read_text()
    fields = text[text.rindex(")") + 2 :].split()
    return [0, *(int(field) for field in fields[1:20])]
