"""``app.replay``: an exported run against the code that is here, without any database: yesterday's run as a test."""

from __future__ import annotations

import logging
from typing import Any

from .checking import DIVERGES, FITS, TOO_LONG, UNKNOWN, CheckedRun, Replayer, Verdict, as_claimed, judge
from .engine.execution import Execution
from .engine.invocation import kind_of, replay
from .engine.options import Seconds
from .engine.workflow import Workflow
from .exporting import Exported, read_export
from .model import status
from .model.backoff import seconds
from .model.payload import Payloads
from .model.records import Claimed
from .model.status import DAG, TASK
from .replaying_dags import DagReplayer
from .settings import Settings


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
    if was_dag and export.graph is None:
        return UNKNOWN, "the graph it was started with was not stored any more"
    return None


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
