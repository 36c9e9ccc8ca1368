"""The check that the engine and the worker take time, threads and chance from one object."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.clockwork import check

PAST_THE_CLOCK = [
    "import time",
    "from time import monotonic",
    "import random",
    "from random import uniform",
    "from concurrent.futures import ThreadPoolExecutor",
    "await asyncio.sleep(0.1)",
    "await asyncio.sleep(seconds)",
    "async with asyncio.timeout(5): pass",
    "await asyncio.wait_for(f(), 5)",
    "await asyncio.wait(tasks, timeout=1)",
    "asyncio.get_running_loop().call_later(1, f)",
    "self._loop.call_at(1, f)",
    "now = self.loop.time()",
    "await loop.run_in_executor(None, f)",
    "threading.Thread(target=f).start()",
    "self._stop = threading.Event()",
    "self.id = new_id()",
    "Threads('step')",
    "key = os.urandom(16)",
    "when = datetime.now(UTC)",
    "now = Clock.now()",
    "ask = Clockwork.now",
]
FROM_THE_CLOCK = [
    "await asyncio.sleep(0)",
    "await asyncio.wait(tasks)",
    "from random import Random",
    "self._clock.after(1, f)",
    "await self._kit.clock.sleep(0.1)",
    "self.id = clock.new_id()",
    "self._loop.call_soon(f)",
    "here = threading.get_ident()",
]


def checked(folder: Path, code: str, file: str = "worker/some.py") -> list[str]:
    path = folder / file
    path.parent.mkdir(parents=True)
    path.write_text(code)
    return check(folder)


@pytest.mark.parametrize("code", PAST_THE_CLOCK)
def test_found(tmp_path: Path, code: str) -> None:
    (line,) = checked(tmp_path, code)
    assert "some.py:1:" in line


@pytest.mark.parametrize("code", FROM_THE_CLOCK)
def test_allowed(tmp_path: Path, code: str) -> None:
    assert checked(tmp_path, code) == []


@pytest.mark.parametrize("file", ["engine/host.py", "worker/threads.py", "store/some.py"])
def test_the_clock_itself_and_other_rooms_may(tmp_path: Path, file: str) -> None:
    assert checked(tmp_path, "import time", file) == []
