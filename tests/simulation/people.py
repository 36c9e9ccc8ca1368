"""The people of the world: callers who start runs and wait for results, senders of signals, operators.

When all of them have done what the scenario says, one of them sees to it that nothing waits for a person: resumes what
is paused, and sends a signal to whoever listens, until every run has ended.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from stepfast import RunCancelled, RunFailed, Stepfast
from tests.faults.bystanders import TROUBLE, Sender, wish
from tests.faults.evidence import Seen
from tests.faults.ledger import Ledger
from tests.simulation.database import SimStore
from tests.simulation.loop import SimLoop

_OPEN = (
    "SELECT id, status, waiting_for FROM stepfast_runs "
    "WHERE status NOT IN ('completed', 'failed', 'cancelled', 'compensated', 'skipped') AND dag_id IS NULL ORDER BY id"
)


class People:
    """All of them, in one process."""

    def __init__(self, app: Stepfast, ledger: Ledger, scenario: dict[str, Any], store: SimStore, loop: SimLoop) -> None:
        self._app = app
        self._ledger = ledger
        self._scenario = scenario
        self._store = store
        self._loop = loop
        self._runs: dict[int, Any] = {}
        self.seen: list[Seen] = []
        self._watching: list[asyncio.Task[None]] = []

    async def act(self, calm: Callable[[], None]) -> None:
        """Everything that people do, until all is over."""
        async with self._app:
            acts = [self._start(number, each) for number, each in enumerate(self._scenario["runs"])]
            acts += [self._signal(number, each) for number, each in enumerate(self._scenario["signals"])]
            acts += [self._wish(each) for each in self._scenario["wishes"]]
            await asyncio.gather(*acts, asyncio.sleep(self._scenario["horizon"]))
            calm()
            await self._see_to_the_end()
            await asyncio.gather(*self._watching, *(self._wait(run) for run in self._runs.values()))

    # -- callers -----------------------------------------------------------------------------------------------------

    async def _start(self, number: int, run: dict[str, Any]) -> None:
        await asyncio.sleep(run["at"])
        try:
            started = await self._app.start(run["workflow"], run["input"], **run.get("options", {}))
        except TROUBLE:
            return
        self._ledger.started(started.id, run["workflow"], run.get("options", {}).get("key"))
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

    # -- to the end --------------------------------------------------------------------------------------------------

    async def _see_to_the_end(self) -> None:
        sender = Sender(self._app, self._ledger, "closer", within=0)
        while rows := self._store.connection.execute(_OPEN).fetchall():
            for run_id, status, waiting_for in rows:
                if status == "paused":
                    await wish(self._app, self._ledger, run_id, "resume")
                for name in _listened_for(waiting_for):
                    await sender.send(run_id, name)
            await asyncio.sleep(1.0)


def _listened_for(waiting_for: str | None) -> list[str]:
    """The names of the signals that a run waits for."""
    parts = (waiting_for or "").split(", ")
    return [part.removeprefix("signal:") for part in parts if part.startswith("signal:")]
