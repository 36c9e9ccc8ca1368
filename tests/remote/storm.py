"""A storm over remote workers: processes are killed and connections ended while steps are sent out and settled.

The engine's side is played here, as small as it can be: it sends tasks through the transport, retries failures, sends
again what is lost or stale, and checks that every step is settled once, with the right result.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepfast.model.remote_steps import is_stale, read_error
from stepfast.remote import Result, SqlTransport, Task
from stepfast.remote.protocol import COMPLETED
from tests.remote.tables import Tables

WORKER = """
import asyncio, random
from stepfast.remote import FatalError, RemoteWorker

URL = "postgresql://nobody@127.0.0.1:1/nothing"
worker = RemoteWorker(URL, group="storm", lease=1, poll_interval=0.02, concurrency=20)

@worker.handle("double")
async def double(input, task):
    await asyncio.sleep(random.uniform(0, 0.02))
    if input % 7 == 3 and task.attempt < 3:
        raise ValueError("not yet")
    if input % 31 == 5:
        raise FatalError("never", code="five")
    return input * 2
"""


@dataclass
class Storm:
    """Steps on their way, and what is known of them."""

    url: str
    folder: Path
    dice: random.Random = field(default_factory=lambda: random.Random(7))
    waiting: dict[str, tuple[Task, int]] = field(default_factory=dict)
    settled: dict[str, Any] = field(default_factory=dict)
    processes: list[asyncio.subprocess.Process] = field(default_factory=list)
    sent: int = 0
    kills: int = 0
    breaks: int = 0
    next_harm: float = 0.0

    async def rage(self, seconds: float, workers: int = 2) -> None:
        """Send steps and break things for so long; then wait until all is settled."""
        (self.folder / "storm_steps.py").write_text(WORKER)
        self.tables = await Tables(self.url).open()
        async with SqlTransport(self.url) as transport:
            try:
                for _ in range(workers):
                    await self.spawn()
                end = time.monotonic() + seconds
                while time.monotonic() < end or not (self.kills and self.breaks):
                    await self.send(transport, 20)
                    await self.settle(transport)
                    await self.harm()
                await self.until_settled(transport)
                assert await self.tables.tasks() == []
                assert await self.tables.results() == {}
            finally:
                for process in self.processes:
                    if process.returncode is None:
                        process.kill()
                        await process.wait()
                await self.tables.close()
        self.check()

    async def spawn(self) -> None:
        command = [sys.executable, "-m", "stepfast", "remote-worker", "storm_steps:worker", "--log-level", "critical"]
        self.processes.append(await asyncio.create_subprocess_exec(*command, "--url", self.url, cwd=self.folder))

    async def harm(self) -> None:
        """Now and then a worker dies in the midst of its work, or the server ends all connections but one of ours."""
        await asyncio.sleep(0.02)
        if not self.settled or time.monotonic() < self.next_harm:
            return
        self.next_harm = time.monotonic() + self.dice.uniform(0.1, 1)
        if self.kills <= self.breaks:
            victim = self.dice.choice([process for process in self.processes if process.returncode is None])
            victim.kill()
            await victim.wait()
            self.kills += 1
            await self.spawn()
        else:
            await self.tables.end_connections()
            self.breaks += 1

    async def send(self, transport: SqlTransport, count: int) -> None:
        if len(self.waiting) < 500:
            numbers = range(self.sent, self.sent + count)
            self.sent += count
            tasks = [Task(f"storm:{n}", "storm", n, "double", "storm", json.dumps(n)) for n in numbers]
            await self.dispatch(transport, tasks)

    async def dispatch(self, transport: SqlTransport, tasks: list[Task]) -> None:
        now = await self.tables.now()
        self.waiting |= {task.step_id: (task, now) for task in tasks}
        await patient(lambda: transport.dispatch(tasks))

    async def settle(self, transport: SqlTransport) -> None:
        results = await patient(lambda: transport.results(list(self.waiting)))
        again = [task for result in results if (task := self.judge(result)) is not None]
        await patient(lambda: transport.remove(results))
        lost = await patient(lambda: transport.lost([step for step in self.waiting if step not in ids(again)]))
        await self.dispatch(transport, again + [self.waiting[step][0] for step in lost])

    def judge(self, result: Result) -> Task | None:
        """The task that has to be sent once more, if there is one."""
        task, sent_at = self.waiting[result.step_id]
        if is_stale(result, task.attempt, sent_at, 0):
            return task
        if result.status != COMPLETED and read_error(result.error)[1]:
            return task._replace(attempt=task.attempt + 1)
        assert result.step_id not in self.settled, f"{result.step_id} is settled twice"
        del self.waiting[result.step_id]
        self.settled[result.step_id] = json.loads(result.output or result.error or "null")
        return None

    async def until_settled(self, transport: SqlTransport) -> None:
        end = time.monotonic() + 60
        while self.waiting:
            assert time.monotonic() < end, f"never settled: {list(self.waiting)[:10]}"
            await self.settle(transport)
            await asyncio.sleep(0.05)

    def check(self) -> None:
        for number in range(self.sent):
            found = self.settled[f"storm:{number}"]
            expected = {"message": "never", "code": "five", "retryable": False} if number % 31 == 5 else number * 2
            assert found == expected, number


def ids(tasks: list[Task]) -> set[str]:
    return {task.step_id for task in tasks}


async def patient(call: Any) -> Any:
    """The server may have ended our connection, too."""
    from stepfast.errors import DatabaseUnavailable

    while True:
        try:
            return await call()
        except DatabaseUnavailable:
            await asyncio.sleep(0.05)
