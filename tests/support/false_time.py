"""Processes whose clock is wrong, by libfaketime."""

from __future__ import annotations

from pathlib import Path

from tests.support.needs import Program, leave_out

FAKETIME = Program("libfaketime", "Debian: apt-get install libfaketime; macOS: brew install libfaketime")


def libfaketime() -> Path:
    """The library; without one the test ends here."""
    folders = [*Path("/usr/lib").glob("*/faketime"), Path("/usr/lib/faketime"), Path("/usr/local/lib/faketime")]
    found = next((file for folder in folders if (file := folder / "libfaketimeMT.so.1").exists()), None)
    return leave_out(FAKETIME) if found is None else found


def off_by(seconds: int) -> dict[str, str]:
    """What a process needs in its environment so that its clock is ahead by so much, or behind; ``ledger.now`` knows.
    All its clocks are off alike: of those that cannot step nobody knows where they began."""
    return {"LD_PRELOAD": str(libfaketime()), "FAKETIME": f"{seconds:+d}s", "STORM_CLOCK_OFF_BY": str(seconds)}


def told_by(file: Path) -> dict[str, str]:
    """The same for a clock that goes by what stands in a file: ``+0`` or ``-3600s``; read anew each second. The clocks
    that cannot step do not."""
    steady = {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1"}
    told = {"FAKETIME_TIMESTAMP_FILE": str(file), "FAKETIME_CACHE_DURATION": "1"}
    return {"LD_PRELOAD": str(libfaketime()), **steady, **told}
