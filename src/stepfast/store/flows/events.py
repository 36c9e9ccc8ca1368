"""Events: numbered after their commit, matched with the runs that wait and the workflows that they start.

Publishing only inserts. One worker at a time numbers what is new, commits, and then looks who waits: a run that began
to wait before that look is woken, and a run that began later finds the event, because its number was committed before.
What was numbered and not yet matched is known from the row of the order, so that a worker may die anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ...model.records import EventTaken, EventWait, NewRun
from .base import COMMIT, Flow, Rows, ask, put
from .starts import insert_runs

MICROSECONDS = 1000
"""Numbers that belong to one millisecond."""
LAST = 253402300799999 * MICROSECONDS
"""No number is larger, also if the time in a row is wrong."""
FIRST_ID = "00000000-0000-0000-0000-000000000000"
"""An id before that of every run."""


class NewEvent(NamedTuple):
    """An event that is published, in the order of its columns."""

    id: str
    made: str
    name: str
    key: str
    event_id: str
    data: str
    format: int


class Reached(NamedTuple):
    """How far waking has come for a batch of events that many runs wait for."""

    matched: int
    """The number before the batch."""
    name: str
    key: str
    run_id: str


class Matched(NamedTuple):
    """What became of new events."""

    moved: int
    """How many were numbered or matched, or runs woken."""
    woken: int = 0
    """How many runs are being woken: by mail that is to be delivered."""
    starts: int = 0
    """How many runs are to be started."""
    reached: Reached | None = None
    """From where the next call continues, if more runs wait than one transaction wakes."""


class EventStart(NamedTuple):
    """A run that an event starts, with the rows of its start."""

    event_id: str
    workflow: str
    runs: list[NewRun]


def publish(rows: Sequence[NewEvent]) -> Flow[None]:
    """Publish events; what is there already is left as it is."""
    yield from put("publish", rows)


def subscribe(pairs: Sequence[tuple[str, str]]) -> Flow[None]:
    """Store which events (by their names) start which workflows."""
    yield from put("subscribe", sorted(pairs))


# -- numbers and matches -------------------------------------------------------------------------------------------


def match(limit: int, reached: Reached | None, new_id: Callable[[], str]) -> Flow[Matched]:
    """Number a batch of new events, and match a batch of numbered ones; nothing, while another worker does."""
    order = yield from ask("lock_event_order")
    if not order:
        return Matched((yield from put("make_event_order", [(1,)])))
    given, matched = order[0]
    numbered = 0
    if given == matched:
        numbered, given = yield from _number(given, matched, limit)
        if not numbered:
            return Matched(0)
        yield COMMIT  # who begins to wait from here on finds these
        order = yield from ask("lock_event_order")
        if not order:
            return Matched(numbered)  # the worker that has it continues with them
        given, matched = order[0]
    rows = yield from ask("unmatched_events", matched, given, limit)
    done = yield from _wake(rows, matched, limit, reached, new_id)
    if done.reached is not None:
        return done._replace(moved=done.moved + numbered)
    starts = yield from _put_starts(rows)
    yield from ask("move_event_order", given, rows[-1][1] if len(rows) == limit else given)
    return Matched(numbered + len(rows) + 1, done.woken, starts)


def _number(given: int, matched: int, limit: int) -> Flow[tuple[int, int]]:
    """Number new events: how many, and the last number."""
    numbers = list[tuple[str, int]]()
    for event_id, published_at in (yield from ask("new_events", limit)):
        given = min(max(given + 1, published_at * MICROSECONDS), LAST)
        numbers.append((event_id, given))
    if numbers:
        yield from put("number_events", numbers)
        yield from ask("move_event_order", given, matched)
    return len(numbers), given


def _wake(
    rows: Sequence[Any], matched: int, limit: int, reached: Reached | None, new_id: Callable[[], str]
) -> Flow[Matched]:
    """Wake runs that wait for these events. If more do than one transaction wakes, they are gone through in their
    order, so that those who wait again at once keep none of the others waiting."""
    specs = sorted({(row[2], key) for row in rows for key in (row[3], "")})
    if reached is not None and reached.matched != matched:
        reached = None  # another worker continued with it
    waits: list[Any] = []
    last: Reached | None = None
    if specs and reached is None:
        waits = yield from ask("armed_waits", Rows(specs), limit)
    if reached is not None or len(waits) == limit:
        waits = []
        name, key, run_id = reached[1:] if reached is not None else (*specs[0], FIRST_ID)
        for spec in specs:
            if spec < (name, key):
                continue
            after = run_id if spec == (name, key) else FIRST_ID
            waits += yield from ask("armed_waits_of", *spec, after, limit - len(waits))
            if len(waits) == limit:
                last = Reached(matched, *spec, waits[-1][0])
                break
    runs = dict.fromkeys(row[0] for row in waits)
    yield from put("wake_by_event", [(run_id, new_id()) for run_id in runs])
    yield from put("disarm_waits", [(row[0], row[1], row[2]) for row in waits])
    return Matched(len(waits), len(runs), reached=last)


def _put_starts(rows: Sequence[Any]) -> Flow[int]:
    """Note what these events start; how many."""
    names = sorted({row[2] for row in rows})
    known = (yield from ask("subscriptions", names)) if names else []
    starts = [
        (event_id, workflow, name)
        for event_id, _, name, _, published_at in rows
        for of_name, workflow, since in known
        if of_name == name and published_at >= since
    ]
    yield from put("put_event_starts", starts)
    return len(starts)


# -- runs that events start ----------------------------------------------------------------------------------------


def start(starts: Sequence[EventStart]) -> Flow[list[EventStart]]:
    """Start runs and note that they were started, in one transaction; those that another worker has in hand, or has
    started, are left out."""
    addresses = sorted((each.event_id, each.workflow) for each in starts)
    free = {(row[0], row[1]) for row in (yield from ask("lock_event_starts", Rows(addresses)))}
    ours = [each for each in starts if (each.event_id, each.workflow) in free]
    if ours:
        yield from insert_runs([run for each in ours for run in each.runs])
        yield from put("started_by_event", [(each.event_id, each.workflow, each.runs[0].id) for each in ours])
    return ours


def fail_start(event_id: str, workflow: str, error: str, wait_ms: int) -> Flow[None]:
    """Note why a run could not be started; it is tried again later."""
    yield from put("fail_event_start", [(event_id, workflow, error, wait_ms)])


# -- retention -----------------------------------------------------------------------------------------------------

_OF_EVENTS = ("remove_starts_of_events", "remove_takes_of_events", "remove_events")


def remove(keep_ms: int, limit: int) -> Flow[int]:
    """Remove a batch of events that are old enough, with what belongs to them; how many. In the end subscriptions go
    that are declared no more."""
    rows = [(row[0],) for row in (yield from ask("old_events", keep_ms, limit))]
    for name in _OF_EVENTS:
        yield from put(name, rows)
    if len(rows) < limit:
        yield from ask("forget_subscriptions", keep_ms)
    return len(rows)


# -- in a flush ----------------------------------------------------------------------------------------------------


def arm(waits: Sequence[EventWait]) -> Flow[None]:
    """Runs are to be woken by events."""
    yield from put("arm_waits", sorted({(wait.run_id, wait.name, wait.key) for wait in waits}))


def take(taken: Sequence[tuple[str, EventTaken]]) -> Flow[None]:
    """Runs take events."""
    yield from put("take_events", [(run_id, event.id, event.waited) for run_id, event in taken])
