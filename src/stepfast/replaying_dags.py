"""Replaying an exported dag run: which steps would be done today, given how those of the run have ended.

The functions of steps are work and are not called; their recorded ends stand for them. What is code between steps in a
workflow is in a dag its graph, the conditions of its steps, and which errors are caught. A run that is under way keeps
the graph it was started with. One that has completed is held against the graph of today, as a workflow is against its
code.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from typing import Any, cast

from .checking import DIVERGES, FITS, TOO_LONG, Replayer, Verdict, as_claimed, fits_dag
from .engine.dag import Dag, DagContext, DagStepWorkflow, DagSyncContext, DagView
from .engine.dag_run import wanted
from .engine.execution import Execution
from .engine.invocation import replay
from .engine.outcomes import decode_error
from .engine.workflow import Workflow
from .errors import AttemptTimeout, HistoryEnded, sentence
from .exporting import Exported
from .model import status
from .model.graph import APPROVAL, Graph, Stood, is_failure
from .model.payload import Payloads
from .model.records import Claimed
from .model.rows import DagStepRow
from .settings import Settings


class _Differs(Exception):
    """Where the graph of today goes another way; carries the verdict."""

    def __init__(self, detail: str, verdict: str = DIVERGES) -> None:
        super().__init__(detail)
        self.verdict = verdict


class DagReplayer(Replayer):
    """Plays one exported dag run."""

    def __init__(self, settings: Settings, payloads: Payloads, logger: logging.Logger, export: Exported) -> None:
        super().__init__(settings, payloads, logger)
        self._export = export
        self._rows = {row.name: row for row in export.dag_steps}
        self._longest = 0.0

    async def _play(self, claimed: Claimed, workflow: Workflow[Any, Any], longest: float) -> Verdict:
        self._longest, dag = longest, cast(Dag, workflow)
        row, then = self._export.run, Graph.from_text(self._export.graph or "[]")
        completed = row.status == status.COMPLETED
        if (
            row.status not in status.TERMINAL
            and (verdict := fits_dag(row, dag, then, self._export.dag_steps))[0] != FITS
        ):
            return verdict
        try:
            if completed:
                self._check_none_gone(dag.graph)
            goes_on = await self._walk(dag, dag.graph if completed else then)
        except _Differs as differs:
            return differs.verdict, str(differs)
        if completed:
            return FITS, "the same steps would be done"
        names = f"; it goes on with step {', '.join(map(repr, goes_on))}" if goes_on else ""
        return FITS, f"a dag run keeps the graph it was started with{names}"

    def _check_none_gone(self, graph: Graph) -> None:
        for row in self._rows.values():
            if row.status == status.COMPLETED and row.name not in graph.dag_steps:
                raise _Differs(f"step {row.name!r} was done, but is not in this code")

    async def _walk(self, dag: Dag, graph: Graph) -> list[str]:
        """From the first steps to the last, each decided by the ends of those before it; which of them are open."""
        left = {name: len(graph.dependencies(name)) for name in graph.dag_steps}
        met, goes_on = Counter[str](), list[str]()
        failed = any(is_failure(_outcome(row)) for row in self._settled())
        for name in graph.order:
            row = self._rows.get(name)
            goes = graph.decide(name, left[name], met[name]) if graph.dependencies(name) else "ready"
            if goes == "wait" or (failed and (row is None or row.started_at is None)):
                continue  # something before it is open; or the run has failed, and begins nothing
            if row is not None and row.status not in status.TERMINAL:
                goes_on.append(name)
                continue
            outcome = await self._end_of(dag, graph, name, ready=goes == "ready")
            for after, counts in graph.effects(name, outcome):
                left[after] -= 1
                met[after] += counts
        return goes_on

    async def _end_of(self, dag: Dag, graph: Graph, name: str, *, ready: bool) -> str:
        """How a step ended that the run has come to. It differs if it would not be done now, or would be."""
        row = self._rows.get(name)
        does = ready and await self._is_wanted(dag, graph, name)
        if row is None:
            if does:
                raise _Differs(
                    f"the run had completed, but now step {name!r} would be done, of which nothing is recorded"
                )
            return status.SKIPPED
        did = row.status != status.SKIPPED or (graph.dag_steps[name].kind == APPROVAL and row.started_at is not None)
        if did and not does:
            why = "its condition says no" if ready else "nothing that it comes after leads to it"
            raise _Differs(f"step {name!r} was done, but now {why}")
        if does and not did:
            raise _Differs(f"step {name!r} was skipped, but now it would be done")
        self._check_caught(graph, row)
        return _outcome(row)

    def _check_caught(self, graph: Graph, row: DagStepRow) -> None:
        """Whether the error that a step failed with leads to the same step, or still to none."""
        if row.error is None or row.status == status.SKIPPED:
            return
        error = decode_error(row.error, row.format, self.payloads)
        kinds = {error["type"], *error.get("bases", ())}
        now = next((to for kind, to in graph.dag_steps[row.name].catch.items() if kind in kinds), None)
        caught, _, before = _outcome(row).partition(":")
        if (before if caught == status.REASON_CAUGHT else None) != now:
            went = f"step {before!r} followed" if before else "the run failed"
            goes = f"step {now!r} would follow" if now else "the run would fail"
            raise _Differs(f"step {row.name!r} failed with {error['type']}, and {went}, but now {goes}")

    async def _is_wanted(self, dag: Dag, graph: Graph, name: str) -> bool:
        """What the condition of a step says of what is recorded, if it has any."""
        step = dag.steps.get(name)
        if step is None or step.when is None or not graph.dag_steps[name].conditional:
            return True
        row, answers = self._rows.get(name), list[bool]()
        ghost, context = self._context(graph, step, row)

        async def ask() -> None:
            answers.append(await wanted(step.when, context))

        error = await replay(ghost, ask(), self._longest)
        if isinstance(error, AttemptTimeout):
            raise _Differs(f"the condition of step {name!r}: {error}", TOO_LONG)
        if error is None:
            return answers[0]
        if isinstance(error, HistoryEnded) or (row is not None and row.status == status.FAILED):
            return True  # it asks for more than was kept of it; or it may have failed by this very error
        raise _Differs(f"the condition of step {name!r} now raises {sentence(error)}")

    def _context(
        self, graph: Graph, step: DagStepWorkflow, row: DagStepRow | None
    ) -> tuple[Execution, DagContext | DagSyncContext]:
        run = self._export.run
        claimed = as_claimed(run, [], self._export.seed)
        claimed.dag_id, claimed.ready_at = run.id, None if row is None else row.ready_at
        ghost, name = Execution(claimed, step, self), step.dag_step.name
        known = {
            each.name: (each.output, each.format, each.completed_at or 0)
            for each in self._settled()
            if each.status == status.COMPLETED
        }
        view = DagView(graph, self.payloads.plain(run.input or "null", run.format, "the input"), known)
        return ghost, (DagContext(ghost, view, name) if step.is_async else DagSyncContext(ghost, self.loop, view, name))

    def _settled(self) -> Iterable[DagStepRow]:
        return (row for row in self._rows.values() if row.status in status.TERMINAL)


def _outcome(row: DagStepRow) -> str:
    return Stood(row.status, row.reason, row.started_at is not None, False).outcome
