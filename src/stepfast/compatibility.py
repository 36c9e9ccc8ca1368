"""``app.check``: replays unfinished runs with this code, to find those that it does not fit.

Their records answer in place of steps, waits and children. Nothing is written, claimed or called, so it can be done at
any time, also while workers run: best before a deploy, with the code to be deployed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import traceback
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .engine.compensation import unreachable
from .engine.dag import Dag
from .engine.dag_run import steps_gone, undos_gone
from .engine.execution import Execution
from .engine.history import CAUSES, recorded_as
from .engine.host import Recorder
from .engine.invocation import Replaying, decode_input, kind_of, replay
from .engine.workflow import Workflow
from .errors import AttemptTimeout, InvalidInput, NonDeterminismError, PayloadError, StepfastError, sentence
from .info import StepInfo, all_steps
from .model import status
from .model.backoff import seconds
from .model.forks import Lean, kept
from .model.graph import Graph, read_graph
from .model.payload import Payloads
from .model.records import Claimed, StepRecord
from .model.rows import DagStepRow, RunRow
from .model.status import TASK
from .settings import Settings
from .store import Store
from .worker.threads import REAL

if TYPE_CHECKING:
    from .app import Stepfast
    from .engine.options import Seconds
    from .run import Run

FITS = "fits"
DIVERGES = "diverges"
UNKNOWN = "unknown"
TOO_LONG = "too_long"

_UNFINISHED = (status.QUEUED, status.RUNNING, status.WAITING, status.PAUSED, status.COMPENSATING)
_PAGE = 500
"""Runs that are read at once. Of a queue that is long most may never have begun, and are passed over."""
_GRACE = 1.0
"""Seconds for code to stop before it counts as blocked."""
_BLOCKED_OFTEN = 3
"""So many runs of a workflow that block their thread are enough: each keeps it, and the others would do the same."""
_HERE = str(Path(__file__).parent)


@dataclass(frozen=True, slots=True)
class CheckedRun:
    """The result of checking one run."""

    id: str
    workflow: str
    status: str
    verdict: str
    """``fits``, ``diverges``, ``too_long``, or ``unknown``: no worker with this code executes it."""
    detail: str
    """Where it continues; or where it diverges, with what is recorded and what the code does now."""


Verdict = tuple[str, str]


class Checker:
    """Checks the runs of a store against the code of an application."""

    def __init__(self, app: Stepfast, store: Store, longest: float, partial: bool = False) -> None:
        self._app = app
        self._store = store
        self._longest = longest
        self._partial = partial
        self._replayer: Replayer | None = None
        self._blocked: Counter[str] = Counter()

    async def each(self, workflow: str | None, limit: int | None) -> AsyncGenerator[CheckedRun, None]:
        """Yield the verdict on each run, newest first."""
        left = limit
        try:
            async for row in self._unfinished(workflow, limit):
                if left == 0:
                    return
                verdict = await self._of(row)
                if verdict is not None:
                    left = None if left is None else left - 1
                    yield CheckedRun(row.id, row.workflow, row.status, *verdict)
        finally:
            if self._replayer is not None:
                await self._replayer.close()

    async def _unfinished(self, workflow: str | None, limit: int | None) -> AsyncIterator[RunRow]:
        """Yield runs that have been executed and have not ended, newest first, each once although its status may
        change. All dag runs are among them, because each keeps the graph it was started with, and all runs of workflows
        that are not in this code."""
        pages = [Pages(self._store, workflow, each, min(limit or _PAGE, _PAGE)) for each in _UNFINISHED]
        seen: set[str] = set()
        while True:
            heads = [(head.id, page) for page in pages if (head := await page.head()) is not None]
            if not heads:
                return
            row = max(heads, key=lambda head: head[0])[1].rows.popleft()
            here = row.workflow in self._app.workflows
            wanted = row.claim > 0 or row.graph is not None if here else not self._partial
            if wanted and row.id not in seen:
                seen.add(row.id)
                yield row

    async def _of(self, row: RunRow) -> Verdict | None:
        """Return the verdict on one run; None if it has ended since. A run that diverges is read again: if a worker
        executes it, run and records may have been read at different times."""
        workflow = self._app.workflows.get(row.workflow)
        if workflow is None:
            return UNKNOWN, (
                f"the application has no workflow {row.workflow!r}: only code that has it executes its runs"
            )
        if row.input is None:  # the list has left its input out
            whole = await self._store.run(row.id)
            if whole is None or whole.status in status.TERMINAL:
                return None
            row = whole
        if isinstance(workflow, Dag):
            return await self._dag(row, workflow)
        records, seed = await all_steps(self._store, row.id), await self._store.seed(row.id)
        while True:
            verdict = await self._play(as_claimed(row, records, seed), workflow)
            if verdict[0] != DIVERGES:
                return verdict
            found, now = await self._store.run(row.id), await all_steps(self._store, row.id)
            if found is None or found.status in status.TERMINAL:
                return None
            if now == records:
                return verdict
            row, records = found, now

    async def _dag(self, row: RunRow, dag: Dag) -> Verdict:
        dag_steps = await self._store.dag_steps(row.id)
        graph, why = read_graph(await self._store.graph(dag.name, row.graph or "", row.id))
        return (
            (UNKNOWN, f"the graph it was started with {why}") if graph is None else fits_dag(row, dag, graph, dag_steps)
        )

    async def _play(self, claimed: Claimed, workflow: Workflow[Any, Any]) -> Verdict:
        name = workflow.name
        if self._blocked[name] >= _BLOCKED_OFTEN:
            return TOO_LONG, f"not tried: the code of {name!r} blocks, as {_BLOCKED_OFTEN} other runs have shown"
        if self._replayer is None:
            self._replayer = Replayer(self._app.settings, self._app._payloads, self._app.logger)
        verdict = await self._replayer.play(claimed, workflow, self._longest)
        if verdict is None:
            self._blocked[name] += 1
            self._replayer = None  # its thread is lost; the next run gets another
            return TOO_LONG, f"the code blocked its thread for longer than {self._longest:g} s"
        return verdict


async def check_fork(
    app: Stepfast, handle: Run[Any], before: str | int | StepInfo, input: Any, timeout: Seconds
) -> CheckedRun:
    """Return the verdict on a run that would be executed again from a step on."""
    run, row, point = await handle._at(before, "forked")
    store, records = await app.store(), await all_steps(await app.store(), run.id)
    lean = [Lean(r.branch, r.position, r.seq, r.name, r.kind, r.status, r.undo) for r in records]
    stay = {each[:2] for each in kept(lean, point, run.id)}
    workflow = app.workflows.get(row.workflow)
    if workflow is None:
        return CheckedRun(
            run.id, row.workflow, row.status, UNKNOWN, f"the application has no workflow {row.workflow!r}"
        )
    if input is not None:
        connected = await app._connect()
        row.input = await connected.planner.input_text(connected, row.workflow, input)
        row.format = app._payloads.format
    row.undoing = False
    claimed = as_claimed(row, [r for r in records if (r.branch, r.position) in stay], await store.seed(run.id))
    replayer = Replayer(app.settings, app._payloads, app.logger)
    try:
        longest = seconds(timeout, "the timeout of check()")
        verdict = await replayer.play(claimed, workflow, longest)
    finally:
        await replayer.close()
    blocked = TOO_LONG, f"the code blocked its thread for longer than {longest:g} s"
    return CheckedRun(run.id, row.workflow, row.status, *(verdict or blocked))


class Pages:
    """The runs of one status, newest first, a page at a time."""

    def __init__(self, store: Store, workflow: str | None, where: str, size: int) -> None:
        self._store = store
        self._workflow = workflow
        self._status = where
        self._size = size
        self.rows: deque[RunRow] = deque()
        self._before: str | None = None
        self._more = True

    async def head(self) -> RunRow | None:
        """The next one, without taking it."""
        if not self.rows and self._more:
            page = await self._store.runs(
                workflow=self._workflow, status=self._status, before=self._before, limit=self._size
            )
            self.rows.extend(page)
            self._more = len(page) == self._size
            self._size = _PAGE  # a small limit needs no further page, unless most runs are passed over
            self._before = page[-1].id if page else None
        return self.rows[0] if self.rows else None


class Replayer(Recorder):
    """Replays one run at a time in a thread with its own event loop, so that blocking code can be abandoned. To the
    code it looks like a worker, but it writes nothing."""

    def __init__(self, settings: Settings, payloads: Payloads, logger: logging.Logger) -> None:
        super().__init__(settings, payloads, logger, REAL)
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(lambda *_: None)  # errors of abandoned code are ignored
        self._handlers = REAL.pool("check")
        self._thread = threading.Thread(target=self.loop.run_forever, name="stepfast-check", daemon=True)
        self._thread.start()
        self.loop_thread = self._thread.ident or 0

    async def play(self, claimed: Claimed, workflow: Workflow[Any, Any], longest: float) -> Verdict | None:
        """Return the verdict on a run; None if its code blocks the thread."""
        playing = asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(self._play(claimed, workflow, longest), self.loop)
        )
        done, _ = await asyncio.wait((playing,), timeout=longest + _GRACE)
        return playing.result() if done else None

    async def _play(self, claimed: Claimed, workflow: Workflow[Any, Any], longest: float) -> Verdict:
        if workflow.kind == TASK:
            return self._task(claimed, workflow)
        ghost = Execution(claimed, workflow, self)
        return judge(ghost, await replay(ghost, kind_of(workflow).perform(ghost, self._handlers.submit), longest))

    def _task(self, claimed: Claimed, workflow: Workflow[Any, Any]) -> Verdict:
        """Check the input of a task, which is executed from its beginning: it has no records."""
        try:
            if workflow.takes_input:
                decode_input(Execution(claimed, workflow, self))
        except StepfastError as error:
            return DIVERGES, str(error)
        return FITS, "a task is executed from its beginning"

    async def close(self) -> None:
        """Stop what is left, and end the thread."""
        asyncio.run_coroutine_threadsafe(self._stop(), self.loop)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join, _GRACE)
        self._handlers.close()
        if not self._thread.is_alive():
            self.loop.close()

    async def _stop(self) -> None:
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=_GRACE / 2)
        self.loop.stop()


def as_claimed(row: RunRow, records: list[StepRecord], seed: str | None) -> Claimed:
    """The run as a worker that claims it now would be given it."""
    return Claimed(
        id=row.id,
        workflow=row.workflow,
        queue=row.queue,
        priority=row.priority,
        claim=row.claim,
        attempt=row.attempt,
        first_attempt=row.attempt,
        losses=row.losses,
        wakes=0,
        format=row.format,
        input=row.input or "null",
        max_attempts=row.max_attempts,
        timeout_ms=None,
        deadline_in_ms=None,
        started_at=row.started_at or row.created_at,
        place=0,
        last_version=row.version,
        undoing=row.undoing,
        parent_id=row.parent_id,
        now_ms=row.now_ms,
        seed=seed or "",
        records=records,
    )


def fits_dag(row: RunRow, dag: Dag, graph: Graph, dag_steps: list[DagStepRow]) -> Verdict:
    """Whether the code can finish a dag run that goes by this graph."""
    gone = steps_gone(dag, graph, dag_steps)
    if gone:
        names = ", ".join(repr(name) for name in gone)
        return DIVERGES, (
            f"step {names} of the graph it was started with is not in this code, so no worker would execute it: keep "
            "the old steps until such runs have ended, or cancel them"
        )
    if row.undoing and (lost := undos_gone(dag, graph, dag_steps)):
        return DIVERGES, f"the undo of step {lost[0]!r} is not in this code"
    return FITS, "a dag run keeps the graph it was started with"


# -- what a replay says ---------------------------------------------------------------------------------------------


def judge(ghost: Execution, error: BaseException | None) -> Verdict:
    """Return the verdict on a replay; if the code fits, with a note on arguments that differ from the recorded ones."""
    verdict, detail = _verdict(ghost, error)
    met = ghost.replaying or Replaying()
    if verdict == FITS and met.other_arguments:
        first, more = met.other_arguments[0], len(met.other_arguments) - 1
        others = f" and {more} more" if more else ""
        detail += (
            f"; but {first}{others} is given other arguments than are recorded: do they come from outside of steps?"
        )
    return verdict, detail


def _verdict(ghost: Execution, error: BaseException | None) -> Verdict:
    if ghost.diverged is not None:
        return DIVERGES, str(ghost.diverged)
    if isinstance(error, AttemptTimeout):
        return TOO_LONG, str(error)
    if isinstance(error, (InvalidInput, PayloadError)):
        return DIVERGES, str(error)  # the input, or a recorded result, is not of the type that the code says now
    if ghost.claimed.undoing and (missing := unreachable(ghost, ghost.undoable)):
        return DIVERGES, "; ".join(missing)
    if ghost.replaying is not None and (beyond := ghost.replaying.beyond) is not None:
        # What the code does after that does not count.
        return _at_the_end(ghost, f"the code goes on with {beyond.kind} {beyond.name!r}", beyond.line)
    if ghost.successor is not None:
        return FITS, "it would go on as a new run (ctx.continue_as)"
    if error is not None:
        return _at_the_end(ghost, f"the code raises {sentence(error)}", _line(error))
    try:
        ghost.history.check_all_taken()
    except NonDeterminismError as left:
        return DIVERGES, str(left)
    return FITS, "it would return"


def _at_the_end(ghost: Execution, what: str, line: str) -> Verdict:
    """Return the verdict on code that ended: it fits if no record is left."""
    left = ghost.history.first_left()
    if left is None:
        return FITS, f"{what} (at {line})"
    return DIVERGES, (f"{recorded_as(left)}, but {what} (at {line}) before it. {CAUSES}")


def _line(error: BaseException) -> str:
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(_HERE):
            return f"{Path(frame.filename).name}:{frame.lineno}"
    return "an unknown line"
