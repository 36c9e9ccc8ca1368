"""The check that nothing swallows a cancellation."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.unwinding import check

SWALLOWED = [
    "try: f()\nexcept: pass",
    "try: f()\nexcept BaseException: pass",
    "try: f()\nexcept (ValueError, asyncio.CancelledError): g()",
    "with contextlib.suppress(BaseException): f()",
    "with suppress(OSError, CancelledError): f()",
]
LET_THROUGH = [
    "try: f()\nexcept Exception: pass",
    "try: f()\nexcept BaseException:\n    g()\n    raise",
    "try: f()\nexcept CancelledError:  # ends here: the last thing that this task does\n    pass",
    "with contextlib.suppress(Exception): f()",
]
PAST_THE_HELPER = [
    "async with connection.transaction(): pass",
    "async with pool.acquire() as c: pass",
    "await pool.release(c)",
    "connection.terminate()",
]


def checked(folder: Path, code: str, room: str = "store/postgres") -> list[str]:
    (folder / room).mkdir(parents=True)
    (folder / room / "some.py").write_text(code)
    return check(folder)


@pytest.mark.parametrize("code", SWALLOWED + PAST_THE_HELPER)
def test_found(tmp_path: Path, code: str) -> None:
    (line,) = checked(tmp_path, code)
    assert "some.py:" in line


@pytest.mark.parametrize("room", ["remote/postgres", "store/mysql", "remote/mysql"])
def test_found_wherever_a_driver_is_used(tmp_path: Path, room: str) -> None:
    (line,) = checked(tmp_path, PAST_THE_HELPER[1], room)
    assert "some.py:" in line


@pytest.mark.parametrize("code", LET_THROUGH)
def test_allowed(tmp_path: Path, code: str) -> None:
    assert checked(tmp_path, code) == []
