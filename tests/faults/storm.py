"""A storm: worker processes, a driver that starts runs and waits for their results, faults, and the verdict."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Self

from stepfast import RunCancelled, RunFailed, Stepfast
from stepfast.settings import Settings
from tests.faults import composing
from tests.faults.audit import Database
from tests.faults.bystanders import TROUBLE, Sender, keep_meddling, keep_signalling, wish
from tests.faults.workload import CULPRITS, MAY_FAIL, MOMENT, make_app, start_one
from tests.judge.cases import Violation
from tests.judge.evidence import FROZEN, KILLED, OUTAGE, Evidence, Fault, Seen
from tests.judge.ledger import Ledger, now
from tests.judge.runs import check, false_losses
from tests.judge.story import tell
from tests.support.nursery import Child, nursery

ROOT = Path(__file__).resolve().parents[2]
SETTLE = float(os.environ.get("FAULT_PATIENCE", "60"))
"""Seconds after the last fault in which everything must have ended. Passing storms need a few."""

UNFINISHED = "status NOT IN ('completed', 'failed', 'cancelled', 'compensated', 'skipped')"

TOTALS: Counter[str] = Counter()
"""What all storms of this test process did, for the table at the end."""


class Process:
    """A process of a storm."""

    def __init__(
        self, command: list[str], log: Path, folder: Path = ROOT, environment: dict[str, str] | None = None
    ) -> None:
        self._log = log
        program, *arguments = command
        theirs, ours = os.pipe()
        self._stdin = open(ours, "wb")  # noqa: SIM115 - its end tells the process that the storm is over
        with log.open("wb") as stream, open(theirs, "rb") as stdin:
            self._popen: Child | subprocess.Popen[bytes]
            if program == sys.executable and environment is None:
                files = [stdin.fileno(), stream.fileno(), stream.fileno()]
                self._popen = nursery().start(arguments, files, folder=folder)
            else:
                surroundings = {**os.environ, **(environment or {})}
                self._popen = subprocess.Popen(
                    command, cwd=folder, env=surroundings, stdin=stdin, stdout=stream, stderr=stream
                )
        self.pid = self._popen.pid
        self.frozen = False

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait for the end. Harmless if it has ended."""
        self._popen.kill()
        self._popen.wait()
        self._stdin.close()


