"""``run.export`` and ``app.replay``: a run as JSON, and what today's code makes of it, without a database."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from .compatibility import DIVERGES, FITS, TOO_LONG, UNKNOWN, CheckedRun, Replayer, Verdict, as_claimed, fits_dag, judge
from .engine.dag import Dag, DagContext, DagStepWorkflow, DagSyncContext, DagView
from .engine.dag_run import wanted
from .engine.execution import Execution
from .engine.invocation import kind_of, replay
from .engine.options import Seconds
from .engine.outcomes import decode_error
from .engine.workflow import Workflow
from .errors import AttemptTimeout, ConfigurationError, HistoryEnded, RunNotFound, sentence
from .info import all_steps
from .model import status
from .model.backoff import seconds
from .model.graph import APPROVAL, DagStepState, Graph, is_failure, read_graph
from .model.payload import Payloads
from .model.records import Claimed, StepRecord
from .model.rows import DagStepRow, RunRow
from .model.status import DAG, TASK
from .settings import Settings
from .store import Store

MARK = "stepfast_export"
VERSION = 1


class Exported(msgspec.Struct):
    """What is in an export."""

    run: RunRow
    steps: list[StepRecord]
    seed: str | None = None
    graph: str | None = None
    """Of a dag run: the graph it goes by."""
    dag_steps: list[DagStepRow] = []
    """Of a dag run: its steps, and how they have ended."""
    stepfast_export: int = VERSION


async def export_run(store: Store, run_id: str) -> dict[str, Any]:
    """Everything that a replay needs of a run, as plain values that JSON can hold."""
    row = await store.run(run_id)
    if row is None:
        raise RunNotFound(run_id)
    if row.dag_id is not None:
        raise ConfigurationError(f"run {run_id} is a step of dag run {row.dag_id}: export that")
    steps = sorted(await all_steps(store, run_id), key=lambda step: (step.branch, step.position))
    exported = Exported(row, steps, await store.seed(run_id))
    if row.graph is not None:
        exported.graph = await store.graph(row.workflow, row.graph, run_id)
        exported.dag_steps = await store.dag_steps(run_id)
    made: dict[str, Any] = msgspec.to_builtins(exported)
    return made


def read_export(given: object) -> Exported:
    """An export again: the values themselves, or their JSON."""
    try:
        if isinstance(given, (str, bytes, bytearray)):
            given = msgspec.json.decode(given)
        if not isinstance(given, Mapping) or MARK not in given:
            raise ConfigurationError(
                "this is no export of a run: make one by `await run.export()` or `stepfast export`"
            )
        if given[MARK] != VERSION:
            raise ConfigurationError(f"this export has the form {given[MARK]!r}; this version reads form {VERSION}")
        return msgspec.convert(given, Exported)
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"this is no export of a run: {error}") from None


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
        row, then = self._export.run, read_graph(self._export.graph).graph or Graph([])
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
    return DagStepState(row.status, row.reason, row.started_at is not None, False).outcome


class ReplayVerbs:
    """The part of the application that replays exported runs."""

    settings: Settings
    logger: logging.Logger
    workflows: dict[str, Workflow[Any, Any]]
    _payloads: Payloads

    async def replay(self, exported: Any, *, timeout: Seconds = 10.0) -> CheckedRun:
        """Replay a run that ``run.export()`` or ``stepfast export`` has written, as values or as JSON, against this
        code: its records answer in place of steps, and nothing is done. The verdict is ``fits`` or ``diverges``, as
        that of ``app.check``; a run that had completed must also come to the same result. Of a dag run the graph and
        the conditions are asked which steps would be done."""
        export = read_export(exported)
        row, longest = export.run, seconds(timeout, "the timeout of replay()")
        workflow = self.workflows.get(row.workflow)
        if workflow is None:
            detail = f"the application has no workflow {row.workflow!r}"
            return CheckedRun(row.id, row.workflow, row.status, UNKNOWN, detail)
        if refused := _unlike(export, workflow):
            return CheckedRun(row.id, row.workflow, row.status, *refused)
        kind = RunReplayer if row.graph is None else DagReplayer
        replayer = kind(self.settings, self._payloads, self.logger, export)
        try:
            verdict = await replayer.play(as_claimed(row, export.steps, export.seed), workflow, longest)
        finally:
            await replayer.close()
        blocked = TOO_LONG, f"the code blocked its thread for longer than {longest:g} s"
        return CheckedRun(row.id, row.workflow, row.status, *(verdict or blocked))


class RunReplayer(Replayer):
    """Plays one exported run; one that had completed, to the same end."""

    def __init__(self, settings: Settings, payloads: Payloads, logger: logging.Logger, export: Exported) -> None:
        super().__init__(settings, payloads, logger)
        self._row = export.run

    async def _play(self, claimed: Claimed, workflow: Workflow[Any, Any], longest: float) -> Verdict:
        if workflow.kind == TASK:
            return self._task(claimed, workflow)
        ghost, results = Execution(claimed, workflow, self), []

        async def perform() -> None:
            results.append(await kind_of(workflow).perform(ghost, self._handlers.submit))

        error = await replay(ghost, perform(), longest)
        verdict = judge(ghost, error)
        if verdict[0] == FITS and self._row.status == status.COMPLETED and ghost.successor is None:
            return self._same_end(ghost, verdict, results, error)
        return verdict

    def _same_end(self, ghost: Execution, verdict: Verdict, results: list[Any], error: BaseException | None) -> Verdict:
        beyond = None if ghost.replaying is None else ghost.replaying.beyond
        if beyond is not None or error is not None or not results:
            return DIVERGES, f"the run had completed, but now {verdict[1]}"
        row, payloads = self._row, self.payloads
        text = kind_of(ghost.workflow).encode_result(ghost, results[0])
        now = payloads.plain(text, payloads.format, "the result")
        form = row.format if row.output_format is None else row.output_format
        before = payloads.plain(row.output or "null", form, "the recorded result")
        if now != before:
            return DIVERGES, f"the run had returned {_brief(before)}, but now it would return {_brief(now)}"
        return FITS, "it would return the same result"


def _unlike(export: Exported, workflow: Workflow[Any, Any]) -> Verdict | None:
    """Why a run cannot be played by the code that has its name, if it is of another kind."""
    name, was_dag = export.run.workflow, export.run.graph is not None
    if was_dag != (workflow.kind == DAG):
        was = DAG if was_dag else "workflow or a task"
        return DIVERGES, f"{name!r} was a {was}, and is a {workflow.kind} in this code"
    if was_dag and (why := read_graph(export.graph).why) is not None:
        return UNKNOWN, f"the graph it was started with {why}"
    return None


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
