"""The files of a new Postgres server, copied from those of one that was made before.

`initdb` takes a second of CPU, and the tests start twenty servers. The first one that is made is kept, in a folder of
the checkout that `make clean` removes. It is kept for one account and one program with the same options: another
account could not read it, and another program might not understand it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

KEPT = Path(__file__).resolve().parents[2] / ".cache" / "clusters"


def make_cluster(data: Path, program: Path, options: list[str], make: Callable[[], None]) -> None:
    """Fill the folder `data` with a copy of what this program once made with these options, or else by `make`."""
    kept = KEPT / _name(program, options)
    if not kept.exists():
        make()
        _keep(data, kept)
    elif not _copied(kept, data):
        shutil.rmtree(data, ignore_errors=True)
        make()


def _name(program: Path, options: list[str]) -> str:
    words = [str(program.resolve()), program.stat().st_mtime_ns, *options]
    return f"{os.geteuid()}-{hashlib.sha256(repr(words).encode()).hexdigest()[:16]}"


def _copied(source: Path, target: Path) -> bool:
    """Owners and rights are copied, too: the server insists on its own."""
    return subprocess.run(["cp", "-Rp", source, target], stderr=subprocess.DEVNULL).returncode == 0


def _keep(data: Path, kept: Path) -> None:
    """Somebody else may do the same now: the first one who is done is right, and half a copy has another name. Where
    nothing can be kept, the next server is made as this one was."""
    part = kept.with_name(f"{kept.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        KEPT.mkdir(parents=True, exist_ok=True)
        with _alone():
            if not kept.exists() and _copied(data, part):
                part.rename(kept)
    shutil.rmtree(part, ignore_errors=True)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    with (KEPT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
