"""Errands: what a run asks of the database beside its journal, ridden out through outages."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from ..engine.execution import Execution
from ..errors import DatabaseUnavailable, LeaseLost
from ..model.records import Lane, NewRun, NodeRow, Outcome, Parent, StepDone, StepRecord
from ..settings import Settings
from ..store import Store
from .patience import dutifully

NewChild = Callable[[Any, Any, dict[str, Any], Parent], Coroutine[Any, Any, tuple[list[NewRun], Any]]]


class Errands:
    """Done one by one, as they are asked."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        logger: logging.Logger,
        worker_id: Callable[[], str],
        new_child: NewChild,
        ready: Callable[[list[Lane]], None],
    ) -> None:
        self._store = store
        self._settings = settings
        self._logger = logger
        self._worker_id = worker_id
        self.new_child = new_child
        self._ready = ready

    async def outcome(self, run_id: str) -> Outcome | None:
        """How a run ended, if it has."""
        found = await self._patiently(lambda: self._store.outcomes([run_id]))
        return found[0] if found else None

    async def value(self, run_id: str, key: str) -> str | None:
        """A value that a run has set, as it is kept."""
        found = await self._patiently(lambda: self._store.value(run_id, key))
        return None if found is None else found[0]

    async def error_of(self, run_id: str) -> str | None:
        """The error that a run has now."""
        row = await self._patiently(lambda: self._store.run(run_id))
        return None if row is None else row.error

    async def nodes(self, dag_id: str) -> list[NodeRow]:
        """The steps of a dag run."""
        found: list[NodeRow] = await self._patiently(lambda: self._store.nodes(dag_id))
        return found

    async def retry(self, run_id: str) -> bool:
        """Queue a failed run again; False if it cannot go on: it was undone, or is under way again."""
        lanes = await self._patiently(lambda: self._store.retry(run_id))
        if lanes is not None:
            self._ready(list(lanes))
        return lanes is not None

    async def transact(
        self,
        execution: Execution,
        place: tuple[str, int],
        call: Callable[[Any], Any],
        record: Callable[[Any], StepDone],
        timeout: float | None,
    ) -> StepRecord:
        """Ridden out: after a lost reply the record tells whether the commit came through."""
        arguments = (execution.run_id, execution.claim, place, call, record, timeout)
        try:
            made, asked = await dutifully(
                lambda: self._store.transact(self._worker_id(), *arguments),
                "transaction", self._logger, self._settings.outage_backoff_max, lambda: execution.closed is not None,
                refusable=True,
            )  # fmt: skip
        except DatabaseUnavailable:
            raise execution.closed or LeaseLost(f"run {execution.run_id} has left") from None
        execution.asked = asked or execution.asked
        return made

    async def _patiently(self, call: Callable[[], Awaitable[Any]]) -> Any:
        return await dutifully(call, "errand", self._logger, self._settings.outage_backoff_max, refusable=True)
