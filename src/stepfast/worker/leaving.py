"""How a run leaves its worker: the entry that ends its claim is journalled, and its commit waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from ..engine import outcomes
from ..engine.execution import Execution
from ..engine.observers import ids_of
from ..engine.outcomes import encode_error
from ..errors import AttemptEnded, DatabaseRefused, LeaseLost, PayloadError, RunSuspended
from ..model import status
from ..model.records import RUN_ITSELF, FailedTry, Transition
from .cache import HistoryCache
from .graphs import Graphs
from .journal import Journal, Undecidable
from .kit import Kit
from .slots import Slots

OVER = AttemptEnded("the attempt is over")


class Leaving:
    """Whoever has come to an end of a run, by its handler or apart from it, ends it here."""

    def __init__(self, kit: Kit, journal: Journal, graphs: Graphs, slots: Slots) -> None:
        self._kit = kit
        self._payloads = kit.payloads
        self._journal = journal
        self._graphs = graphs
        self._slots = slots
        self.is_ending = slots.is_ending
        self.cache = HistoryCache(kit.settings.history_cache)
        """Records of runs that may come back here."""

    async def leave(self, execution: Execution, move: Transition) -> None:
        """Journal the entry that ends this claim, wait for its commit, forget the run."""
        if execution.closed is None:
            execution.closed = OVER
            execution.close_waits()
        self._slots.give_back(execution)
        await self._commit(execution, move)

    async def _commit(self, execution: Execution, move: Transition) -> None:
        """Journal the entry, unless that is done, and wait for its commit. Code that the handler left behind may cancel
        the task of the handler meanwhile; then another task waits."""
        try:
            if execution.parting is None:
                if execution.claimed.dag_step is not None:
                    move = await self._with_graph(execution, move)
                execution.leave(move)
            assert execution.parting is not None
            await execution.parting
        except DatabaseRefused as refusal:
            await self._end_refused(execution, refusal)
        except LeaseLost:
            pass
        except asyncio.CancelledError:  # ends here: the last thing that this task does
            if self.can_record:
                self.apart(execution, self._commit(execution, move))
                return
        self._slots.leave(execution)

    @property
    def can_record(self) -> bool:
        """Whether the journal is still written. If not, the worker or the program ends, and runs are given up."""
        return not self._journal.ends

    def apart(self, execution: Execution, ending: Coroutine[Any, Any, None]) -> None:
        """End a run by a task of its own: nothing that its code left behind knows that task."""
        execution.main.owner = execution.task = self._kit.clock.task(ending)

    async def _with_graph(self, execution: Execution, move: Transition) -> Transition:
        """What follows from the end of a step is in the graph; one whose graph is not stored cannot end, and waits."""
        if move.status not in status.TERMINAL or await self._graphs.sees(execution):
            return move
        due = execution.database_now() + int(self._kit.settings.sweep * 1000)
        return outcomes.waits_for_graph(execution, due)

    async def _end_refused(self, execution: Execution, refusal: DatabaseRefused) -> None:
        """The database would not take the result: end the run with a plain sentence instead. If that is refused too,
        the row of its dag run or its own is damaged: then it ends without anything that follows from it."""
        text = encode_error(PayloadError(f"the database refused the outcome of the run: {refusal}"), self._payloads)
        try:
            await execution.leave(outcomes.broken(execution, text, self._payloads.format))
        except DatabaseRefused:
            await self._end_alone(execution, text)
        except LeaseLost:
            pass

    async def _end_alone(self, execution: Execution, text: str) -> None:
        try:
            await self._journal.record(outcomes.broken(execution, text, self._payloads.format))
        except LeaseLost:
            pass
        except DatabaseRefused as refusal:
            if isinstance(refusal, Undecidable):
                self._journal.break_by(refusal.__cause__ or refusal)
            told = "run %s: its outcome could not be recorded"
            self._kit.logger.exception(told, execution.run_id, extra=ids_of(execution))

    def has_left(self, execution: Execution) -> None:
        """The run has left by itself already; keep its records if it may come back here."""
        if isinstance(execution.closed, RunSuspended) and self._is_sure(execution):
            records = execution.ledger.whole_history()
            if records is not None:
                self.cache.put(execution.run_id, execution.claim, records)
        if execution.parting is not None and not execution.parting.done():
            self._journal.left[execution.run_id] = execution
        self._slots.leave(execution)

    def _is_sure(self, execution: Execution) -> bool:
        """Whether its records are stored as it knows them. A call that was cancelled twice does not wait for the commit
        of its record, which is not known here before. The handler may have taken long to end. If a connection broke
        in that time and nothing was compared since, commits may be gone; and a run that was lost, or claimed again, is
        not known any more."""
        held = self._slots.find(execution.run_id) is execution and not execution.at_work
        return held and not self._journal.is_doubted(execution.run_id, execution)

    def lost(self, execution: Execution) -> None:
        """The run is not ours any more. What it has done may still be written, if nobody else has it."""
        execution.lose()
        if self._journal.has(execution.run_id, execution.claim):
            self._journal.left[execution.run_id] = execution
        self._slots.leave(execution)

    def note_attempt(self, execution: Execution, error: str) -> None:
        """The failed attempt goes into the activity log, in the same flush as what becomes of the run."""
        self._journal.note(
            FailedTry(
                execution.run_id,
                execution.claim,
                "",
                RUN_ITSELF,
                execution.claimed.attempt,
                1,
                execution.workflow.name,
                error,
                None,
                int((self._kit.clock.now() - execution.began) * 1000),
                self._payloads.format,
            )
        )