class Storm:
    """Use it as ``async with Storm(url, folder, lease=2) as storm``; then ``await storm.verdict()``."""

    programs = "tests.faults.workload"
    """The module that processes run."""
    enough = 60
    """Runs in a storm at least."""
    most_open = 400
    """Runs under way at most: on a slow machine more and more would wait, and be left to do afterwards."""
    at_once, pause = 10, 0.02
    """How many runs are started together, and the pauses in their steps."""

    def __init__(
        self,
        url: str,
        folder: Path,
        *,
        lease: float,
        strict: bool = False,
        cut: bool = False,
        through: str | None = None,
        change: str = "",
        **settings: Any,
    ) -> None:
        self.url = url
        self.through = through or url
        """The URL that workers and the driver use; the look at the rows does not."""
        self.strict = strict
        self.cut = cut
        self.change = change
        self.settings = {
            "lease": lease, "poll_interval": 0.2, "sweep_interval": 0.3, "inline_wait": MOMENT, "max_losses": 1000,
            "outage_backoff_max": 1.0,
            "log_errors": False,  # a traceback in the log is then one of the engine's own
            **settings,
        }  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        self.ledger = Ledger(folder)
        self.database = Database(url)
        self.app: Stepfast = self.make_app(self.through)
        self.workers: list[Process] = []
        self._starters: list[Process] = []
        self._gone: list[Process] = []
        self._faults: list[Fault] = []
        self._seen: list[Seen] = []
        self._watched: set[str] = set()
        self._waiting: list[asyncio.Task[None]] = []
        self._stopped_at: dict[int, int] = {}
        self.deaths = 0
        """How many workers have died by themselves."""
        self._processes = 0

    def make_app(self, url: str) -> Stepfast:
        """The application that is stormed at."""
        return make_app(url, self.ledger, Settings(**self.settings))

    async def __aenter__(self) -> Self:
        async with self.make_app(self.url) as app:
            await app.migrate()
        await self.database.watch()
        await self.app.store()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._waiting:
            task.cancel()
        await asyncio.gather(*self._waiting, return_exceptions=True)
        for process in [*self.workers, *self._starters]:
            process.kill()
        with contextlib.suppress(Exception):
            async with asyncio.timeout(10):
                await self.app.close()
        self.ledger.close()

    # -- processes -------------------------------------------------------------------------------------------------

    def launch(
        self,
        program: str = "work",
        *,
        environment: dict[str, str] | None = None,
        code: Path = ROOT,
        **arguments: Any,
    ) -> Process:
        """Start a process, ready or not; perhaps with other code, or in other surroundings."""
        self._processes += 1
        settings = {**self.settings, **arguments.pop("settings", {})}
        common = {"url": self.through, "folder": str(self.ledger.folder), "settings": settings, "concurrency": 30,
                  "change": self.change}  # fmt: skip
        log = self.ledger.folder / f"log-{self._processes}"
        given = json.dumps({**common, "keys": 20, **arguments})
        process = Process([sys.executable, "-m", self.programs, program, given], log, code, environment)
        (self.workers if program == "work" else self._starters).append(process)
        return process

    async def launch_ready(self, count: int = 1, **arguments: Any) -> list[Process]:
        """Start processes, and wait until they are at work."""
        processes = [self.launch(**arguments) for _ in range(count)]
        wanted = {process.pid for process in processes}
        async with asyncio.timeout(60):
            while not wanted <= {line["pid"] for line in self.ledger.read("ready")}:
                for process in processes:
                    assert process.alive, f"a process did not come up:\n{process.log}"
                await asyncio.sleep(0.02)
        return processes

    # -- faults ----------------------------------------------------------------------------------------------------

    def kill(self, process: Process) -> None:
        """SIGKILL. The fault begins a moment before it, because nobody knows the moment exactly."""
        begin = now()
        process.kill()
        self._faults.append(Fault(process.pid, KILLED, begin, now()))
        for crew in (self.workers, self._starters):
            if process in crew:
                crew.remove(process)
                self._gone.append(process)
        TOTALS["kills"] += 1

    async def freeze(self, process: Process, seconds: float) -> None:
        """SIGSTOP, later SIGCONT: a zombie, if its lease ran out meanwhile."""
        begin = now()
        process.frozen = True
        process.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            process.signal(signal.SIGCONT)
            process.frozen = False
            self._faults.append(Fault(process.pid, FROZEN, begin, now()))
        TOTALS["zombies"] += 1

    def stop(self, process: Process) -> None:
        """SIGSTOP, until thawed."""
        self._stopped_at[process.pid] = now()
        process.signal(signal.SIGSTOP)
        process.frozen = True

    async def until_stopped(self, process: Process) -> None:
        """Wait until the process has stopped itself."""
        self._stopped_at[process.pid] = now()
        async with asyncio.timeout(30):
            while _state(process.pid) != "T":
                await asyncio.sleep(0.02)
        process.frozen = True

    def thaw(self, process: Process) -> None:
        """Let a stopped process go on."""
        process.signal(signal.SIGCONT)
        process.frozen = False
        self._faults.append(Fault(process.pid, FROZEN, self._stopped_at[process.pid], now()))
        TOTALS["zombies"] += 1

    @contextlib.asynccontextmanager
    async def outage(self) -> AsyncIterator[None]:
        """What happens inside keeps everybody from the database. Until the workers beat again, it is not over."""
        begin = now()
        try:
            yield
        finally:
            self._faults.append(Fault(0, OUTAGE, begin, now() + int(1e6)))

    async def supervise(self) -> None:
        """Start a worker anew when one has ended, as a supervisor would."""
        while True:
            for process in list(self.workers):
                if not process.alive:
                    self._faults.append(Fault(process.pid, KILLED, now(), now()))
                    self.deaths += 1
                    self.workers.remove(process)
                    self._gone.append(process)
                    process.kill()
                    self.launch()
                    TOTALS["kills"] += 1
            await asyncio.sleep(0.02)

    # -- runs ------------------------------------------------------------------------------------------------------

    async def start(self, count: int) -> None:
        """Start runs of every kind, and wait for their results in the background."""
        for run in await asyncio.gather(*(self.start_one() for _ in range(count))):
            if run is not None:
                self.watch(run)

    async def start_one(self) -> Any:
        """Start a run of a random kind; its handle, or None if the start did not return."""
        return await start_one(self.app, self.ledger, 20, self.pause)

    async def start_some(self, workflow: str, count: int, input: float = 0.02) -> list[Any]:
        """Start runs of one kind."""
        runs: list[Any] = await self.app.start_many(workflow, [input] * count)
        for run in runs:
            self.acknowledge(run, workflow)
        return runs

    async def acted(self, workflow: str, count: int, position: int = 0) -> None:
        """Wait until so many acts of a workflow have begun."""
        async with asyncio.timeout(60):
            while sum((a.workflow, a.position) == (workflow, position) for a in self.ledger.acts()) < count:
                await asyncio.sleep(0.02)

    async def taken_over(self, count: int) -> None:
        """Wait until so many runs have been claimed a second time."""
        async with asyncio.timeout(60):
            while (await self.database.fetch("SELECT count(*) FROM [runs] WHERE claim > 1"))[0][0] < count:
                await asyncio.sleep(0.05)

    def acknowledge(self, run: Any, workflow: str, key: str | None = None) -> None:
        """A start by the test itself has returned."""
        self.ledger.started(run.id, workflow, key)
        self.watch(run)

    def watch(self, run: Any) -> None:
        """Wait for a result, as a caller would."""
        if run.id not in self._watched:
            self._watched.add(run.id)
            self._waiting.append(asyncio.create_task(self._wait_for(run)))

    async def keep_starting(self, seconds: float) -> None:
        """Start runs for a time, and until they are enough for a storm, however slow the machine; a little faster than
        they are done, so that there is always something under way."""
        until = time.monotonic() + seconds
        while time.monotonic() < until or (len(self._watched) < self.enough and time.monotonic() < until + SETTLE):
            backlog = len(self._watched) - len(self._seen)
            if backlog < self.most_open:
                await self.start(self.at_once)
            await asyncio.sleep(0.05 if backlog < 150 else 0.3)

    async def keep_waking(self, pause: float = 0.03) -> None:
        """Send signals that the runs do not wait for."""
        sender = Sender(self.app, self.ledger, "passer-by", within=0)
        runs = [start.run for start in self.ledger.starts()]
        while True:
            await sender.send(random.choice(runs), "noise")
            await asyncio.sleep(pause)

    def bystanders(self) -> list[Awaitable[None]]:
        """Senders of signals, and an operator."""
        senders = [keep_signalling(self.app, self.ledger, f"sender {number}") for number in range(4)]
        return [*senders, keep_meddling(self.app, self.ledger, self._some_unfinished)]

    async def _some_unfinished(self) -> list[str]:
        """A few runs that operators have a mind to meddle with; not while the database is away."""
        try:
            rows = await self.database.fetch(f"SELECT id FROM [runs] WHERE {UNFINISHED} ORDER BY random() LIMIT 3")
        except TROUBLE:
            return []
        return [str(run_id) for (run_id,) in rows]

    async def _wait_for(self, run: Any) -> None:
        try:
            value = json.dumps(await run.result())
        except RunCancelled:
            self._seen.append(Seen(run.id, "cancelled"))
        except RunFailed:
            self._seen.append(Seen(run.id, "failed"))
        except Exception as error:  # the checker will call that a wrong result
            self._seen.append(Seen(run.id, repr(error)))
        else:
            self._seen.append(Seen(run.id, "completed", value))

    async def settle(self, patience: float = SETTLE) -> None:
        """Wait until everything that was acknowledged has ended, also what other processes started."""
        for process in list(self._starters):
            self.kill(process)
        for start in self.ledger.starts():
            self.watch(self.app.get(start.run))
        letting_go = asyncio.create_task(self._let_go())
        _, late = await asyncio.wait(self._waiting, timeout=patience) if self._waiting else (set(), set())
        for task in late:
            task.cancel()  # the checker will say which, and tell its story
        deadline = time.monotonic() + patience
        while not late and time.monotonic() < deadline and await self._unfinished():
            await asyncio.sleep(0.1)
        letting_go.cancel()
        [trouble] = await asyncio.gather(letting_go, return_exceptions=True)
        if isinstance(trouble, Exception):
            raise trouble

    async def _let_go(self) -> None:
        """Everybody who is paused goes on, and everybody who listens is told to stop, until nobody is left. (Also runs
        whose start did not return.)"""
        sender = Sender(self.app, self.ledger, composing.STOP, within=0)
        told: Counter[tuple[str, str]] = Counter()
        while True:
            held = await self.database.fetch(
                f"SELECT id FROM [runs] WHERE {UNFINISHED} AND (status = 'paused' OR asked = 'pause')"
            )
            for (run_id,) in held:
                await wish(self.app, self.ledger, str(run_id), "resume")
            names = ", ".join(f"'{name}'" for name in composing.LISTENERS)
            listening = await self.database.fetch(
                f"SELECT id, workflow FROM [runs] WHERE {UNFINISHED} AND workflow IN ({names})"
            )
            for run_id, workflow in listening:
                for name in composing.LISTENERS[workflow]:
                    ear = (str(run_id), name)
                    while told[ear] < composing.NEEDED.get(workflow, 1) and await sender.send(*ear):
                        told[ear] += 1
            await asyncio.sleep(0.1)

    async def all_ended(self) -> bool:
        """Whether nothing is under way."""
        return not await self._unfinished()

    async def _unfinished(self) -> int:
        """Runs that are not at their end: of starts that did not return, say."""
        return int((await self.database.fetch(f"SELECT count(*) FROM [runs] WHERE {UNFINISHED}"))[0][0])

    # -- the verdict -------------------------------------------------------------------------------------------------

    async def evidence(self) -> Evidence:
        """Everything there is to know."""
        evidence = Evidence(
            acts=self.ledger.acts(), starts=self.ledger.starts(), seen=list(self._seen), faults=list(self._faults),
            unwanted=self.ledger.all_unwanted(), signals=self.ledger.signals(), wishes=self.ledger.wishes(),
            may_fail=MAY_FAIL, culprits=CULPRITS, may_undo=composing.MAY_UNDO,
            may_fail_to_undo=composing.MAY_FAIL_TO_UNDO, cut=self.cut, lease=float(self.settings["lease"]),
            strict=self.strict,
        )  # fmt: skip
        await self.database.collect(evidence)
        return evidence

    async def verdict(self, *, runs: int = 1) -> Evidence:
        """Settle, check, tell the story if there is one."""
        await self.settle()
        await asyncio.sleep(1)  # late threads come back now; nothing they do may change anything
        evidence = await self.evidence()
        self.judge_by(check(evidence), count(evidence), lambda found: tell(evidence, found))
        assert len(evidence.runs) >= runs, f"a storm over {len(evidence.runs)} runs is none"
        return evidence

    def judge_by(self, violations: list[Violation], counted: Counter[str], tell: Callable[[Any], str]) -> None:
        """Count what the storm went over; tell the story if there is one."""
        TOTALS.update(counted)
        TOTALS["violations"] += len(violations)
        assert not violations, tell(violations)
        self.check_workers()

    def check_workers(self) -> None:
        """Nobody who was not killed has ended or broken."""
        for process in self.workers:
            assert process.alive, f"a worker ended by itself:\n{process.log[-5000:]}"
        for process in [*self.workers, *self._gone]:
            found = trouble(process.log)
            assert found is None, f"in the log of process {process.pid}:\n{found}"


