"""One world: a database, workers, a client, faults, operators and senders, all of it decided by a scenario and a seed.

It is played to its end: when the faults are over, everything that can move must come to rest. What is known then is the
evidence that the checker of the storms judges.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from stepfast import Rate, Stepfast
from stepfast.engine.workflow import Workflow
from stepfast.errors import Released
from stepfast.model.graph import Graph
from stepfast.settings import Settings
from stepfast.store import Store
from stepfast.worker.remote_dispatcher import Transport
from tests.faults import talking
from tests.faults.bystanders import TROUBLE
from tests.judge.evidence import FROZEN, KILLED, OUTAGE, STOPPED, Evidence, Fault
from tests.judge.ledger import Ledger
from tests.judge.talking import TalkScene, scene_of
from tests.simulation import dags, programs, remembering, remote
from tests.simulation.clock import SimClock, time_of
from tests.simulation.database import Recorded, SimStore, Time
from tests.simulation.loop import Process, SimLoop, Stuck
from tests.simulation.network import Line, LineStore, Network
from tests.simulation.people import People
from tests.simulation.remote import LineTransport, SimTransport
from tests.simulation.scenario import NARROW
from tests.simulation.threads import bury_all, futures_give_the_turn_back

FOR_EVER = 1 << 62
_MOST_TURNS = 200_000
_LONGEST = 520.0
"""Seconds that a world may go on: a remote step that nobody waits for is looked at again after five minutes at most."""
_SILENT = logging.getLogger("stepfast.simulation")
_SILENT.addHandler(logging.NullHandler())
_SILENT.disabled = True


class MemoryLedger(Ledger):
    """The ledger of the storms, in memory."""

    def __init__(self) -> None:
        super().__init__(Path())
        self._lines: dict[str, list[dict[str, Any]]] = {}

    def append(self, name: str, entry: dict[str, Any]) -> None:
        """One line, which nothing takes back."""
        self._lines.setdefault(name, []).append(entry)

    def read(self, name: str) -> list[dict[str, Any]]:
        """Every line."""
        return list(self._lines.get(name, []))


@dataclass
class Outcome:
    """What is known when a world is over."""

    world: World
    evidence: Evidence
    stuck: str | None = None
    troubles: list[str] = field(default_factory=list)
    """Errors that nobody caught, and workers that broke."""
    turns: int = 0
    seconds: float = 0.0


class Worker:
    """A worker process of the world: one life after the other."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._number = number
        self._lives = 0
        self.process: Process
        self.line: Line
        self._stop: asyncio.Event
        self.begin()

    def begin(self) -> None:
        """Start a process."""
        world = self._world
        self._lives += 1
        self.process = world.loop.process(f"worker {self._number}.{self._lives}")
        app, self.line = world.make_app(self.process)
        self.line.die = self.die
        self._stop = asyncio.Event()
        world.loop.spawn(self.process, self._live(app, self._stop))

    async def _live(self, app: Stepfast, stop: asyncio.Event) -> None:
        try:
            async with app:
                async with app.worker():
                    await stop.wait()
        except TROUBLE:
            self._again(1.0)  # it came up during an outage; a supervisor starts it again
        except Exception as error:
            self._world.troubles.append(f"{self.process.name} broke: {error!r}")
            self._again(1.0)

    def die(self) -> None:
        """Die as by SIGKILL; somebody starts another one a moment later."""
        self._world.fault(self.process, KILLED)
        self._again(self._world.scenario["restart"])

    def leave(self) -> None:
        """Stop in good order, and begin anew."""
        self._world.fault(self.process, STOPPED)
        self.process.run(self._stop.set)
        self._world.later(2.0, self._again, 0.1, self.process)

    def _again(self, seconds: float, process: Process | None = None) -> None:
        loop = self._world.loop
        if not self.process.dead and process in (None, self.process):
            loop.kill(self.process)
            self._world.network.heard.pop(self.process, None)
            self._world.later(seconds, self.begin)

    def freeze(self, seconds: float) -> None:
        """Stop the whole process for a while."""
        process, world = self.process, self._world
        if process.frozen:
            return
        process.frozen = True
        world.lasting(process, FROZEN, seconds, lambda: setattr(process, "frozen", False))

    def cut(self, seconds: float) -> None:
        """Let nothing through to the database, or back, for a while."""
        world, line = self._world, self.line
        line.down_until = max(line.down_until, world.loop.time() + seconds)
        world.lasting(self.process, OUTAGE, seconds + 1.0, lambda: None)


