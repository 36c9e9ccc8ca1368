"""A test that hangs for good, even in its clean-up, is ended, and says where it hung."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HANGS = """
import asyncio, sys
from tests.support.bounds import bounded

async def stubborn():
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

async def main():
    asyncio.create_task(stubborn(), name="the stubborn one")
    await asyncio.sleep(0)

with bounded("test_that_was_before", 30, sys.stderr):
    pass

with bounded("test_that_hangs", 0.2, sys.stderr, leave=2):
    asyncio.run(main())
"""

ENDS = """
import sys
from tests.support.bounds import bounded

with bounded("test_that_ends", 30, sys.stderr):
    pass
"""


def in_a_process(code: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[2]
    return subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=30)


def test_what_swallows_every_cancellation_is_ended_all_the_same() -> None:
    ended = in_a_process(HANGS)
    assert ended.returncode == 70
    assert "test_that_hangs is about to reach its bound of 0.2 s" in ended.stderr
    assert "the stubborn one" in ended.stderr
    assert "in stubborn" in ended.stderr
    assert "test_that_was_before" not in ended.stderr


def test_what_ends_in_time_is_left_alone() -> None:
    ended = in_a_process(ENDS)
    assert (ended.returncode, ended.stderr) == (0, "")
