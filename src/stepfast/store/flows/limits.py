"""Claims from limited queues, and the configuration of queues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from ...model.queue_config import Decision, Gate, Rate, written
from ...model.rate_limiter import (
    NOTHING,
    Admission,
    Candidate,
    Choice,
    Count,
    KeysSeen,
    Room,
    Usage,
    WantedRuns,
    begun,
    choose,
    free_at_once,
    free_starts,
    is_open,
    logged_at,
)
from ...model.records import Claimed, Lane
from ...model.run_state import sooner
from ...settings import SUSPECT_LOSSES, Settings
from .base import COMMIT, Ask, Flow, PutAndAsk, Rows, ask, put
from .claims import claimed, in_order, read_claimed, with_history


def read_gate(row: Any) -> Gate:
    """The columns come in the order of the fields."""
    gate = Gate(*row)
    gate.paused = bool(gate.paused)
    return gate


def change_queue(name: str, decide: Decision) -> Flow[tuple[Gate, Gate]]:
    """One queue; how it was, and how it is now."""
    yield from put("add_queue", [(name,)])
    before = read_gate((yield from ask("lock_queue", name))[0][:-1])
    [(now,)] = yield from ask("now")
    after = decide(before, now)
    yield from put("write_queue", [written(after)])
    return before, after


def declare_queues(wanted: Mapping[str, Decision]) -> Flow[list[tuple[Gate, Gate]]]:
    """Several, in the order of their names, so that two processes never wait for each other in a circle. A row that
    says the same already is left alone: every process that begins comes by."""
    changed = []
    for name in sorted(wanted):
        rows = yield from ask("queue", name)
        if rows and _agrees(read_gate(rows[0]), wanted[name]):
            continue
        changed.append((yield from change_queue(name, wanted[name])))
    return changed


def _agrees(gate: Gate, decide: Decision) -> bool:
    return decide(gate, 0).declared == gate.declared


_KEYS = 200
"""Keys that one claim reads; the next one continues behind them."""
_UNKEYED = 1000
"""Runs of a lane that one claim looks through for those without a key; the next one continues behind them."""
_PRUNED_EVERY_MS = 10_000


def claim_limited(
    worker: str, token: int, want: WantedRuns, again: bool, settings: Settings, remembered: Mapping[str, int]
) -> Flow[Admission]:
    """Take what the limits allow, and bring histories along when the row of the queue is free again. ``again``: the
    same was asked before, and the reply may have been lost."""
    done = yield from _admit(worker, token, want, again, settings.claim_bytes)
    if any(run.claim > 1 or not run.seed for run in done.runs):
        yield COMMIT
        yield from with_history(worker, done.runs, remembered, settings)
    return done


def _admit(worker: str, token: int, want: WantedRuns, again: bool, most_bytes: int) -> Flow[Admission]:
    if again and (taken := _limited((yield from claimed(worker, token)))):
        return Admission(taken, left=True, again=True, keys_seen=want.keys_seen)
    rows = yield from ask("lock_queue", want.queue)
    gate, now = (read_gate(rows[0][:-1]), rows[0][-1]) if rows else (Gate(want.queue), 0)
    if gate.paused or not gate.limited:
        return Admission(limited=False)
    usage = yield from _usage(gate, now)
    if free_at_once(gate.limits, usage.whole, want.room) == 0:
        return Admission(left=True, keys_seen=want.keys_seen)
    front = yield from _front(gate, want, usage)
    choice = choose(front.candidates, gate.limits, usage, Room(want.room, most_bytes))
    taken = yield from _take(worker, token, choice, want)
    # They began no later than their rows were read: so much later than this the next may begin.
    now = max((run.now_ms for run in taken), default=usage.now)
    yield from _log(gate, begun(choice.taken, (run.id for run in taken)), now)
    return _admission(taken, choice, front, usage, want)


def _admission(taken: list[Claimed], choice: Choice, front: _Front, usage: Usage, want: WantedRuns) -> Admission:
    missed = len(taken) < len(choice.taken)  # their rows are locked
    full = len(taken) == want.room
    next_at = sooner(choice.next_at, front.next_at)
    return Admission(
        taken,
        left=choice.left or missed or full or front.more,
        again=not full and (choice.cut_short or front.keys_seen != KeysSeen() or bool(front.seen)),
        wait_ms=None if next_at is None else max(0, next_at - usage.now),
        keys_seen=front.keys_seen,
        seen=dict(front.seen),
    )


def measure(queue: str, key: str | None) -> Flow[tuple[Gate, Usage]]:
    """What is said about a queue, and what counts against its limits: for people."""
    rows = yield from ask("queue", queue)
    gate = read_gate(rows[0]) if rows else Gate(queue)
    [(now,)] = yield from ask("now")
    usage = yield from _count_whole(gate, now)
    yield from _count_keys(gate, usage, [key])
    return gate, usage


# -- counting ----------------------------------------------------------------------------------------------


def _usage(gate: Gate, now: int) -> Flow[Usage]:
    """What counts against the limits of the whole queue. Runs that were claimed before it was limited count too."""
    if gate.may_hold_uncounted(now):
        yield from put("count_in", [(gate.name,)])
        yield from put("note_counted", [(gate.name, now)])
    return (yield from _count_whole(gate, now))


def _count_whole(gate: Gate, now: int) -> Flow[Usage]:
    """``now`` was read before the queue was locked: windows of rates need the time after that."""
    limits = gate.limits
    if limits.concurrency is None and limits.rate is None and limits.key_rate is None:
        return Usage(now)
    [(now, *row)] = yield from ask("gauge", gate.name, limits.concurrency is not None, *_span(limits.rate))
    return Usage(now, _count(row, limits.rate))


def _count_keys(gate: Gate, usage: Usage, keys: Iterable[str | None]) -> Flow[None]:
    """What counts against the limits of these keys."""
    wanted = sorted({key for key in keys if key is not None})
    if wanted and gate.limits.on_keys:
        rate = gate.limits.key_rate
        rows = yield from ask("key_gauge", gate.name, wanted, *_span(rate), usage.now)
        usage.keys = {row[0]: _count(row[1:], rate) for row in rows}


def _span(rate: Rate | None) -> tuple[int, int]:
    return (0, 0) if rate is None else (rate.count, rate.per_ms)


def _count(row: Sequence[int | None], rate: Rate | None) -> Count:
    running, started, next_at = row
    return Count(running or 0, started or 0, None if rate is None or next_at is None else next_at + rate.per_ms)


# -- the front of the queue --------------------------------------------------------------------------------


class _Front(NamedTuple):
    """The front of a queue: the runs that come first."""

    candidates: list[Candidate]
    more: bool
    """Whether others may come behind them."""
    next_at: int | None = None
    """When a rate allows one of those that were not looked at because of it."""
    keys_seen: KeysSeen = KeysSeen()
    seen: Mapping[Lane, int] = MappingProxyType({})
    """Lanes in which more has to be looked through for runs without a key, and from where."""


def _front(gate: Gate, want: WantedRuns, usage: Usage) -> Flow[_Front]:
    if want.suspects:
        return (yield from _suspects(gate, want, usage))
    limits, room = gate.limits, free_at_once(gate.limits, usage.whole, want.room)
    found = []
    if limits.rate is not None or limits.key_rate is not None:
        workflows = sorted({lane.workflow for lane, _ in want.lanes})
        found = yield from _candidates("ready_resuming", want.queue, workflows, room)
    if free_starts(limits.rate, usage.whole, room) == 0:
        yield from _count_keys(gate, usage, [run.key for run in found])
        return _Front(found, True, usage.whole.next_at)
    if limits.on_keys:
        return (yield from _front_of_keys(gate, want, usage, room, found))
    lanes = Rows((lane.workflow, lane.priority, mark) for lane, mark in want.lanes)
    first = yield from _candidates("ready_limited", want.queue, lanes, room)
    first = sorted(first, key=lambda run: (-run.priority, run.place))[:room]  # some bring as many of each lane
    return _Front(found + first, len(first) == room)


def _front_of_keys(gate: Gate, want: WantedRuns, usage: Usage, room: int, found: list[Candidate]) -> Flow[_Front]:
    """The first of each of a bounded number of keys; and of those that have none."""
    limits = gate.limits
    unkeyed, seen = yield from _unkeyed(want, room)
    found = found + unkeyed
    pairs, keys_seen = yield from _next_keys(want)
    yield from _count_keys(gate, usage, [key for _, key in pairs] + [run.key for run in found])
    counts = {key: usage.keys.get(key, NOTHING) for _, key in pairs}
    open_ = {key for key, count in counts.items() if is_open(limits, count)}
    if open_:
        most = min(room, limits.key_concurrency or room)
        wanted = Rows(pair for pair in pairs if pair[1] in open_)
        found += yield from _candidates("ready_of_keys", want.queue, wanted, most)
    next_at = min((count.next_at for key, count in counts.items() if key not in open_ and count.next_at), default=None)
    return _Front(found, bool(pairs or found or seen), next_at, keys_seen, seen)


def _unkeyed(want: WantedRuns, room: int) -> Flow[tuple[list[Candidate], dict[Lane, int]]]:
    """The first runs without a key, among so many of each lane; and where to look on in lanes that have none there."""
    lanes = Rows((lane.workflow, lane.priority, want.seen.get(lane, 0)) for lane, _ in want.lanes)
    rows = (yield from ask("ready_unkeyed", want.queue, lanes, room, _UNKEYED, _UNKEYED - 1)) if lanes else []
    found = _read_candidates(row for row in rows if row[0] is not None)
    have = {(run.workflow, run.priority) for run in found}
    return found, {
        Lane(want.queue, workflow, priority): place + 1
        for run_id, workflow, priority, place, *_ in rows
        if run_id is None and (workflow, priority) not in have
    }


def _next_keys(want: WantedRuns) -> Flow[tuple[list[tuple[str, str]], KeysSeen]]:
    """The keys behind the last one seen that have something ready, workflow by workflow; and how far they are seen
    then. After the last key it begins again."""
    pairs: list[tuple[str, str]] = []
    for workflow in sorted({lane.workflow for lane, _ in want.lanes}):
        if workflow < want.keys_seen.workflow:
            continue
        after = want.keys_seen.key if workflow == want.keys_seen.workflow else ""
        rows = yield from ask("next_keys", want.queue, workflow, after, _KEYS - len(pairs))
        pairs += [(workflow, row[0]) for row in rows]
        if len(pairs) == _KEYS:
            return pairs, KeysSeen(*pairs[-1])
    return pairs, KeysSeen()


def _suspects(gate: Gate, want: WantedRuns, usage: Usage) -> Flow[_Front]:
    """The runs that workers have died with, those with the fewest losses, as many as there is room for."""
    workflows = sorted(want.versions)
    found = yield from _candidates("ready_suspects", want.queue, workflows, max(want.suspects))
    group: list[Candidate] = []
    if found:
        fewest = min(run.losses for run in found)
        room = want.suspects[min(fewest - SUSPECT_LOSSES, len(want.suspects) - 1)]
        group = [run for run in found if run.losses == fewest][:room]
    yield from _count_keys(gate, usage, [run.key for run in group])
    return _Front(group, len(found) > len(group))


def _candidates(name: str, *arguments: object) -> Flow[list[Candidate]]:
    if any(isinstance(argument, list) and not argument for argument in arguments):
        return []
    return _read_candidates((yield from ask(name, *arguments)))


def _read_candidates(rows: Iterable[Any]) -> list[Candidate]:
    found = [Candidate(*row) for row in rows]
    return [run if isinstance(run.fresh, bool) else run._replace(fresh=bool(run.fresh)) for run in found]


# -- taking ------------------------------------------------------------------------------------------------


def _take(worker: str, token: int, choice: Choice, want: WantedRuns) -> Flow[list[Claimed]]:
    """Take the chosen runs, but for those whose rows are locked."""
    if not choice.taken:
        return []
    rows = [(run.id, worker, token, want.versions[run.workflow]) for run in choice.taken]
    before = {run.id: run for run in choice.taken}
    found = yield PutAndAsk(("log_limited", "take_limited"), rows, Ask("claimed", (worker, token)))
    taken = _limited(read_claimed(found))
    for run in taken:
        if run.id in before:
            run.place, run.last_version = before[run.id].place, before[run.id].version
    return in_order(taken)


def _limited(taken: list[Claimed]) -> list[Claimed]:
    for run in taken:
        run.limited = True
    return taken


def _log(gate: Gate, started: dict[str | None, int], now: int) -> Flow[None]:
    """Write down the starts that rates count, and delete what no window reaches any more."""
    limits, rows = gate.limits, []
    if limits.rate is not None and started:
        rows.append((gate.name, "", logged_at(limits.rate, now), sum(started.values())))
    if limits.key_rate is not None:
        at = logged_at(limits.key_rate, now)
        rows += [(gate.name, key, at, number) for key, number in sorted(started.items(), key=str) if key is not None]
    yield from put("log_starts", rows)
    spans = [(rate is limits.rate, rate.per_ms) for rate in (limits.rate, limits.key_rate) if rate is not None]
    if spans and now - gate.pruned_at >= max(_PRUNED_EVERY_MS, max(span for _, span in spans) // 10):
        yield from put("prune_starts", [(gate.name, whole, now - span, now + 2 * span) for whole, span in spans])
        yield from put("note_pruned", [(gate.name, now)])
