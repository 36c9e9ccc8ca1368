"""A storm over dag runs: worker processes are killed while steps are done and while they are undone, gates are opened
from outside, operators cancel, pause, resume and retry."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from stepfast import InvalidState
from tests.faults.bystanders import TROUBLE, wish
from tests.faults.graphs import ACTS, graphs_of, start_one
from tests.faults.storm import UNFINISHED, Storm, every, meanwhile
from tests.judge.dags import DagStepRow, GraphAct, Scene, check, tell

ANSWERS = "graph answers"
LEASE = 2.0


class GraphStorm(Storm):
    """A storm over dag runs only."""

    enough, most_open, at_once, pause = 20, 60, 3, 0.05

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.graphs = graphs_of(self.app)

    async def start_one(self) -> Any:
        return await start_one(self.app, self.ledger, self.graphs, self.pause)

    async def kill_one(self) -> None:
        """Half of the time one that is undoing something, if there is any."""
        victims = self.workers
        if random.random() < 0.6:
            rows = await self.database.fetch(
                "SELECT w.pid FROM [runs] r JOIN [workers] w ON w.id = r.worker WHERE r.status = 'compensating'"
            )
            undoing = {pid for (pid,) in rows}
            victims = [process for process in self.workers if process.pid in undoing] or victims
        self.kill(random.choice(victims))
        self.launch()

    def bystanders(self) -> list[Awaitable[None]]:
        return [self._answer(0.15), self._meddle(), self._hold(), self._retry()]

    async def _answer(self, reluctance: float) -> None:
        """Somebody who opens gates, or does not, some early and some late."""
        told: set[tuple[str, str]] = set()
        while True:
            rows = await self.database.fetch(
                f"SELECT id FROM [runs] WHERE workflow = 'gated' AND dag_id IS NULL AND {UNFINISHED}"
            )
            for (run_id,) in rows:
                for name in ("gate", "hurry", "hint"):
                    ear = (str(run_id), name)
                    if ear not in told and random.random() > reluctance * (1 if name == "gate" else 5):
                        told.add(ear)
                        await self._signal(*ear)
            await asyncio.sleep(0.1)

    async def _signal(self, run_id: str, name: str) -> None:
        value = False if random.random() < 0.1 else f"word {secrets.token_hex(4)}"
        self.ledger.append(ANSWERS, {"run": run_id, "name": name, "value": value})
        try:
            await self.app.signal(run_id, name, value)
        except (*TROUBLE, InvalidState):
            pass

    async def _meddle(self) -> None:
        """An operator who cancels runs: some that a worker is just about to finish."""
        while True:
            await asyncio.sleep(random.random() * 0.5)
            first = random.choice(("worker IS NULL, ", "", "", ""))
            rows = await self.database.fetch(
                f"SELECT id FROM [runs] WHERE dag_id IS NULL AND {UNFINISHED} ORDER BY {first}random() LIMIT 1"
            )
            for (run_id,) in rows:
                await wish(self.app, self.ledger, str(run_id), "cancel")

    async def _hold(self) -> None:
        """One who pauses runs, and resumes some of them."""
        while True:
            await asyncio.sleep(random.random() * 0.2)
            for run_id in await self._some(UNFINISHED):
                await wish(self.app, self.ledger, run_id, "pause")
            for run_id in await self._some("status = 'paused'"):
                await wish(self.app, self.ledger, run_id, "resume")

    async def _retry(self) -> None:
        """One who lets runs go on that failed or were cancelled; also some that were undone, who is refused."""
        while True:
            await asyncio.sleep(random.random() * 0.2)
            for run_id in await self._some("status IN ('failed', 'cancelled')"):
                await wish(self.app, self.ledger, run_id, "retry")

    async def _some(self, which: str) -> list[str]:
        rows = await self.database.fetch(
            f"SELECT id FROM [runs] WHERE dag_id IS NULL AND {which} ORDER BY random() LIMIT 1"
        )
        return [str(run_id) for (run_id,) in rows]

    async def _let_go(self) -> None:
        """Every gate is opened, and nobody is held."""
        async with meanwhile(self._resume_all()):
            await self._answer(0)

    async def _resume_all(self) -> None:
        while True:
            rows = await self.database.fetch("SELECT id FROM [runs] WHERE dag_id IS NULL AND status = 'paused'")
            for (run_id,) in rows:
                await wish(self.app, self.ledger, str(run_id), "resume")
            await asyncio.sleep(0.1)

    async def scene(self) -> Scene:
        """Everything there is to know."""
        dag_steps = await self.database.fetch("SELECT id, dag_id, dag_step FROM [runs] WHERE dag_id IS NOT NULL")
        return Scene(
            await self.evidence(),
            self.graphs,
            [DagStepRow(str(row_id), str(dag_id), name) for row_id, dag_id, name in dag_steps],
            [GraphAct(**line) for line in self.ledger.read(ACTS)],
            [(line["run"], line["name"], line["value"]) for line in self.ledger.read(ANSWERS)],
        )

    async def judge(self, *, runs: int = 1) -> Scene:
        """Settle, check, tell the story if there is one."""
        await self.settle()
        await asyncio.sleep(0.5)
        scene = await self.scene()
        self.judge_by(check(scene), scene.count(), lambda found: tell(scene, found))
        assert len(scene.runs) >= runs, f"a storm over {len(scene.runs)} runs is none"
        return scene


async def kills(url: str, folder: Path, seconds: float) -> Scene:
    """SIGKILL of random workers, and of a process that starts dag runs."""
    async with GraphStorm(url, folder, lease=LEASE) as storm:
        await storm.launch_ready(3)
        await storm.launch_ready(program="start graphs")
        async with meanwhile(every(0.8, storm.kill_one), *storm.bystanders()):
            await storm.keep_starting(seconds)
        return await storm.judge(runs=storm.enough)


async def hostile(url: str, folder: Path, seconds: float) -> Scene:
    """The same with few slots, a lease of a second, every wait given back at once, and no wake-up that arrives."""
    hard = {"inline_wait": 0, "min_poll_interval": 0.05, "history_records": 2}
    async with GraphStorm(url, folder, lease=1.0, change="deaf", **hard) as storm:
        await storm.launch_ready(3, concurrency=8)
        async with meanwhile(every(1.2, storm.kill_one), *storm.bystanders()):
            await storm.keep_starting(seconds)
        return await storm.judge(runs=10)
