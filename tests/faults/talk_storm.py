"""A storm over runs that talk: worker processes are killed while those outside ask, publish, read and open sessions,
and so are processes that publish."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from stepfast import Stepfast
from stepfast.settings import Settings
from tests.faults import talking
from tests.faults.bystanders import TROUBLE, wish
from tests.faults.storm import SETTLE, UNFINISHED, Storm, every, meanwhile
from tests.judge.story import tell
from tests.judge.talking import TalkScene, check, scene_of

LEASE = 2.0
SLACK = 12.0
"""Seconds within which a run that waits is told of an event, whatever happens to workers."""
_TO_COME = (
    "SELECT (SELECT count(*) FROM [events] WHERE number IS NULL) + "
    "(SELECT count(*) FROM [event_starts] WHERE due_at IS NOT NULL) + "
    "(SELECT count(*) FROM [runs] WHERE hands_on AND completed_at IS NOT NULL)"
)


class TalkStorm(Storm):
    """A storm over runs that talk, and nothing else."""

    programs = "tests.faults.talking"
    enough, most_open, at_once = 20, 60, 2

    def __init__(self, *arguments: Any, longest: float, **options: Any) -> None:
        self._longest = longest
        """Seconds that some runs wait for an event."""
        super().__init__(*arguments, **options)
        self._talkers = talking.Talkers(self.app, self.ledger)
        self._talks: set[asyncio.Task[None]] = set()

    def make_app(self, url: str) -> Stepfast:
        return talking.make_app(url, self.ledger, Settings(**self.settings))

    async def start_one(self) -> Any:
        program, left = talking.program(random.Random(), (0.1, 1.0)), random.choice((0, 0, 1, 2))
        if random.random() < 0.3:
            program.append({"do": "hear", "key": random.choice((None, "k", "l")), "timeout": self._longest})
            left = 0
        given = {"program": program, "left": left}
        try:
            run = await self.app.start(talking.TALK, given)
        except TROUBLE:
            return None
        self.ledger.started(run.id, talking.TALK, None)
        for stream in random.choices("st", k=random.choice((0, 1, 2))):
            self._talk(self._talkers.read(run.id, stream))
        return run

    def kill_one(self) -> None:
        """A worker mostly, or one who publishes; another comes."""
        if self._starters and random.random() < 0.3:
            self.kill(random.choice(self._starters))
            self.launch("talk")
        else:
            self.kill(random.choice(self.workers))
            self.launch()

    def bystanders(self) -> list[Awaitable[None]]:
        return [every(0.05, self._say_something), every(0.7, self._meddle)]

    async def _say_something(self) -> None:
        runs = [start.run for start in self.ledger.starts()][-40:]
        if len(self._talks) < 100 and runs:
            self._talk(self._something(random.choice(runs)))

    def _talk(self, talk: Any) -> None:
        task = asyncio.ensure_future(talk)
        self._talks.add(task)
        task.add_done_callback(self._talks.discard)

    async def _something(self, run_id: str) -> None:
        do = random.choice(("ask", "ask", "ask", "word", "word", "other", "other"))
        if do == "ask":
            name, timeout = random.choice("qr"), random.choice((None, None, 0.3))
            await self._talkers.ask(run_id, name, random.choice((None, "a", "b")), timeout)
        elif do == "word":
            await self._talkers.word(run_id, random.choice("vwx"))
        else:
            await talking.say_something(self._talkers)

    async def _meddle(self) -> None:
        for run_id in await self._some_unfinished():
            await wish(self.app, self.ledger, run_id, random.choice(("cancel", "pause", "resume")))

    async def _unfinished(self) -> int:
        return await super()._unfinished() + int((await self.database.fetch(_TO_COME))[0][0])

    async def _let_go(self) -> None:
        while True:
            held = await self.database.fetch(
                f"SELECT id FROM [runs] WHERE {UNFINISHED} AND (status = 'paused' OR asked = 'pause')"
            )
            for (run_id,) in held:
                await wish(self.app, self.ledger, str(run_id), "resume")
            await asyncio.sleep(0.1)

    async def judge(self) -> TalkScene:
        """Settle, check, tell the story if there is one."""
        await self.settle()
        if self._talks:
            await asyncio.wait(self._talks, timeout=SETTLE)
        evidence = await self.evidence()
        scene = await scene_of(evidence, self.ledger, self.database.fetch, int(SLACK * 1e6))
        for run in evidence.runs:
            assert run.status in ("completed", "cancelled", "failed"), f"{run} has not ended"
        self.judge_by(check(scene), _count(scene), lambda found: tell(evidence, found))
        return scene


def _count(scene: TalkScene) -> Counter[str]:
    told = Counter(note["how"] for note in scene.of("told"))
    taken = Counter(note["what"] for note in scene.of("took"))
    begun = sum(run.workflow == talking.BEGUN for run in scene.runs.values())
    return Counter(
        {
            "storms": 1, "runs": len(scene.runs), "items": len(scene.items), "streams read": len(scene.of("read")),
            "answers": told["answered"] + told["refused"], "ended questions": told["ended"],
            "events taken": taken["event"], "started by events": begun,
            "messages": taken["message"], "links": sum(run.reason == "continued" for run in scene.runs.values()),
        }
    )  # fmt: skip


async def kills(url: str, folder: Path, seconds: float, longest: float) -> TalkScene:
    """SIGKILL of random processes."""
    async with TalkStorm(url, folder, lease=LEASE, longest=longest) as storm:
        await storm.launch_ready(3)
        await storm.launch_ready(program="talk")
        async with meanwhile(every(0.6, storm.kill_one), *storm.bystanders()):
            await storm.keep_starting(seconds)
        return await storm.judge()


async def hostile(url: str, folder: Path, seconds: float, longest: float) -> TalkScene:
    """The same with few slots, a lease of a second, and every wait given back at once."""
    hard: dict[str, Any] = {"inline_wait": 0, "min_poll_interval": 0.05, "history_records": 2}
    async with TalkStorm(url, folder, lease=1.0, longest=longest, **hard) as storm:
        await storm.launch_ready(3, concurrency=8)
        await storm.launch_ready(program="talk")
        async with meanwhile(every(0.8, storm.kill_one), *storm.bystanders()):
            await storm.keep_starting(seconds)
        return await storm.judge()
