"""A flush of the journal: the fence, the records of steps, where runs go from here, and what follows for dag runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from ...model import status
from ...model.graph import Settled, is_failure
from ...model.records import Batch, FailedTry, FlushAnswer, Lane, NewRun, StepDone, StepRunning, StepWith, Transition
from ...model.run_state import RunState
from ...model.status import ASK_CANCEL, REASON_CANCELLED
from ...model.transitions.dag import BY_A_STEP, Countdown, Why, fallen, settle_dag, settled_at
from ...model.transitions.finish import gone_with, leave
from ...model.transitions.operator import NO_TRACES, end_open_step, pause
from . import callbacks, events, questions, streams
from .base import COMMIT, Flow, Rows, ask, change, forget_steps, found, lock_free, put, put_each, read, traces_of
from .remote_steps import send_out
from .starts import insert_runs

_DURATION = StepDone._fields.index("duration_ms")

Columns = tuple[tuple[Any, ...], ...]
"""Records of steps as columns, in the order of the fields of ``StepDone``."""
NO_COLUMNS: Columns = ((),) * len(StepDone._fields)


def columns_of(steps: Sequence[StepDone]) -> Columns:
    """Records of steps, turned into columns."""
    return tuple(zip(*steps, strict=True)) if steps else NO_COLUMNS


def are_usual(steps: Columns) -> bool:
    """Whether all of these have the shape that one short statement writes: completed steps of the main branch, tried
    once."""
    _, _, branches, _, _, _, kinds, statuses, _, errors, _, attempts, _, _, _, undos, losses = steps
    count = len(branches)
    return (
        statuses.count(status.COMPLETED) == count
        and branches.count("") == count
        and kinds.count("step") == count
        and attempts.count(1) == count
        and undos.count(None) == count
        and losses.count(None) == count
        and errors.count(None) == count
    )


def is_usual_end(move: Transition) -> bool:
    """Whether a run leaves with its result, and nothing else comes of it."""
    return move.status == status.COMPLETED and move.successor is None and move.settled is None


def bar(batch: Batch, answer: FlushAnswer) -> Flow[None]:
    """A run that is being cancelled starts no more children, and sends no more remote steps: they would not be
    cancelled with it. Its entries are taken out. What an earlier flush has written, whose reply was lost, is there
    already, and stays in; remote steps that went out with it are not sent again."""
    joint = batch.joint
    doomed = [e for e in joint if (e.starts or e.sends) and answer.asked.get(e.run_id) == status.ASK_CANCEL]
    sending = [e for e in joint if e.sends]
    if not doomed and not sending:
        return
    rows = yield from ask("own_steps", Rows(e.step[:4] for e in {id(e): e for e in (*doomed, *sending)}.values()))
    written = {(row[0], row[1], row[2]) for row in rows}
    barred = {id(e): e.run_id for e in doomed if (e.run_id, e.step.branch, e.step.position) not in written}
    for entry in sending:
        if (entry.run_id, entry.step.branch, entry.step.position) in written:
            entry.sends = []
    batch.joint = [e for e in batch.joint if id(e) not in barred]
    answer.barred = set(barred.values())


def record(batch: Batch, answer: FlushAnswer, all_new: bool = False) -> Flow[None]:
    """Everything in a batch that passed the fence but transitions, in the order in which it belongs."""
    rows = step_rows(batch, answer.now_ms)
    if (yield from put("record_steps", rows)) < len(rows):
        if all_new:
            raise NotAllNew
        yield from find_earlier(steps_of(batch), answer)
    yield from record_beside(batch, answer)


def find_earlier(steps: Sequence[StepDone], answer: FlushAnswer) -> Flow[None]:
    """When these steps were recorded, some of them by an earlier flush whose reply was lost. The callers that wait for
    a record get the time that a replay will find."""
    if not steps:
        return
    rows = yield from ask("recorded_at", Rows((step.run_id, step.branch, step.position) for step in steps))
    answer.earlier = {(row[0], row[1], row[2]): row[3] for row in rows if row[3] != answer.now_ms}


def record_beside(batch: Batch, answer: FlushAnswer) -> Flow[None]:
    """What goes with the recorded steps, and what is recorded beside them."""
    now = answer.now_ms
    yield from _join(batch.joint, now)
    if sending := [entry for entry in batch.joint if entry.sends]:
        yield from send_out(sending, now)
    yield from put("record_tries", [_try_row(entry, now) for entry in batch.tries])
    yield from put("record_progress", [_running_row(entry, now) for entry in _latest(batch.running)])
    yield from events.arm(batch.waits)
    if batch.streams:
        answer.full |= yield from streams.append(batch.streams, now)
    latest = {(v.run_id, v.key): v for v in batch.values}
    yield from put("set_values", [(v.run_id, v.key, v.value, v.format, now) for v in latest.values()])


def steps_of(batch: Batch) -> list[StepDone]:
    """All records of steps in a batch, those among them that something goes with last."""
    return [*batch.steps, *(entry.step for entry in batch.joint)] if batch.joint else batch.steps


def step_rows(batch: Batch, now: int) -> list[tuple[Any, ...]]:
    """All records of steps in a batch as rows, made at a time."""
    rows = [step_row(step, now) for step in batch.steps]
    return rows + [step_row(entry.step, now, _taken_by(entry)) for entry in batch.joint]


def _taken_by(entry: StepWith) -> str | None:
    """The mail or the event that a record took."""
    if entry.event is not None:
        return entry.event.id
    return entry.takes[0] if entry.takes else None


def step_row(step: StepDone, now: int, mail: str | None = None) -> tuple[Any, ...]:
    """A record that is made now, as a row: its fields in their order, without the duration; then the mail that it took,
    and when the step began and ended."""
    return (*step[:_DURATION], *step[_DURATION + 1 :], mail, now - step.duration_ms, now)


def _join(entries: Sequence[StepWith], now: int) -> Flow[None]:
    """The mail that records take, the questions that they answer, and the callbacks and children that they make."""
    yield from put("take_mail", [(entry.run_id, mail) for entry in entries for mail in entry.takes])
    yield from questions.answer([(entry.run_id, answer) for entry in entries for answer in entry.answers], now)
    yield from callbacks.make([made for entry in entries for made in entry.callbacks], now)
    yield from events.take([(entry.run_id, entry.event) for entry in entries if entry.event is not None])
    yield from put("set_attributes", [(entry.run_id, *each) for entry in entries for each in entry.attributes])
    children = [run for entry in entries for run in entry.starts]
    if children:
        yield from insert_runs(children)
        yield from put("detach", [(run.id,) for run in children if run.detached])


def _latest(entries: Iterable[StepRunning]) -> Iterable[StepRunning]:
    """One word of each step: the latest, with what an earlier one has said that it does not repeat."""
    latest: dict[tuple[str, str, int], StepRunning] = {}
    for entry in entries:
        address = (entry.run_id, entry.branch, entry.position)
        if (before := latest.get(address)) is not None:
            detail = before.detail if entry.detail is None else entry.detail
            data, format_ = (before.data, before.format) if entry.data is None else (entry.data, entry.format)
            entry = replace(entry, detail=detail, data=data, format=format_, since_ms=before.since_ms)
        latest[address] = entry
    return latest.values()


def _try_row(e: FailedTry, now: int) -> tuple[Any, ...]:
    return (
        e.run_id, e.claim, e.branch, e.position, e.attempt, e.number, e.name, e.error, e.arguments, e.format,
        now - e.duration_ms, now, now + e.retry_ms if e.retry_ms else None,
    )  # fmt: skip


def _running_row(e: StepRunning, now: int) -> tuple[Any, ...]:
    return e.run_id, e.branch, e.position, e.name, e.detail, e.data, e.format, now - e.since_ms, now


Dags = Mapping[str, RunState]
"""Dag runs that are locked in this transaction."""


class Settlement(Struct):
    """What came of the ends of steps. Nothing of it is written before ``write``."""

    runs: list[RunState] = field(default_factory=list)
    """The present states of steps and dag runs."""
    lanes: set[Lane] = field(default_factory=set)
    """Where something was made ready: steps, or dag runs whose steps are all settled."""
    marked: dict[str, str] = field(default_factory=dict)
    """The steps that are to be cancelled by the workers that hold them."""
    cancelled: list[str] = field(default_factory=list)
    """The steps that are over, or are being undone, because their dag run fails: so are their children."""
    ready: set[str] = field(default_factory=set)
    """The dag runs that are to be finished."""
    ended: list[RunState] = field(default_factory=list)
    """The dag runs that are over, and need not be finished by a worker."""

    def add(self, run: RunState) -> None:
        """Note a run whose state has changed, and its lane if it is ready."""
        self.runs.append(run)
        if run.ready:
            self.lanes.add(run.lane)

    def end(self, dag: RunState, over: RunState) -> None:
        """A dag run that was to be finished is over instead."""
        self.runs = [over if run is dag else run for run in self.runs]
        self.lanes = {run.lane for run in self.runs if run.ready}
        self.ready.discard(dag.id)
        self.ended.append(over)


def settle(ends: Sequence[Settled], dags: Dags, now: int, moving: Collection[str]) -> Flow[Settlement]:
    """Steps (``moving`` are their ids) come to their ends: make ready what waited for them, or let their runs fail."""
    ends = [end for end in ends if end.dag_id in dags]  # unless the run was deleted
    done, failed = Settlement(), fallen(ends)
    ended = Counter(end.dag_id for end in ends)
    countdown = Countdown([end for end in ends if end.dag_id not in failed and not dags[end.dag_id].failing])
    while countdown.unfinished:
        if missing := countdown.missing:
            blocked = yield from read("lock_dependents", Rows(missing))
            countdown.learn(missing, blocked.runs.values())
        countdown.count()
    for step in countdown.moved(dags, now):
        done.add(step)
    ended.update(countdown.skipped)
    yield from _close(done, dict.fromkeys(failed, BY_A_STEP), ended, dags, now, moving)
    return done


def fail(whys: Mapping[str, Why], ended: Counter[str], dags: Dags, now: int) -> Flow[Settlement]:
    """Let dag runs fail; of some of them steps have ended without an entry of their own. The worker that finishes them
    undoes what is to be undone."""
    done = Settlement()
    yield from _close(done, whys, ended, dags, now, ())
    return done


def _close(
    done: Settlement, whys: Mapping[str, Why], ended: Counter[str], dags: Dags, now: int, moving: Collection[str]
) -> Flow[None]:
    """Let runs fail that do not yet, and with them their open steps; count what has ended. Where nothing is left the
    run is ready."""
    begin = {dag_id: why for dag_id, why in whys.items() if not dags[dag_id].failing}
    if begin:
        yield from _end_open(done, list(begin), ended, dags, now, moving)
    for number, dag_id in enumerate({**ended, **begin}, 1):
        dag = settle_dag(dags[dag_id], ended[dag_id], begin.get(dag_id), settled_at(dags[dag_id], now), number)
        done.add(dag)
        if dag.ready:
            done.ready.add(dag_id)


def _end_open(
    done: Settlement, dag_ids: list[str], ended: Counter[str], dags: Dags, now: int, moving: Collection[str]
) -> Flow[None]:
    steps = [step for step in (yield from lock_open_steps(dag_ids)) if step.id not in moving]
    traces = yield from traces_of([step.id for step in steps if step.begun and not step.held])
    for number, step in enumerate(steps, 1):
        assert step.dag_id is not None
        when = settled_at(dags[step.dag_id], now)
        after = end_open_step(step, traces.get(step.id, NO_TRACES), when, number)
        done.add(after)
        if after.worker is not None:
            done.marked[step.id] = after.worker
        elif after.ended:
            ended[step.dag_id] += 1
        if not after.held and after.asked != ASK_CANCEL and after.reason == REASON_CANCELLED:
            done.cancelled.append(step.id)


def lock_open_steps(dag_ids: list[str]) -> Flow[list[RunState]]:
    """The steps of dag runs that are not settled, waited for; but for those that are being undone, which come to their
    own end."""
    found = yield from read("lock_open_steps", dag_ids)
    return [step for _, step in sorted(found.runs.items()) if not (step.ended or step.undoing)]


def write(done: Settlement, others: Sequence[RunState] = ()) -> Flow[bool]:
    """Write it, together with other runs that were decided on; whether children of cancelled steps are notified."""
    yield from change([*others, *done.runs])
    return (yield from put("tell_children", [(run_id,) for run_id in done.cancelled])) > 0


def let_go(
    worker: str, moves: Sequence[Transition], runs: Mapping[str, RunState], dags: Mapping[str, RunState],
    answer: FlushAnswer,
) -> Flow[None]:  # fmt: skip
    """Write where these runs go, and what follows for the dag runs that they are steps of."""
    now = answer.now_ms
    yield from forget_steps([(m.run_id, *address) for m in moves for address in gone_with(m)])
    yield from put("keep_traces", [(m.run_id, m.trace) for m in moves if m.trace is not None])
    after = [leave(runs[m.run_id], m, _when(m, dags, now), number) for number, m in enumerate(moves, 1)]
    ends = [m.settled for m in moves if m.settled is not None and m.status in status.TERMINAL]
    done = (yield from settle(ends, dags, now, {run.id for run in after})) if ends else Settlement()
    answer.undelivered |= yield from write(done, after)
    answer.lanes |= done.lanes
    mine = [run_id for run_id, holder in done.marked.items() if holder == worker]
    answer.asked |= dict.fromkeys(mine, status.ASK_CANCEL)
    answer.asked_elsewhere |= len(mine) < len(done.marked)
    successors = [(m.run_id, m.successor) for m in moves if m.successor is not None]
    if successors:
        yield from _continue(successors, answer)


def _when(move: Transition, dags: Mapping[str, RunState], now: int) -> int:
    """Steps of a dag run end later than those that were settled before."""
    if move.settled is None or move.settled.dag_id not in dags:
        return now
    return settled_at(dags[move.settled.dag_id], now)


def _continue(successors: list[tuple[str, NewRun]], answer: FlushAnswer) -> Flow[None]:
    """Runs that continue as others: these take over the parent, the tags, the mail, and what was asked of them and they
    left unheard: a pause holds the successor, a cancellation comes by mail."""
    yield from insert_runs([replace(run, shape=run.shape._replace(tags=()), parent=None) for _, run in successors])
    pairs = [(ended, run.id) for ended, run in successors]
    yield from put("inherit", pairs)
    yield from put("inherit_tags", pairs)
    yield from put("inherit_attributes", pairs)
    yield from put_each(("inherit_mail", "inherit_signal_ids"), pairs)
    yield from put("inherit_questions", pairs)
    yield from put("inherit_waits", pairs)
    yield from put_each(("inherit_since", "inherit_takes"), pairs)
    paused = [continuation for ended, continuation in pairs if answer.asked.get(ended) == status.ASK_PAUSE]
    if paused:
        continuations, now = yield from read("lock_runs", paused)
        yield from change([held for run in continuations.values() if (held := pause(run, now)) is not None])
    cancelled = [(continuation, ended) for ended, continuation in pairs if answer.asked.get(ended) == status.ASK_CANCEL]
    answer.undelivered |= (yield from put("cancel_continuation", cancelled)) > 0


def tell(moves: Sequence[Transition], answer: FlushAnswer) -> Flow[None]:
    """Leave word for parents of what ended, and for children of what was cancelled."""
    ended = [(m.run_id,) for m in moves if m.child and m.status in status.TERMINAL and m.successor is None]
    cancelled = [(m.run_id,) for m in moves if m.status in (status.CANCELLED, status.COMPENSATING)]
    told = yield from put("tell_parents", ended)
    told += yield from put("tell_children", cancelled)
    named = any(m.named and m.status in status.TERMINAL for m in moves)
    answer.undelivered |= told > 0 or named


Standings = dict[str, RunState]
Claims = set[tuple[str, int]]
"""Runs, and the claims under which they are written to."""
Meet = Callable[[int | None], None]
"""Told when the server was started that answers; None: there is no server."""


class Fenced(NamedTuple):
    """What may be written."""

    batch: Batch
    runs: Standings
    """The runs that passed the fence, locked in this transaction. Of some of them nothing is written all the same."""
    dags: Standings
    """The dag runs whose steps end here."""


class NotAllNew(Exception):
    """A flush of new records met one that is there already, and wrote nothing."""


def flush_new(worker: str, batch: Batch, meet: Meet) -> Flow[FlushAnswer]:
    """Write a batch whose records are expected to be new, so that none of another claim is looked for. Nothing goes
    with them, and no step of a dag ends."""
    return (yield from _flush(worker, batch, meet, all_new=True))


def is_simple(batch: Batch) -> bool:
    """Whether nothing goes with the records of a batch, and no step of a dag ends."""
    return not batch.joint and all(move.settled is None for move in batch.transitions)


def flush(worker: str, batch: Batch, meet: Meet) -> Flow[FlushAnswer]:
    """Write what passes the fence; say what did not. Where a dag run begins to fail all its open steps are locked, and
    waited for: nothing else may be in hand then, so that such ends have a transaction of their own."""
    failing = _failing(batch)
    if not failing:
        return (yield from _flush(worker, batch, meet))
    others = batch.part(lambda entry: entry.run_id not in failing)
    last = batch.part(lambda entry: entry.run_id in failing)
    if not any(others.entries()):
        return (yield from _flush(worker, last, meet))
    first = yield from _flush(worker, others, meet)
    yield COMMIT
    return first.with_that_of((yield from _flush(worker, last, meet)))


def _failing(batch: Batch) -> set[str]:
    """Steps that end here, of dag runs that fail by one of them."""
    settled = [(move.run_id, move.settled) for move in batch.transitions if move.settled is not None]
    dag_ids = {end.dag_id for _, end in settled if is_failure(end.outcome)}
    return {run_id for run_id, end in settled if end.dag_id in dag_ids}


def _flush(worker: str, batch: Batch, meet: Meet, all_new: bool = False) -> Flow[FlushAnswer]:
    """Write a batch, or as much of it as passes, in one transaction."""
    answer = FlushAnswer(0)
    claims = {(entry.run_id, entry.claim) for entry in batch.entries()}
    passed = yield from _pass(worker, batch, claims, meet, answer, all_new)
    if passed.runs:
        yield from bar(passed.batch, answer)
        yield from record(passed.batch, answer, all_new)
        yield from _move(worker, passed, answer)
    refused = claims - {(run.id, run.claim) for run in passed.runs.values()}
    if refused:
        yield from _explain(worker, refused, answer)
    return answer


# -- the fence -----------------------------------------------------------------------------------------------------


def _pass(worker: str, batch: Batch, claims: Claims, meet: Meet, answer: FlushAnswer, all_new: bool) -> Flow[Fenced]:
    """The part of the batch that this worker may write. It may not where another worker has the run; where less is
    stored of a run than was believed, or something else: then the run is lost, and nothing of it is written."""
    dags, kept_out = yield from _lock_dags(batch.transitions)
    rows = (yield from ask("fence", worker, Rows(claims))) if claims else []
    if rows:
        meet(rows[0][0])
    held, answer.now_ms = found(row[1:] for row in rows)
    answer.asked = {run.id: run.asked for run in held.values() if run.asked}
    runs = {run.id: run for run in held.values() if run.id not in kept_out}
    answer.vanished = yield from _find_vanished(batch, runs)
    answer.lost = answer.vanished | (set() if all_new else (yield from _find_foreign(batch)))
    lost = answer.lost
    kept = batch.part(lambda e: e.run_id in runs and e.claim == runs[e.run_id].claim and e.run_id not in lost)
    return Fenced(kept, runs, dags)


def _lock_dags(moves: list[Transition]) -> Flow[tuple[Standings, set[str]]]:
    """The dag runs whose steps end here; and those of the steps that have to wait for the commit of another process."""
    dag_ids = {move.settled.dag_id for move in moves if move.settled is not None}
    if not dag_ids:
        return {}, set()
    dags = (yield from lock_free(dag_ids)).runs
    missing = [dag_id for dag_id in dag_ids if dag_id not in dags]
    if not missing:
        return dags, set()
    out = {str(row[0]) for row in (yield from ask("which_exist", missing))}
    return dags, {move.run_id for move in moves if move.settled is not None and move.settled.dag_id in out}


def _find_vanished(batch: Batch, runs: Standings) -> Flow[set[str]]:
    """Of the doubtful: runs of which less is stored than was acknowledged."""
    doubtful = {run_id: batch.unverified[run_id] for run_id in runs if run_id in batch.unverified}
    if not doubtful:
        return set()
    stored = {row[0]: row[1] for row in (yield from ask("stored", list(doubtful)))}
    return {run_id for run_id, believer in doubtful.items() if stored[run_id] < believer.believed()}


def _find_foreign(batch: Batch) -> Flow[set[str]]:
    """Runs whose history is not what we believe. A conflicting record of our own claim is our own, written before its
    reply was lost; one of another claim is not."""
    addresses = Rows(step[:4] for step in steps_of(batch))
    return {row[0] for row in (yield from ask("foreign_steps", addresses))} if addresses else set()


def _explain(worker: str, refused: Claims, answer: FlushAnswer) -> Flow[None]:
    """Say why runs did not pass: they are lost, unless they are still ours; then their rows were locked just now."""
    rows = yield from ask("still_ours", worker, Rows(refused))
    answer.busy = {row[0] for row in rows}
    answer.lost |= {run_id for run_id, _ in refused} - answer.busy


# -- where runs go -------------------------------------------------------------------------------------------------


def _move(worker: str, passed: Fenced, answer: FlushAnswer) -> Flow[None]:
    moves = passed.batch.transitions
    if moves:
        yield from let_go(worker, moves, passed.runs, passed.dags, answer)
        yield from tell(moves, answer)
