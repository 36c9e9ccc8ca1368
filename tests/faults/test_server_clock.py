"""The clock of the server itself steps an hour back, and later forth again: nobody is taken for dead, what is ready
goes on at once, and only what waits for a time waits for the clock."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from stepfast import Context, Settings, Stepfast
from tests.support.engine import eventually
from tests.support.false_time import told_by
from tests.support.postgres import PrivatePostgres

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(300)]

LONG = 90.0
LEASE = 3.0


class Server(PrivatePostgres):
    """One whose clock goes by a file."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file
        self._clock = told_by(file)
        self.set("+0")

    def set(self, said: str) -> None:
        """Everybody of the server knows within a second."""
        self._file.write_text(f"{said}\n")
        self._file.chmod(0o644)

    def _popen(self, command: list[Any], **streams: Any) -> Any:
        if Path(str(command[0])).name == "postgres":
            command = ["env", *(f"{name}={value}" for name, value in self._clock.items()), *command]
        return super()._popen(command, **streams)

    def now(self) -> datetime:
        """What a new session takes for the time."""
        return datetime.fromtimestamp(float(self.execute("SELECT extract(epoch FROM clock_timestamp())")[0]), UTC)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    for folder in (tmp_path, *tmp_path.parents):  # the server is another user, and must be able to read the file
        with contextlib.suppress(OSError):
            if folder.owner() != "root" or folder.stat().st_mode & 0o077 == 0:
                folder.chmod(folder.stat().st_mode | 0o011)
    with Server(tmp_path / "clock") as made:
        yield made


def make_app(url: str, calls: Counter[str]) -> Stepfast:
    app = Stepfast(url, settings=Settings(lease=LEASE, poll_interval=0.2, sweep_interval=0.3, inline_wait=0.1))

    @app.workflow
    async def work(ctx: Context, name: str) -> int:
        async def act(number: int) -> int:
            calls[f"{name} {number}"] += 1
            await asyncio.sleep(0.2)
            return number

        return sum([await ctx.step(act, number) for number in range(20)])

    @app.workflow
    async def nap(ctx: Context) -> str:
        await ctx.sleep(5)
        return "slept"

    return app


async def stepped(server: Server, app: Stepfast, said: str, by: timedelta) -> None:
    """Wait until sessions that are open see it, too."""
    before = server.now()
    server.set(said)
    await eventually(lambda: abs(server.now() - before - by) < timedelta(minutes=5), LONG)
    await asyncio.sleep(2 * LEASE)  # long enough for anybody to be taken for dead


async def test_the_servers_clock_steps_back_and_forth(server: Server) -> None:
    calls: Counter[str] = Counter()
    app = make_app(server.create_database("app"), calls)
    hour = timedelta(hours=1)
    async with app, app.worker() as first, app.worker() as second:
        runs = [await app.start("work", f"run {number}") for number in range(10)]
        nap = await app.start("nap")
        await eventually(lambda: len(calls) > 10, LONG)
        await stepped(server, app, "-3600s", -hour)
        runs += [await app.start("work", f"later {number}") for number in range(10)]
        results = await asyncio.wait_for(asyncio.gather(*(run.result() for run in runs)), LONG)
        assert results == [190] * 20
        assert (await nap.info()).status == "waiting"  # by the clock that decides its time has not come
        await stepped(server, app, "+0", hour)
        assert await asyncio.wait_for(nap.result(), LONG) == "slept"
        losses = [(await run.info()).losses for run in [*runs, nap]]
        assert not first.broken.is_set() and not second.broken.is_set()
    assert losses == [0] * 21
    assert set(calls.values()) == {1}
