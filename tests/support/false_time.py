"""Processes whose clock is wrong, by libfaketime."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

from tests.support.needs import Program, leave_out

FAKETIME = Program("libfaketime", "Debian: apt-get install libfaketime; macOS: brew install libfaketime")

OFF_BY = "STORM_CLOCK_OFF_BY"


def libfaketime() -> Path:
    """The library; without one the test ends here."""
    folders = [*Path("/usr/lib").glob("*/faketime"), Path("/usr/lib/faketime"), Path("/usr/local/lib/faketime")]
    found = next((file for folder in folders if (file := folder / "libfaketimeMT.so.1").exists()), None)
    return leave_out(FAKETIME) if found is None else found


def off_by(seconds: int) -> dict[str, str]:
    """What a process needs in its environment so that its clock is ahead, or behind; ``ledger.now`` knows of it."""
    return {**_common(), "FAKETIME": f"{seconds:+d}s", OFF_BY: str(seconds)}


def told_by(file: Path) -> dict[str, str]:
    """The same for a clock that goes by what stands in a file: ``+0`` or ``-3600s``; read anew each second."""
    return {**_common(), "FAKETIME_TIMESTAMP_FILE": str(file), "FAKETIME_CACHE_DURATION": "1"}


def _common() -> dict[str, str]:
    """The clocks that cannot step are right: what waits in the kernel goes by them, and would wait for an hour."""
    return {"LD_PRELOAD": str(libfaketime()), "FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1"}


def mend_sleep() -> None:
    """In a process whose clock is off the library refuses ``time.sleep``. Another wait takes its place."""
    if OFF_BY in os.environ:
        time.sleep = _sleep


def _sleep(seconds: Any, /) -> None:
    threading.Event().wait(seconds)
