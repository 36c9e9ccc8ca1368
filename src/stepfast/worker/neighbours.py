"""Dead workers on the same machine: their processes are gone, which can be seen without waiting for a lease.

A process id says something only among those who count processes alike: after the same start of the machine, in the same
namespaces. And it is used again, so the time at which the process began belongs to it. All of that is known on Linux
alone; wherever a part of it is not, or differs, the lease decides.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from ..model.records import Beat

_BOOT = "/proc/sys/kernel/random/boot_id"
_NAMESPACES = ("/proc/self/ns/pid", "/proc/self/ns/time")
"""Which processes are counted together, and by which clock their beginnings are told."""
_GONE = "ZX"
"""States of a process that has ended, though nobody has asked how yet."""


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
        pass  # it is somebody else's, and lives
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
