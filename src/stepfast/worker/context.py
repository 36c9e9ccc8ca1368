"""The context of a worker: what its services work with, who it is, and which processes of its machine live."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from ..engine.middleware import Middleware
from ..engine.observers import Observers
from ..engine.workflow import Workflow
from ..model.payload import Payloads
from ..model.records import Beat, Lane, Mail, WorkerInfo
from ..model.status import DAG_STEP
from ..settings import Settings
from ..store import Store
from .db_retry import dutifully
from .lifespan import Lifespan
from .threads import Clockwork

_BOOT = "/proc/sys/kernel/random/boot_id"
_NAMESPACES = ("/proc/self/ns/pid", "/proc/self/ns/time")
"""Which processes are counted together, and by which clock their beginnings are given."""
_GONE = "ZX"
"""States of a process that has ended, though its parent has not collected its exit code yet."""


def this_process() -> str | None:
    """This process, as a worker registers it: machine, number and beginning. None where that cannot be known."""
    machine, seen = _machine(), _seen(os.getpid())
    if machine is None or seen is None:
        return None
    return f"{machine} {os.getpid()} {seen[1]}"


def gone(beats: Iterable[Beat]) -> list[str]:
    """The workers among these whose processes were on this machine, and are no more."""
    machine = _machine()
    return [] if machine is None else [beat.worker for beat in beats if _is_gone(beat.process, machine)]


def _is_gone(process: str | None, machine: str) -> bool:
    parts = (process or "").rsplit(" ", 2)
    if len(parts) != 3 or parts[0] != machine or not parts[1].isdecimal() or not 0 < int(parts[1]) < 2**31:
        return False
    pid, began = int(parts[1]), parts[2]
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it belongs to another user, and lives
    seen = _seen(pid)
    return seen is not None and (seen[1] != began or (seen[0] in _GONE and not _has_threads(pid)))


def _machine() -> str | None:
    """What two processes must have in common for their numbers to mean the same."""
    try:
        with open(_BOOT, encoding="ascii") as file:
            boot = file.read().strip()
        # A kernel without namespaces for time has one clock for all.
        spaces = [os.readlink(path) for path in _NAMESPACES if path.endswith("pid") or os.path.lexists(path)]
    except (OSError, ValueError):
        return None
    return " ".join((boot, *spaces)) if boot else None


def _seen(pid: int) -> tuple[str, str] | None:
    """State and beginning of a process; None if that is hidden from us."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()  # the name before it may have anything in it
        return fields[0].decode(), fields[19].decode()
    except (OSError, IndexError, ValueError):
        return None


def _has_threads(pid: int) -> bool:
    """Whether threads live on though the first one has ended."""
    try:
        return len(os.listdir(f"/proc/{pid}/task")) > 1
    except OSError:
        return False


class Identity:
    """The id changes when the worker was declared dead and continues; what it takes does not."""

    def __init__(
        self,
        workflows: Mapping[str, Workflow[Any, Any]],
        queues: Sequence[str] | None,
        clock: Clockwork,
        schedules: Sequence[str] = (),
        limits: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._limits = dict(limits)
        """What the code declares of queues, as it is stored."""
        self.clock = clock
        self.id = clock.new_id()
        self.registered = True
        """Whether the id is registered in the database. The first one is registered before anything else begins."""
        self.workflows = dict(workflows)
        """The code that is here, steps of dags among it, by name."""
        self.versions = {name: workflow.version for name, workflow in workflows.items()}
        self.queues = None if queues is None else list(queues)
        """None: all of them."""
        self._queues = frozenset(queues or ())
        self.schedules = list(schedules)
        """The names of those that the code here declares."""

    def renew(self) -> str:
        """Go on under a new id; the old one."""
        self.registered = False  # first: the heartbeat's thread reads the id, and then this
        old, self.id = self.id, self.clock.new_id()
        return old

    def serves(self, lane: Lane) -> bool:
        """Whether this worker takes runs of a lane."""
        return lane.workflow in self.versions and (self.queues is None or lane.queue in self._queues)

    def declared(self) -> list[str]:
        """The names that people have declared: without the steps of dags."""
        return [name for name, workflow in self.workflows.items() if workflow.kind != DAG_STEP]

    def served(self) -> list[str]:
        """The declared names whose queue, or that of one of their steps, this worker serves."""
        own = {w.dag for w in self.workflows.values() if self.queues is None or w.queue in self._queues}
        return [name for name in self.declared() if name in own]

    def info(self, settings: Settings) -> WorkerInfo:
        """What is stored of it."""
        return WorkerInfo(
            self.id,
            socket.gethostname(),
            os.getpid(),
            self.queues,
            self.versions,
            settings.concurrency,
            int(settings.lease * 1000),
            process=this_process(),
            limits=self._limits,
            modules={name: self.workflows[name].module for name in self.declared()},
            schedules=self.schedules,
        )


T = TypeVar("T")


async def never_sent(_: Mail) -> None:
    """Where no application is behind the worker."""
    raise NotImplementedError


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """Made once per worker and handed to every duty of it. What a duty tells others, or is told, is not in here: that
    goes through its port, which stands in the file of the duty."""

    store: Store
    settings: Settings
    payloads: Payloads
    logger: logging.Logger
    me: Identity
    observers: Observers | None = None
    """Who is notified of what happens to runs; None without observers."""
    send_signal: Callable[[Mail], Awaitable[None]] = never_sent
    """Sends a signal of a run to another."""
    run_logs: int | None = None
    """The least level of lines that are kept of what runs log."""
    middleware: Sequence[Middleware] = ()
    """Functions of the application around each attempt and each try of a step, outermost first."""
    lifespan: Lifespan | None = None
    """What the worker enters before it takes work."""

    @property
    def clock(self) -> Clockwork:
        """Where time, threads and chance come from."""
        return self.me.clock

    def ask(
        self,
        call: Callable[[], Awaitable[T]],
        what: str,
        give_up: Callable[[], bool] | None = None,
        *,
        refusable: bool = False,
    ) -> Coroutine[Any, Any, T]:
        """Ask the database, however long it is away; see ``dutifully``."""
        return dutifully(
            call, what, self.logger, self.clock, self.settings.outage_backoff_max, give_up, refusable=refusable
        )
