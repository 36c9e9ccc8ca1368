"""The people of the world: callers who start runs and wait for results, senders of signals, operators.

When all of them have done what the scenario says, one of them sees to it that nothing waits for a person: resumes what
is paused, and sends a signal to whoever listens, until every run has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepfast import CallbackDone, InvalidState, RunCancelled, RunFailed, Stepfast
from tests.faults.bystanders import TROUBLE, Sender, wish
from tests.faults.graph_storm import ANSWERS
from tests.faults.talking import Talkers
from tests.judge.evidence import Seen
from tests.simulation import dags
from tests.simulation.scenario import NARROW

if TYPE_CHECKING:
    from tests.simulation.world import World

if TYPE_CHECKING:
    pass

_OPEN = (
    "SELECT id, status, waiting_for, workflow FROM stepfast_runs "
    "WHERE status NOT IN ('completed', 'failed', 'cancelled', 'compensated', 'skipped') AND dag_id IS NULL ORDER BY id"
)

_TO_BE_CARRIED = "SELECT 1 FROM stepfast_remote_steps WHERE due_at IS NOT NULL"
_TO_COME = (
    "SELECT 1 FROM stepfast_events WHERE number IS NULL "
    "UNION SELECT 1 FROM stepfast_event_starts WHERE due_at IS NOT NULL "
    "UNION SELECT 1 FROM stepfast_runs WHERE hands_on AND completed_at IS NOT NULL"
)
_TO_THE_END = ("ask", "read")
"""What may take until the run has ended."""
_IN_THE_BOX = "SELECT 1 FROM stepfast_mailbox WHERE run_id = ? AND kind = 'signal' AND name = ?"
"""What was sent already has to be enough."""


@dataclass(frozen=True)
class Debounced:
    """A debounced start that returned: which run, from when to when it took, and the input that it gave."""

    run: str
    at: int
    answered: int
    input: Any


@dataclass(frozen=True)
class Order:
    """What an operator did to the narrow queue, from when to when."""

    what: str
    at: int
    answered: int
    concurrency: int | None = None


class People:
    """All of them, in one process."""

    def __init__(self, world: World, app: Stepfast) -> None:
        self._app = app
        self._ledger = world.ledger
        self._scenario = world.scenario
        self._world = world
        self._gates = dags.gates(world.scenario["dag"] or [])
        self._answered: set[tuple[str, str]] = set()
        self._talkers = Talkers(app, world.ledger)
        self.debounced: list[Debounced] = []
        self.orders: list[Order] = []
        self._runs: dict[int, Any] = {}
        self.seen: list[Seen] = []
        self._watching: list[asyncio.Task[None]] = []

    async def act(self, calm: Callable[[], None]) -> None:
        """Everything that people do, until all is over."""
        async with self._app:
            acts = [self._start(number, each) for number, each in enumerate(self._scenario["runs"]) if each]
            acts += [self._signal(number, each) for number, each in enumerate(self._scenario["signals"])]
            acts += [self._wish(each) for each in self._scenario["wishes"]]
            acts += [self._order(each) for each in self._scenario["orders"]]
            acts += [self._hold(each) for each in self._scenario.get("holders", ())]
            acts += [self._talk(each) for each in self._scenario.get("talk", ()) if each["do"] not in _TO_THE_END]
            asking = [self._talk(each) for each in self._scenario.get("talk", ()) if each["do"] in _TO_THE_END]
            self._watching += [asyncio.create_task(each) for each in asking]
            await asyncio.gather(*acts, asyncio.sleep(self._scenario["horizon"]))
            calm()
            await self._let_go()
            await self._see_to_the_end()
            await asyncio.gather(*self._watching, *(self._wait(run) for run in self._runs.values()))

    # -- callers -----------------------------------------------------------------------------------------------------

    async def _start(self, number: int, run: dict[str, Any]) -> None:
        await asyncio.sleep(run["at"])
        options, at = run.get("options", {}), self._world.time.microseconds()
        try:
            started = await self._app.start(run["workflow"], run["input"], **options)
        except TROUBLE:
            return
        bounces = "debounce" in options  # its key is free again when it is claimed
        self._ledger.started(started.id, run["workflow"], None if bounces else options.get("key"))
        if bounces:
            self.debounced.append(Debounced(started.id, at, self._world.time.microseconds(), run["input"]))
        self._runs[number] = started
        if run.get("watched"):
            self._watching.append(asyncio.create_task(self._wait(self._runs.pop(number))))
            self._runs[-1 - number] = started

    async def _wait(self, run: Any) -> None:
        """How it ended, as its caller was told."""
        if any(seen.run == run.id for seen in self.seen):
            return
        try:
            value = json.dumps(await run.result())
            seen = Seen(run.id, "completed", value)
        except RunCancelled:
            seen = Seen(run.id, "cancelled")
        except RunFailed:
            seen = Seen(run.id, "failed")
        self.seen.append(seen)

    def _run(self, number: int) -> Any:
        return self._runs.get(number) or self._runs.get(-1 - number)

    # -- senders and operators ---------------------------------------------------------------------------------------

    async def _signal(self, number: int, signal: dict[str, Any]) -> None:
        await asyncio.sleep(signal["at"])
        run = self._run(signal["run"])
        if run is not None:
            await Sender(self._app, self._ledger, f"sender {number}", within=0).send(run.id, signal["name"])

    async def _wish(self, wished: dict[str, Any]) -> None:
        await asyncio.sleep(wished["at"])
        run = self._run(wished["run"])
        if run is not None:
            await wish(self._app, self._ledger, run.id, wished["what"])

    async def _order(self, order: dict[str, Any]) -> None:
        """Hold the narrow queue, let it go, or give it other limits."""
        await asyncio.sleep(order["at"])
        what, at = order["do"], self._world.time.microseconds()
        limits = {"concurrency": order["concurrency"]} if what == "set_limits" else {}
        with contextlib.suppress(*TROUBLE):
            await getattr(self._app, what)(NARROW, **limits)
        self.orders.append(Order(what, at, self._world.time.microseconds(), order.get("concurrency")))

    # -- holders of tokens -------------------------------------------------------------------------------------------

    async def _hold(self, act: dict[str, Any]) -> None:
        """Do something with one of the last tokens."""
        await asyncio.sleep(act["at"])
        tokens = list(self._world.outside.callbacks)
        if len(tokens) > act["token"]:
            await self._end(tokens[-1 - act["token"]], act["do"], act["value"])

    async def _end(self, token: str, do: str, value: str) -> None:
        held = self._world.outside.callbacks[token]
        if do != "beat":
            held.sent.add(value)
        with contextlib.suppress(*TROUBLE, CallbackDone):
            if do == "beat":
                await self._app.beat(token)
            else:
                await (self._app.complete(token, value) if do == "complete" else self._app.fail(token, value))
                held.accepted.add(value)

    # -- those who talk with runs ------------------------------------------------------------------------------------

    async def _talk(self, act: dict[str, Any]) -> None:
        await asyncio.sleep(act["at"])
        run: Any = self._run(act["run"]) if "run" in act else None
        if "run" in act and run is None:
            return
        talkers, given = self._talkers, {name: act[name] for name in act.keys() - {"do", "at", "run"}}
        if act["do"] == "wish":
            await wish(self._app, self._ledger, run.id, given["what"])
        elif act["do"] == "open":
            if (session := await talkers.open(**given)) is not None:
                self._watching.append(asyncio.create_task(self._wait(session)))
        else:
            await getattr(talkers, act["do"])(*(() if run is None else (run.id,)), **given)

    # -- to the end --------------------------------------------------------------------------------------------------

    async def _let_go(self) -> None:
        """Nothing is held any more, and no tick comes."""
        if self._scenario["limits"]:
            await self._order({"do": "resume_queue", "at": 0.0})
        if self._scenario["schedule"]:
            await self._app.pause_schedule("ticks")

    async def _see_to_the_end(self) -> None:
        sender = Sender(self._app, self._ledger, "closer", within=0)
        while (rows := self._world.store.connection.execute(_OPEN).fetchall()) or self._carried():
            for run_id, status, waiting_for, workflow in rows:
                if status == "paused":
                    await wish(self._app, self._ledger, run_id, "resume")
                for name in _listened_for(waiting_for):
                    if not self._world.store.connection.execute(_IN_THE_BOX, (run_id, name)).fetchone():
                        await sender.send(run_id, name)
                for token, held in list(self._world.outside.callbacks.items()):
                    if held.run == run_id and not held.seen:
                        await self._end(token, "complete", "z")
                for name in self._gates if workflow == dags.NAME else ():
                    await self._answer(run_id, name)
            await asyncio.sleep(1.0)

    def _carried(self) -> bool:
        """Whether a remote step is still out, or is to be looked at later; or something is to come of an event, or of
        the end of a session."""
        due = self._world.store.connection.execute(_TO_BE_CARRIED).fetchone()
        if due is None and self._scenario.get("talk"):
            due = self._world.store.connection.execute(_TO_COME).fetchone()
        return due is not None or bool(self._world.transport.left())

    async def _answer(self, run_id: str, name: str) -> None:
        """Open a gate, once."""
        if (run_id, name) in self._answered:
            return
        self._answered.add((run_id, name))
        self._ledger.append(ANSWERS, {"run": run_id, "name": name, "value": f"word {name}"})
        with contextlib.suppress(*TROUBLE, InvalidState):
            await self._app.signal(run_id, name, f"word {name}")


def _listened_for(waiting_for: str | None) -> list[str]:
    """The names of the signals that a run waits for."""
    parts = (waiting_for or "").split(", ")
    return [part.removeprefix("signal:") for part in parts if part.startswith("signal:")]
