"""What a stretch of work cost: time, CPU of the client and of the server, log bytes, transactions."""

from __future__ import annotations

import os
import platform
import resource
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import asyncpg

TICK = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")


@dataclass(frozen=True)
class Usage:
    """One reading, or the difference of two."""

    seconds: float
    client_cpu: float
    server_cpu: float | None = None
    """None where there is no server, or where the system does not tell."""
    wal_bytes: int = 0
    transactions: int = 0

    def since(self, earlier: Usage) -> Usage:
        """What was used between two readings."""
        return Usage(
            self.seconds - earlier.seconds,
            self.client_cpu - earlier.client_cpu,
            None if self.server_cpu is None or earlier.server_cpu is None else self.server_cpu - earlier.server_cpu,
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
        server, wal, transactions = None, 0, 0
        if self._url is not None:
            server, wal, transactions = await self._read_server(self._url)
        return Usage(perf_counter(), client_cpu(), server, wal, transactions)

    async def _read_server(self, url: str) -> tuple[float | None, int, int]:
        connection = await asyncpg.connect(url)
        try:
            row = await connection.fetchrow(
                "SELECT pg_backend_pid(), (pg_current_wal_lsn() - '0/0')::bigint, xact_commit + xact_rollback"
                " FROM pg_stat_database WHERE datname = current_database()"
            )
            server = None if server_cpu_left_out() else server_cpu(postmaster_of(row[0]))
            return server, row[1], row[2]
        finally:
            await connection.close()


class CpuMeter:
    """Reads CPU alone, without a connection: opening one would cost the server more than a short measurement does."""

    def __init__(self, postmaster: int | None) -> None:
        self._postmaster = postmaster

    @classmethod
    async def beside(cls, url: str | None) -> CpuMeter:
        """A meter of this process and of the server at this URL; of this process alone where there is none."""
        if url is None or server_cpu_left_out():
            return cls(None)
        connection = await asyncpg.connect(url)
        try:
            return cls(postmaster_of(await connection.fetchval("SELECT pg_backend_pid()")))
        finally:
            await connection.close()

    def read(self) -> Usage:
        """The counters now."""
        server = None if self._postmaster is None else server_cpu(self._postmaster)
        return Usage(perf_counter(), client_cpu(), server)


def server_cpu_left_out() -> str | None:
    """Why the CPU of a server cannot be read on this system; None where it can."""
    return None if (PROC / "self" / "stat").exists() else f"{platform.system()} has no /proc"


def known_figures(**figures: float | None) -> dict[str, float]:
    """The figures without those that could not be taken."""
    return {name: value for name, value in figures.items() if value is not None}


def client_cpu() -> float:
    """CPU seconds of this process and of the worker processes it has waited for."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def server_cpu(postmaster: int) -> float:
    """CPU seconds of a Postgres server: every living process of it, and all that have exited."""
    exited = sum(_stat(postmaster)[13:15]) / TICK
    return exited + _process_cpu(postmaster) + sum(map(_process_cpu, _children(postmaster)))


def _children(parent: int) -> list[int]:
    found = []
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                if _stat(int(entry.name))[1] == parent:
                    found.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def _process_cpu(pid: int) -> float:
    """CPU seconds of a process with one thread: in nanoseconds where the kernel counts so, else in ticks."""
    try:
        return int((PROC / str(pid) / "schedstat").read_text().split()[0]) / 1e9
    except (FileNotFoundError, ProcessLookupError):
        pass
    try:
        return sum(_stat(pid)[11:13]) / TICK
    except (FileNotFoundError, ProcessLookupError):
        return 0.0


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
