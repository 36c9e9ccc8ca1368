"""Starts by name: a run that is the only live one of its name, or what becomes of a start that finds one there.

The name is taken by inserting the run: an index over live runs refuses a second one, and one that waits for somebody's
commit sees it then.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ...errors import AlreadyRunning, DatabaseUnavailable
from ...model.ids import child_id
from ...model.queue_config import Bound
from ...model.records import RAISE, Answer, Mail, NewRun, Unique
from ...model.status import NO_SUCH_STEP
from ...model.transitions.signals import way_to_signal
from ..answers import mailbox_full
from . import starts
from .base import Flow, Rows, ask, put, read
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
    """Insert runs that have names, with the steps of dag runs; which run each start stands for. Where that is another,
    it is sent the signal of the start. None: a name was free again when this was read, or its run had ended, so that it
    is to be begun again. ``joins``: no row that exists may be locked or changed."""
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
    if not (yield from _signal_others([each for each in others if each[1].on_conflict != RAISE], most, joins, again)):
        return None
    return {run.id: holders[run.id][0] if run.id in holders else run.id for run, _ in heads}


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


def _signal_others(others: _Others, most: int, joins: bool, again: bool) -> Flow[bool]:
    """Send the signals of starts to the runs that have their names; whether all of these still live."""
    signals = [(unique, holder, dag, unique.signal) for _, unique, (holder, dag) in others if unique.signal is not None]
    if joins:
        for unique, holder, dag, mail in signals:
            unique.answer = yield from _leave_for(holder, dag, mail, most, again)
        return True
    if signals:
        ids = sorted({holder for _, holder, _, _ in signals})
        locked = yield from read("lock_runs", ids)
        if any(each not in locked.runs or locked.runs[each].ended for each in ids):
            return False
    for unique, holder, _, mail in signals:
        unique.answer = yield from send(replace(mail, run_id=holder), again, most, unique.check)
    return True


def _leave_for(holder: str, dag: bool, mail: Mail, most: int, again: bool) -> Flow[Answer]:
    """Leave a signal with a run that has a name, to be delivered after the commit."""
    if dag:
        steps = yield from ask("step_named", holder, mail.name)
        if not steps or way_to_signal(steps[0][1]) != "take":
            return Answer("running", NO_SUCH_STEP)
    mine = _for(holder, dag, mail)
    yield from _leave(mine, most, again)
    return Answer("", done=True)


def _leave(mail: Mail, most: int, again: bool) -> Flow[None]:
    if again and (yield from ask("was_taken", mail.run_id, mail.id)):
        return
    given = (mail.run_id, mail.id, mail.name, mail.value, mail.format, mail.trace, most)
    if not (yield from ask("leave_signal", *given)) and not (yield from ask("is_there", mail.run_id, mail.id)):
        raise mailbox_full(mail.run_id, most)