class World:
    """Everything there is."""

    def __init__(self, scenario: dict[str, Any], seed: str, trace: list[str] | None = None) -> None:
        self.scenario = scenario
        self.loop = SimLoop(seed, _MOST_TURNS, _LONGEST, trace)
        self.seed = seed
        self.time = Time(self.loop)
        self.settings = Settings(
            retention=None, retention_failed=None, blocked_after=0.0, gc_threshold=0, **scenario["settings"]
        )
        self.store = SimStore(self.loop, self.settings, self.time, seed)
        self.network = Network(self.loop, seed, scenario["slow"])
        self.network.lose = self._lose
        self.ledger = MemoryLedger()
        self.outside = programs.Outside(self.ledger)
        self.transport = SimTransport(self.loop, self.ledger, seed)
        self.graph: Graph | None = None
        self._code = self._all_code()
        self.faults: list[Fault] = []
        self.troubles: list[str] = []
        self.misremembered: list[tuple[str, str]] = []
        """(run, text) of what a worker took for stored, and was not."""
        self.workers: list[Worker] = []
        self._due = {}
        for fault in scenario["faults"]:
            if "question" in fault:
                self._due[fault["worker"], fault["question"], fault["number"]] = fault

    # -- processes ---------------------------------------------------------------------------------------------------

    def make_app(self, process: Process) -> tuple[Stepfast, Line]:
        """The application as a process has it, and its line to the database."""
        line = Line(self.loop, process, self.network)
        store = cast(Store, LineStore(self.store, line))
        app = Stepfast("sqlite://", settings=self.settings, logger=_SILENT, auto_migrate=False)
        clock = SimClock(self.loop, process, self.seed)
        app._clock = clock
        app._make_store = lambda: store  # type: ignore[method-assign]
        app.workflows.update(self._code)
        self._declare(app)
        if self.scenario["remote"]:
            app.transport = cast(Transport, LineTransport(self.transport, line))
        return app, line

    def _all_code(self) -> dict[str, Workflow[Any, Any]]:
        """The code that every process has."""
        found = dict(programs.code())
        if self.scenario["remote"]:
            found |= remote.code()
        if self.scenario["dag"]:
            app = Stepfast("sqlite://", settings=self.settings)
            self.graph = dags.add_to(app, self.ledger, self.scenario["dag"])
            found |= app.workflows
        return found

    def _declare(self, app: Stepfast) -> None:
        """What an application says beside its code."""
        scenario = self.scenario
        if limits := scenario["limits"]:
            rate = Rate(limits["rate"][0], per=limits["rate"][1]) if "rate" in limits else None
            app.queue(NARROW, **{**limits, "rate": rate})
        if scenario.get("talk"):
            app.on(talking.GO, app.workflows[talking.BEGUN])
        if scenario["schedule"]:
            app.schedule("ticks", "task", input={"pause": 0.0}, **scenario["schedule"])

    def later(self, seconds: float, function: Callable[..., object], *args: Any) -> None:
        """Do something to the world."""
        self.loop.call_later(seconds, function, *args, context=self.loop.outside.blank)

    # -- faults ------------------------------------------------------------------------------------------------------

    def fault(self, process: Process, kind: str) -> None:
        """Write down what was done to a process, now."""
        self.faults.append(Fault(process.pid, kind, self.time.microseconds(), FOR_EVER))
        self.loop.note(f"{process.name} {kind}")

    def lasting(self, process: Process, kind: str, seconds: float, over: Callable[[], None]) -> None:
        """Write down what is done to a process for a while."""
        fault = Fault(process.pid, kind, self.time.microseconds(), FOR_EVER)
        self.faults.append(fault)
        self.loop.note(f"{process.name} {kind}")

        def ended() -> None:
            self.faults[self.faults.index(fault)] = replace(fault, end=self.time.microseconds())
            over()

        self.later(seconds, ended)

    def _lose(self, line: Line, what: str) -> str | None:
        """Whether something happens to a process just when it asks this."""
        if not self._due:
            return None
        for number, worker in enumerate(self.workers):
            if worker.line is line:
                fault = self._due.pop((number, what, line.asked[what]), None)
                return None if fault is None else self._strike(worker, fault)
        return None

    def _strike(self, worker: Worker, fault: dict[str, Any]) -> str | None:
        kind = fault["kind"]
        if kind in ("request", "reply", "death"):
            return str(kind)
        if kind == "kill":
            worker.die()
        elif kind == "freeze":
            worker.freeze(fault["seconds"])
        elif kind == "cut":
            worker.cut(fault["seconds"])
        elif kind == "leave":
            worker.leave()
        return None

    def _strike_in_time(self) -> None:
        for fault in self.scenario["faults"]:
            if "at" not in fault:
                continue
            if fault["kind"] == "step":
                self.later(fault["at"], self._step, fault["ms"])
            elif fault["kind"] == "deaf":
                self.later(fault["at"], setattr, self.network, "deaf", True)
            else:
                self.later(fault["at"], self._strike_by_number, fault)

    def _strike_by_number(self, fault: dict[str, Any]) -> None:
        worker = self.workers[fault["worker"] % len(self.workers)]
        if not worker.process.dead:
            self._strike(worker, fault)

    def _step(self, ms: int) -> None:
        self.time.stepped_ms += ms

    def calm(self) -> None:
        """No more faults from now on."""
        self._due.clear()
        self.network.deaf = False

    # -- playing -----------------------------------------------------------------------------------------------------

    def play(self) -> Outcome:
        """The whole of it."""
        with self._all_of_it():
            stuck: str | None = None
            evidence = Evidence()
            try:
                try:
                    self.loop.run_until_complete(self._live())
                except Stuck as error:
                    stuck = str(error)
                self._collect(evidence)
                self.troubles += [_said(context) for context in self.loop.troubles]
                return Outcome(self, evidence, stuck, list(self.troubles), self.loop.turns, self.loop.time())
            finally:  # also of a world that cannot be played, as smaller ones sometimes cannot
                self._bury()

    @contextlib.contextmanager
    def _all_of_it(self) -> Iterator[None]:
        programs.Stage.outside = self.outside
        compared = remembering.compared(lambda: self.store.connection, self.misremembered)
        with futures_give_the_turn_back(), compared, time_of(self.loop, self.seed, self.time.microseconds):
            asyncio.set_event_loop(self.loop)
            try:
                yield
            finally:
                asyncio.set_event_loop(None)
                self.loop.close()

    async def _live(self) -> None:
        await self.store.open()
        await self.store.migrate()
        for number in range(self.scenario["workers"]):
            self.workers.append(Worker(self, number))
        self._strike_in_time()
        client = self.loop.process("client")
        app, _ = self.make_app(client)
        self.people = People(self, app)
        await self.loop.spawn(client, self.people.act(self.calm))

    def _collect(self, evidence: Evidence) -> None:
        """Put together what is known."""
        reading = Recorded(self.store.connection).collect(evidence)
        with contextlib.suppress(StopIteration):
            reading.send(None)
        evidence.acts, evidence.starts = self.ledger.acts(), self.ledger.starts()
        evidence.signals, evidence.wishes = self.ledger.signals(), self.ledger.wishes()
        evidence.faults = self.faults
        evidence.seen = self.people.seen
        # The reply to a commit is on its way, and so is a transaction in which a function is called.
        evidence.news = int(2e6 * self.network.longest)
        evidence.lease, evidence.strict, evidence.cut = self.settings.lease, True, True
        self.talk = self._talk(evidence)
        self.queues = dict(self.store.connection.execute("SELECT id, queue FROM stepfast_runs"))
        self.remote_rows = self._remote_rows()
        self.dag_steps = self.store.connection.execute(
            "SELECT id, dag_id, dag_step FROM stepfast_runs WHERE dag_id IS NOT NULL"
        ).fetchall()
        evidence.may_fail, evidence.may_undo = programs.MAY_FAIL, programs.MAY_UNDO
        evidence.branched = self.outside.branched
        evidence.may_fail_to_undo = programs.MAY_FAIL_TO_UNDO

    def _talk(self, evidence: Evidence) -> TalkScene | None:
        """What is known of runs that talk."""
        if not self.scenario.get("talk"):
            return None
        slack = int((3 * self.settings.lease + 8) * 1e6)
        reading = scene_of(evidence, self.ledger, Recorded(self.store.connection).fetch, slack)
        try:
            reading.send(None)
        except StopIteration as over:
            scene: TalkScene = over.value
            return scene
        raise AssertionError("it does not wait")

    def _remote_rows(self) -> tuple[list[Any], list[Any]]:
        """What is known of remote steps, and their records."""
        fetch = self.store.connection.execute
        return (
            fetch("SELECT run_id, seq, state, attempt, resent, due_at FROM stepfast_remote_steps").fetchall(),
            fetch(
                "SELECT run_id, branch, position, status, output, error, undo FROM stepfast_steps WHERE kind = 'remote'"
            ).fetchall(),
        )

    def _bury(self) -> None:
        """Leave no task and no thread behind. What they still do counts for nothing."""
        self.loop.trace = None
        bury_all(self.loop)
        processes = self.loop._processes
        for process in processes:
            process.dead = process.frozen = False
            process.ready.extend(process.left)  # tasks that had not begun end like the others
        for _ in range(20):
            left = [task for process in processes for task in process.tasks if not task.done()]
            if not left:
                break
            for task in left:
                task.cancel()
            for _ in range(2000):
                if not any(process.ready for process in processes):
                    break
                self.loop._run_once_more()
        self._close_the_rest(processes)
        self.store.connection.close()

    def _close_the_rest(self, processes: list[Process]) -> None:
        """What does not end when it is cancelled is cut off where it stands."""
        closed: set[asyncio.Task[Any]] = set()
        asyncio._set_running_loop(self.loop)
        try:
            while left := [t for process in processes for t in process.tasks if not t.done() and t not in closed]:
                for task in left:
                    closed.add(task)
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    with contextlib.suppress(RuntimeError, Released):
                        task.get_coro().close()
        finally:
            asyncio._set_running_loop(None)


def _said(context: dict[str, Any]) -> str:
    error = context.get("exception")
    return f"{context.get('message')}: {error!r}"
