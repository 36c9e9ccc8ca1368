"""Starts by name: a run that is the only live one of its name, or what becomes of a start that finds one there.

The name is taken by inserting the run: an index over live runs refuses a second one, and one that waits for another's
commit sees it then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from ...errors import AlreadyRunning, DatabaseUnavailable
from ...model.ids import child_id
from ...model.names import START
from ...model.queue_config import Bound
from ...model.records import CANCEL, QUEUE, RAISE, RETURN, Answer, Lane, Mail, NewRun, Unique
from ...model.status import MAIL_CANCEL, MAIL_NEXT, NO_SUCH_STEP
from ...model.transitions.signals import way_to_signal
from ...model.transitions.start import take_name
from ...settings import FORMAT
from ..answers import Delivery, mailbox_full
from . import starts
from .base import Flow, Rows, ask, change, lock_free, put, read
from .signals import send

TRIES = 10
"""How often a start is begun again because the run that had its name ended just then."""


def apart(runs: Sequence[NewRun]) -> tuple[list[NewRun], list[NewRun]]:
    """Starts by name, dag runs with their steps, and the others. Dag runs are never started with others."""
    if not any(run.unique is not None for run in runs):
        return [], list(runs)
    named = [run for run in runs if run.unique is not None or run.dag_step is not None]
    return named, [run for run in runs if run.unique is None and run.dag_step is None]


def start(runs: Sequence[NewRun], most: int, joins: bool = False) -> Flow[list[str]]:
    """Insert runs; their ids, or for a key or a name already taken the id of the run that has it."""
    named, others = apart(runs)
    if not named:
        return (yield from starts.start(runs))
    owners: dict[str, str] = {}
    if others:
        owners = dict(zip([run.id for run in others], (yield from starts.start(others)), strict=True))
    for _ in range(TRIES):
        found = yield from start_named(named, most, joins)
        if found is not None:
            owners |= found
            return [owners.get(run.id, run.id) for run in runs]
    raise names_come_and_go()


def start_bounded(runs: Sequence[NewRun], most: int, bound: Bound) -> Flow[list[str]]:
    """Insert runs, all or none, and none if too many would be ready."""
    return (yield from starts.bounded(lambda: start(runs, most), runs, bound))


def names_come_and_go() -> DatabaseUnavailable:
    """What is raised if it was begun again too often."""
    return DatabaseUnavailable("other runs took the name of this start and ended, at every try; start it again")


def start_named(runs: Sequence[NewRun], most: int, joins: bool) -> Flow[dict[str, str] | None]:
    """Insert runs that have names, with the steps of dag runs; which run each start has become. Where another has the
    name, it is sent the signal of the start, or the run waits for its end. None: a name was free again when this was
    read, or its run had ended, so that it is to be begun again. ``joins``: no row that exists may be locked or changed.
    """
    heads = [(run, run.unique) for run in runs if run.unique is not None]
    again = any(unique.tried for _, unique in heads)
    for _, unique in heads:
        unique.tried, unique.holder, unique.answer = True, None, None
    all_new = yield from starts.insert_runs(runs)
    holders = {} if all_new else (yield from _holders(heads))
    if holders is None:
        return None
    others = [(run, unique, holders[run.id]) for run, unique in heads if run.id in holders]
    yield from _first_signals([each for each in heads if each[0].id not in holders], most, joins, again)
    for _, unique, (holder, _) in others:
        unique.holder = holder
        if unique.on_conflict == RAISE and unique.together:
            raise AlreadyRunning(unique.name, holder)
    if not joins and not (yield from _all_live([each for each in others if _concerns_holder(each[1])])):
        return None
    yield from _signal_others(runs, [each for each in others if each[1].on_conflict == RETURN], most, joins, again)
    waiting = [each for each in others if each[1].on_conflict in (QUEUE, CANCEL)]
    for run, _, (holder, _) in waiting:
        yield from _wait_for_name(run, holder, _with_steps(run, runs), joins)
    return {run.id: run.id for run, _ in heads} | {
        run.id: holder for run, unique, (holder, _) in others if unique.on_conflict in (RETURN, RAISE)
    }


def _concerns_holder(unique: Unique) -> bool:
    """Whether a start that finds its name taken changes something about the run that has it."""
    return unique.on_conflict in (QUEUE, CANCEL) or (unique.on_conflict == RETURN and unique.signal is not None)


def _with_steps(run: NewRun, runs: Sequence[NewRun]) -> list[NewRun]:
    """The rows of one start."""
    return [run, *(step for step in runs if step.dag_step is not None and step.dag_step.dag_id == run.id)]


_Heads = Sequence[tuple[NewRun, Unique]]
_Others = Sequence[tuple[NewRun, Unique, tuple[str, bool]]]


def _holders(heads: _Heads) -> Flow[dict[str, tuple[str, bool]] | None]:
    """Of starts that were not inserted: the runs that have their names, and whether these are dag runs. One that was
    inserted by a call whose reply was lost is there, and may have ended. None: a name is free."""
    wanted = Rows((run.shape.workflow, unique.name, run.id) for run, unique in heads)
    found = {row[0]: (row[1], bool(row[2])) for row in (yield from ask("names_held", wanted))}
    others = {run.id: found.get(run.id) for run, _ in heads if found.get(run.id, ("",))[0] != run.id}
    here = {str(row[0]) for row in (yield from ask("which_exist", list(others)))} if others else set()
    others = {run_id: holder for run_id, holder in others.items() if run_id not in here}
    holders = {run_id: holder for run_id, holder in others.items() if holder is not None}
    return holders if len(holders) == len(others) else None


def _first_signals(heads: _Heads, most: int, joins: bool, again: bool) -> Flow[None]:
    """What the runs that were inserted are started with. It is there before a worker can claim them."""
    mail = [_for(run.id, run.steps > 0, unique.signal) for run, unique in heads if unique.signal is not None]
    if again:
        for each in mail:
            yield from _leave(each, most, again)
        return
    yield from put("put_signals", [(m.run_id, m.id, m.name, m.value, m.format, m.trace, not joins) for m in mail])
    if not joins:
        yield from put("count_first", [(each.run_id,) for each in mail])


def _for(run_id: str, dag: bool, mail: Mail) -> Mail:
    """A signal for a run; of a dag run, for the step of its name."""
    return replace(mail, run_id=child_id(run_id, mail.name, 0) if dag else run_id)


def _all_live(others: _Others) -> Flow[bool]:
    """Lock the runs that have these names; whether all of them still live."""
    ids = sorted({holder for _, _, (holder, _) in others})
    locked = (yield from read("lock_runs", ids)).runs if ids else {}
    return all(each in locked and not locked[each].ended for each in ids)


def _signal_others(runs: Sequence[NewRun], others: _Others, most: int, joins: bool, again: bool) -> Flow[None]:
    """Send the signals of starts to the runs that have their names. What each would have started goes with it: a run is
    made of that, if this one ends without taking it."""
    for run, unique, (holder, dag) in others:
        if unique.signal is None:
            continue
        mail = replace(unique.signal, start=_written(_with_steps(run, runs)))
        if joins:
            unique.answer = yield from _leave_for(holder, dag, mail, most, again)
        else:
            unique.answer = yield from send(replace(mail, run_id=holder), again, most, unique.check)
            if unique.answer.done:
                yield from put("hand_on", [(holder,)])


def _written(runs: Sequence[NewRun]) -> str:
    """The rows of a start as they are kept with its signal, or of a dag run that waits for its name."""
    plain = [run if run.unique is None else replace(run, unique=Unique(run.unique.name, RETURN)) for run in runs]
    return msgspec.json.encode(plain).decode()


def _read(text: str) -> list[NewRun]:
    """The same, read; nothing where it makes no sense."""
    try:
        return msgspec.json.decode(text, type=list[NewRun])
    except (msgspec.DecodeError, RecursionError):
        return []


def _wait_for_name(run: NewRun, holder: str, rows: Sequence[NewRun], joins: bool) -> Flow[None]:
    """Insert a run that has its name when the run that has it now has ended. A dag run begins with its name: until then
    its row is that of any run that waits."""
    unique = run.unique
    assert unique is not None
    waiting = replace(run, graph=None, steps=0, graph_text=None, unique=replace(unique, waits=True))
    yield from starts.insert_runs([waiting])
    if run.steps:
        head = replace(rows[0], unique=replace(unique, holder=None, answer=None))
        text = msgspec.json.encode([head, *rows[1:]]).decode()
        yield from put("set_values", [(run.id, START, text, FORMAT, 0)])
    elif unique.signal is not None:
        yield from _first_signals([(run, unique)], 0, joins, again=False)
    if unique.on_conflict == CANCEL:
        earlier = yield from ask("waiting_for_name", run.shape.workflow, unique.name, _MOST_WAITING)
        yield from put("leave_order", [(row[0], run.id, MAIL_CANCEL) for row in earlier if row[0] != run.id])
        yield from put("leave_order", [(holder, run.id, MAIL_CANCEL)])
    elif joins:
        yield from put("leave_order", [(holder, run.id, MAIL_NEXT)])
    if not joins:
        yield from put("hand_on", [(holder,)])
    unique.answer = Answer("", done=True)


def _leave_for(holder: str, dag: bool, mail: Mail, most: int, again: bool) -> Flow[Answer]:
    """Leave a signal with a run that has a name, to be delivered after the commit."""
    if dag:
        steps = yield from ask("step_named", holder, mail.name)
        if not steps or way_to_signal(steps[0][1]) != "take":
            return Answer("running", NO_SUCH_STEP)
    yield from _leave(_for(holder, dag, mail), most, again)
    if dag:
        yield from put("leave_order", [(holder, mail.id, MAIL_NEXT)])
    return Answer("", done=True)


def _leave(mail: Mail, most: int, again: bool) -> Flow[None]:
    if again and (yield from ask("was_taken", mail.run_id, mail.id)):
        return
    given = (mail.run_id, mail.id, mail.name, mail.value, mail.format, mail.trace, mail.start, most)
    if not (yield from ask("leave_signal", *given)) and not (yield from ask("is_there", mail.run_id, mail.id)):
        raise mailbox_full(mail.run_id, most)


# -- handing a name on -------------------------------------------------------------------------------------

_MOST_WAITING = 1000
"""So many runs that wait for a name are cancelled at most by a start that takes their turn."""
_MOST_MAIL = 100
"""So many signals are moved by one transaction."""


def handing_on(limit: int) -> Flow[list[str]]:
    """Runs that have ended, and have something to hand on."""
    return [row[0] for row in (yield from ask("handing_on", limit))]


def hand_on(run_id: str) -> Flow[Delivery]:
    """Give the name of a run that has ended to the first that waits for it, or to a run made of the first start whose
    signal it has not taken, unless another has it by now. The other signals go to the run that has the name. Nothing is
    done where a row is locked: it is found again."""
    locked = yield from lock_free([run_id])
    run, lanes = locked.runs.get(run_id), set[Lane]()
    if run is None or not run.ended:
        return Delivery(set(), False, False, 0)
    [(workflow, name)] = yield from ask("name_of", run_id)
    mail = [_Handed(*row) for row in (yield from ask("handed_on", run_id, _MOST_MAIL))]
    complete = len(mail) < _MOST_MAIL
    waiting = [row[0] for row in (yield from ask("waiting_for_name", workflow, name, 2))]
    held = yield from ask("with_name", workflow, name)
    if not held and waiting:
        begun = yield from _give_name(waiting[0], locked.now)
        if begun is None:
            return Delivery(set(), False, False, 0)
        lanes |= begun
    while not held and not waiting and mail:
        made = yield from _start_for(mail[0])
        held = yield from ask("with_name", workflow, name)
        if made is None:
            complete = complete and bool(held)
            break
        lanes |= made
        mail.pop(0)
    if not held and waiting:
        held, waiting = (yield from ask("with_name", workflow, name)), waiting[1:]
    for holder, dag in held:
        yield from _move(mail, holder, bool(dag))
        if waiting or (mail and dag):
            yield from put("leave_order", [(holder, run_id, MAIL_NEXT)])
    if complete:
        yield from put("has_handed_on", [(run_id,)])
    return Delivery(lanes, False, False, 1)


class _Handed(NamedTuple):
    """A signal of a start, in the mailbox of a run that has ended or of a step of it."""

    run_id: str
    id: str
    name: str
    start: str


def _give_name(run_id: str, now: int) -> Flow[set[Lane] | None]:
    """A run that waits for a name begins; where it is ready. None: another run holds it."""
    run = (yield from lock_free([run_id])).runs.get(run_id)
    if run is None or run.ended:
        return None
    yield from put("take_name", [(run_id,)])
    kept = yield from ask("value", run_id, START)
    if not kept:
        after = take_name(run, now)
        yield from change([after])
        return {after.lane}
    rows = _read(kept[0][0])
    head, steps = rows[0], rows[1:]
    yield from put("begin_dag", [(run_id, head.graph, head.steps, now)])
    yield from starts.insert_runs(steps)
    yield from ask("forget_start", run_id)
    if head.unique is not None and head.unique.signal is not None:
        yield from _first_signals([(head, head.unique)], 0, joins=False, again=False)
    return _ready(steps)


def _start_for(mail: _Handed) -> Flow[set[Lane] | None]:
    """Make the run of a start whose signal was not taken, with the signal, which it does not hand on again; where it is
    ready. Nothing is made where the start was repeated and has made it by itself. None: its name is taken."""
    rows = _read(mail.start)
    if not rows or rows[0].unique is None:
        yield from put("take_mail", [(mail.run_id, mail.id)])
        return set()
    head = rows[0]
    new = yield from starts.insert_runs(rows)
    if not new and not (yield from ask("which_exist", [head.id])):
        return None  # the signal stays, to go to the run that has the name
    if new:
        receiver = child_id(head.id, mail.name, 0) if head.steps else head.id
        yield from put("forward", [(mail.run_id, mail.id, receiver)])
        yield from put("own_signal", [(receiver, mail.id)])
        yield from put("count_first", [(receiver,)])
    yield from put("take_mail", [(mail.run_id, mail.id)])
    return _ready(rows) if new else set()


def _ready(rows: Sequence[NewRun]) -> set[Lane]:
    begin = [run.shape for run in rows if not run.steps and (run.dag_step is None or not run.dag_step.pending)]
    return {Lane(shape.queue, shape.workflow, shape.priority) for shape in begin}


def _move(mail: Sequence[_Handed], holder: str, dag: bool) -> Flow[None]:
    """Move signals to the run that has the name, to be delivered there."""
    moved = [(each.run_id, each.id, child_id(holder, each.name, 0) if dag else holder) for each in mail]
    yield from put("forward", moved)
    yield from put("take_mail", [(each.run_id, each.id) for each in mail])