def trouble(log: str) -> str | None:
    """The first thing in a log that no storm excuses, with what follows it. Two things are excused: a workflow that is
    stopped while it lists what it wants to see leaves the first of it unseen; and asyncpg forgets the answer to its
    question for TLS when it is cancelled in the very moment in which it is connected (``TLSUpgradeProto``)."""
    found = re.search(
        r"^.*(CRITICAL|Traceback|never retrieved(?!\nfuture: .*unexpected connection_lost\(\) call)"
        r"|(?<!'Notes.see' was )never awaited).*(\n.*){0,30}",
        log,
        re.MULTILINE,
    )
    return None if found is None else found[0]


def count(evidence: Evidence) -> Counter[str]:
    """What a storm went over, for the table."""
    kinds = Counter(step.kind for step in evidence.steps if step.status != "cancelled")
    wished = Counter(wish.what for wish in evidence.wishes if wish.granted)
    return Counter(
        {
            "storms": 1,
            "runs": len(evidence.runs),
            "steps": kinds["step"] + kinds["wait_until"],
            "acts": len(evidence.acts),
            "sleeps": kinds["sleep"],
            "signals": sum(signal.acknowledged is not None for signal in evidence.signals),
            "children": sum(run.parent is not None for run in evidence.runs),
            "races": kinds["first"],
            "rows": len(evidence.rows),
            "undos": kinds["undo"],
            "links": sum(run.reason == "continued" for run in evidence.runs),
            "cancels": wished["cancel"],
            "pauses": wished["pause"],
            "false losses": false_losses(evidence),
        }
    )


def _state(pid: int) -> str:
    """One letter, as the kernel gives it: T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


async def every(seconds: float, act: Callable[[], Awaitable[None] | None]) -> None:
    """Do something at irregular intervals, until cancelled."""
    while True:
        await asyncio.sleep(seconds * random.uniform(0.5, 1.5))
        done = act()
        if done is not None:
            await done


@contextlib.asynccontextmanager
async def meanwhile(*jobs: Awaitable[None]) -> AsyncIterator[None]:
    """Run these beside the block; ended with it. What they raise comes out here."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        yield
    finally:
        pending = {*tasks}
        while pending:  # before Python 3.12 a driver that waits with a limit may swallow a cancellation
            for task in pending:
                task.cancel()
            _, pending = await asyncio.wait(pending, timeout=1)
        done = await asyncio.gather(*tasks, return_exceptions=True)
    for error in done:
        if isinstance(error, Exception):
            raise error
