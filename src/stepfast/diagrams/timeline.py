"""A timeline of a run as plain values: its rows, how equal steps are folded, and where each moment is on the axis."""

from __future__ import annotations

import itertools
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import NamedTuple

from ..engine.children import CALLBACK_RESULT, RESULT
from ..engine.concurrency import FIRST
from ..engine.history import UNDO
from ..engine.timers import SLEEP
from ..info import Activity, ErrorInfo, RunInfo, StepInfo
from ..model import status
from ..model.graph import APPROVAL, Graph
from ..model.status import DAG_STEP
from ..model.stored import later, moment
from ..monitoring.text import count, lasting, shortened

RUN = "run"
"""The kind of the row of the run as a whole."""
_WAITS = frozenset({SLEEP, "signal", "question", RESULT, CALLBACK_RESULT, "call", FIRST, "wait_until"})
"""Kinds of calls in which nothing is done here."""
_LONGEST = 200
"""Characters of an error in a tooltip."""

Path = tuple[tuple[int, int], ...]
"""The place of a step in the tree of branches: (position, item) for each branch around it, then its own position."""
NO_ITEM = -1


class Stretch(NamedTuple):
    """A span of time in seconds, and its outcome."""

    start: float
    end: float
    state: str
    work: bool
    """Whether something was done; else it was waited for."""
    told: str
    undo: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One step, or many equal ones, with all that is drawn of it."""

    name: str
    kind: str
    state: str
    path: Path
    stretches: tuple[Stretch, ...]
    note: str
    told: tuple[str, ...]
    """The lines of its tooltip."""
    child: str | None = None
    undo: str | None = None
    """By what it was undone."""
    count: int = 1

    @property
    def depth(self) -> int:
        """In how many branches it is."""
        return max(len(self.path) - 1, 0)


def rows_of(run: RunInfo, steps: Sequence[StepInfo], calls: Sequence[Activity], graph: Graph | None) -> list[Row]:
    """The run itself, then its steps in the order of its code, each branch after the call that began it."""
    tries = _by_address(calls)
    undos = {step.position: step for step in steps if step.kind == UNDO}
    rows = []
    for step in steps:
        if step.kind != UNDO:
            undo = undos.pop(step.number, None) if step.number is not None else None
            rows.append(_row(step, undo, tries, run, graph))
    rows += [_row(undo, None, tries, run, graph) for undo in undos.values()]
    return [run_row(run, tries), *sorted(rows, key=lambda row: row.path)]


def run_row(run: RunInfo, tries: Mapping[tuple[str, int | None], list[Activity]]) -> Row:
    """The run as a whole: how long it was in the queue, which attempts failed, and since when it is paused."""
    now = run.read_at
    stretches = [
        _stretch(run.created_at, run.started_at or run.completed_at or now, status.QUEUED, False, "in the queue")
    ]
    if run.started_at is not None:
        stretches += [_tried(call, "attempt") for call in tries.get(("", None), ())]
    if run.paused_at is not None:
        stretches.append(_stretch(run.paused_at, now, status.PAUSED, False, "paused by an operator"))
    end = run.completed_at or now
    took = lasting((end - (run.started_at or run.created_at)).total_seconds())
    more = [] if run.started_at is not None else ["not begun"]
    more += [f"{run.attempt} attempts"] if run.attempt > 1 else []
    return Row(
        run.workflow, RUN, run.status, (), tuple(stretches), " · ".join([took, *more, *_error_type(run.error)]),
        (f"run {run.id}: {run.status}", *_error(run.error)),
    )  # fmt: skip


# -- steps -------------------------------------------------------------------------------------------------------------


def _item(item: str) -> int:
    """The place of an item among those of its call; for a key, a number below zero that is made of it."""
    if not item:
        return NO_ITEM
    return int(item) if item.isdecimal() else NO_ITEM - 1 - zlib.crc32(item.encode())


def path_of(step: StepInfo) -> Path:
    """Return the place of a step in the tree of branches. What is in no branch of the code (an undo) comes last."""
    found: list[tuple[int, int]] = []
    for part in step.branch.split("/") if step.branch else ():
        position, _, item = part.partition(".")
        if not position.isdecimal():
            return ((2**62, step.position),)
        found.append((int(position), _item(item)))
    return (*found, (step.position, NO_ITEM))


def _row(
    step: StepInfo, undo: StepInfo | None, tries: Mapping[tuple[str, int | None], list[Activity]], run: RunInfo,
    graph: Graph | None,
) -> Row:  # fmt: skip
    stretches = _stretches(step, tries, run, graph)
    if undo is not None:
        undoing = _stretches(undo, tries, run, graph)
        stretches += [each._replace(undo=True, told=f"undo, {each.told}") for each in undoing]
    told = [f"{step.kind if step.kind != DAG_STEP else 'step'} {step.name!r}: {step.status}", *_error(step.error)]
    told += [f"lost the race to {step.lost_to!r}"] if step.lost_to is not None else []
    told += [shortened(step.detail, _LONGEST)] if step.detail else []
    told += [f"undone by {undo.name!r}: {undo.status}"] if undo is not None else []
    state = status.QUEUED if step.started_at is None and step.status == status.WAITING else step.status
    return Row(
        step.name, step.kind, state, path_of(step), tuple(stretches), _row_note(step, undo, stretches), tuple(told),
        step.child if step.started_at is not None else None, None if undo is None else undo.name,
    )  # fmt: skip


def _stretches(
    step: StepInfo, tries: Mapping[tuple[str, int | None], list[Activity]], run: RunInfo, graph: Graph | None
) -> list[Stretch]:
    if step.started_at is None or step.status == status.SKIPPED:
        return []
    of_dag = step.kind == DAG_STEP
    failed = [
        _tried(call, "try") for call in tries.get((step.name, None) if of_dag else (step.branch, step.position), ())
    ]
    if failed and (step.status == status.FAILED or step.error is not None):
        last = failed[-1].end
        waits = [Stretch(last, max(last, run.read_at.timestamp()), status.WAITING, False, "until its next try")]
        return failed + (waits if step.status == status.WAITING else [])
    start = step.started_at.timestamp()
    start = max(start, failed[-1].end) if failed else start
    end = max((step.completed_at or run.completed_at or run.read_at).timestamp(), start)
    return failed + _last(step, start, end, _is_wait(step, graph))


def _last(step: StepInfo, start: float, end: float, waits: bool) -> list[Stretch]:
    """The try that the outcome comes from, after what it was queued for elsewhere."""
    if step.queue_wait:
        begun = min(start + step.queue_wait, end)
        queued = Stretch(start, begun, status.QUEUED, False, f"queued for a remote worker, {lasting(begun - start)}")
        return [queued, Stretch(begun, end, step.status, True, f"{step.status}, {lasting(end - begun)}")]
    return [Stretch(start, end, step.status, not waits, f"{step.status}, {lasting(end - start)}")]


def _is_wait(step: StepInfo, graph: Graph | None) -> bool:
    if step.kind == DAG_STEP and graph is not None and step.name in graph.dag_steps:
        return graph.dag_steps[step.name].kind == APPROVAL or step.status == status.WAITING
    return step.kind in _WAITS or step.status == status.WAITING


def _row_note(step: StepInfo, undo: StepInfo | None, stretches: Iterable[Stretch]) -> str:
    """Return the note of a row: how long it took, how often it was tried, its error."""
    own = [stretch for stretch in stretches if not stretch.undo]
    if not own:
        return step.status if step.status == status.SKIPPED else "not begun"
    parts = [lasting(own[-1].end - own[0].start)]
    parts += [f"{step.attempts} tries"] if step.attempts > 1 else []
    parts += _error_type(step.error)
    parts += [f"lost to {step.lost_to}"] if step.lost_to is not None else []
    parts += [f"undone by {undo.name}"] if undo is not None and undo.status == status.COMPENSATED else []
    parts += [f"undo {undo.name}: {undo.status}"] if undo is not None and undo.status != status.COMPENSATED else []
    return " · ".join(parts)


# -- tries -------------------------------------------------------------------------------------------------------------


def _by_address(calls: Iterable[Activity]) -> dict[tuple[str, int | None], list[Activity]]:
    """The failed tries of each step, oldest first. What succeeded is known from the step itself."""
    found: dict[tuple[str, int | None], list[Activity]] = {}
    for call in sorted(calls, key=lambda call: call.started_at):
        if call.status == status.FAILED:
            found.setdefault((call.branch, call.position), []).append(call)
    return found


def _tried(call: Activity, what: str) -> Stretch:
    told = ": ".join(
        [f"{what} {call.attempt} failed after {lasting(call.duration.total_seconds())}", *_error(call.error)]
    )
    return _stretch(call.started_at, later(call.started_at, call.duration), status.FAILED, True, told)


def _stretch(start: datetime, end: datetime, state: str, work: bool, told: str) -> Stretch:
    return Stretch(start.timestamp(), max(end, start).timestamp(), state, work, told)


def _error(error: ErrorInfo | None) -> list[str]:
    return [] if error is None else [shortened(f"{error.type}: {error.message}", _LONGEST)]


def _error_type(error: ErrorInfo | None) -> list[str]:
    return [] if error is None else [error.type.rpartition(".")[2]]


FROM = 6
"""So many equal ones become one row."""


def folded(rows: list[Row]) -> list[Row]:
    """The rows, with equal ones in place of the first of them."""
    return _loops(_items(rows))


def _items(rows: list[Row]) -> list[Row]:
    """Fold the calls that every item of a map makes: those at one position of branches that differ in their items
    only."""
    families: dict[object, list[Row]] = {}
    for row in rows:
        if any(item != NO_ITEM for _, item in row.path):
            families.setdefault(_family(row), []).append(row)
    firsts = {family[0]: _together(family) for family in families.values() if len(family) >= FROM}
    gone = {row for family in families.values() if len(family) >= FROM for row in family}
    return [kept for row in rows for kept in firsts.get(row, [] if row in gone else [row])]


def _family(row: Row) -> object:
    return tuple(position for position, _ in row.path), *_looks(row)


def _loops(rows: list[Row]) -> list[Row]:
    """Fold equal calls that follow one after the other in one branch."""
    groups = groupby(rows, key=lambda row: (row.path[:-1], row.count > 1 and row.path, *_looks(row)))
    return [kept for _, group in groups for kept in _together(list(group))]


def _looks(row: Row) -> tuple[str, str, str, bool]:
    return row.name, row.kind, row.state, row.undo is not None


def _together(family: list[Row]) -> list[Row]:
    if len(family) < FROM:
        return family
    stretches = _united(stretch for row in family for stretch in row.stretches)
    spans = sorted(row.stretches[-1].end - row.stretches[0].start for row in family if row.stretches)
    note = f"median {lasting(spans[len(spans) // 2])} · longest {lasting(spans[-1])}" if spans else "not begun"
    return [replace(family[0], stretches=tuple(stretches), count=len(family), note=note, child=None)]


def _united(stretches: Iterable[Stretch]) -> list[Stretch]:
    """What overlaps becomes one. Of two different outcomes the later is drawn from where the earlier one ends."""
    found: list[Stretch] = []
    for stretch in sorted(stretches):
        last = found[-1] if found else None
        if last is None or stretch.start > last.end:
            found.append(stretch._replace(told=""))
        elif stretch.end > last.end:
            same = (stretch.state, stretch.work, stretch.undo) == (last.state, last.work, last.undo)
            if same:
                found[-1] = last._replace(end=stretch.end)
            else:
                found.append(stretch._replace(start=last.end, told=""))
    return found


GAP = 68.0
"""How wide a collapsed gap is drawn: its length has to fit."""
_SHORTEST_GAP = 2.0
"""Seconds: shorter ones are never collapsed."""
_WORTH = 0.25
"""A gap is collapsed if it is longer than this part of all that is left when every gap is."""
_MOST = 0.6
"""Gaps together take no more than this part of the width; the longest are collapsed first."""
_LEAST_PART = 28.0
"""A stretch between two gaps is at least so wide, if there is room."""


class Part(NamedTuple):
    """A part of the axis: from when to when, in seconds, and its position."""

    start: float
    end: float
    x: float
    width: float
    collapsed: bool

    def place(self, moment: float) -> float:
        """Return the position of a time."""
        length = self.end - self.start
        share = (moment - self.start) / length if length > 0 else 0.0
        return self.x + self.width * min(max(share, 0.0), 1.0)


class Scale:
    """Moments to places. The parts cover the axis without holes, each beginning where the one before ends."""

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts
        self._starts = [part.start for part in parts]

    def x(self, moment: float) -> float:
        """Return the position of a time; times outside are at the edge."""
        return self.parts[max(bisect_right(self._starts, moment) - 1, 0)].place(moment)


def make_scale(start: float, end: float, work: Iterable[tuple[float, float]], x: float, width: float) -> Scale:
    """Make the axis from a start to an end, given when something was done."""
    end = max(end, start)
    gaps = _chosen(_gaps(start, end, work), end - start, width)
    stretches = _cut(start, end, gaps)
    open_ = [stretch for stretch in stretches if not stretch[2]]
    free = width - GAP * len(gaps)
    least = min(_LEAST_PART, free / (2 * len(open_)))
    total = sum(until - since for since, until, _ in open_)
    rest = free - least * len(open_)
    spare = rest / len(gaps) if gaps and total <= 0 else 0.0
    """Where nothing took any time, the gaps share the room."""
    parts: list[Part] = []
    for since, until, collapsed in stretches:
        share = (until - since) / total if total > 0 else 0.0 if gaps else 1.0
        wide = GAP + spare if collapsed else least + rest * share
        parts.append(Part(since, until, x, wide, collapsed))
        x += wide
    return Scale(parts)


def _gaps(start: float, end: float, work: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the spans in which nothing was done, without short ones."""
    found, reached = [], start
    for since, until in sorted(work):
        if since - reached >= _SHORTEST_GAP:
            found.append((reached, min(since, end)))
        reached = max(reached, until)
    if end - reached >= _SHORTEST_GAP:
        found.append((reached, end))
    return found


def _chosen(gaps: list[tuple[float, float]], length: float, width: float) -> list[tuple[float, float]]:
    """Return the gaps to be collapsed."""
    busy = length - sum(until - since for since, until in gaps)
    longest = sorted(gaps, key=lambda gap: gap[0] - gap[1])[: int(width * _MOST / GAP)]
    return sorted(gap for gap in longest if gap[1] - gap[0] > _WORTH * busy)


def _cut(start: float, end: float, gaps: list[tuple[float, float]]) -> list[tuple[float, float, bool]]:
    """The axis as stretches that are drawn to scale, with collapsed ones between. It begins and ends with one of the
    former, however short, so that there is a place for what happened then."""
    found, reached = [], start
    for since, until in gaps:
        found += [(reached, since, False), (since, until, True)]
        reached = until
    return [*found, (reached, end, False)]


_DAY = 86400.0
_ROUND = (
    *(factor * unit for unit in (0.001, 0.01, 0.1) for factor in (1, 2, 5)),
    *(1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0),
    *(3600.0, 7200.0, 10800.0, 21600.0, 43200.0, _DAY, 2 * _DAY, 7 * _DAY, 14 * _DAY, 28 * _DAY),
)
_APART = 72.0
"""The least distance between two marks."""


_AXIS_LETTER = 6.0
"""The approximate width of a letter; the font of the reader is not known."""


class AxisMark(NamedTuple):
    """A mark, and its time since the beginning of its part."""

    x: float
    label: str


def marks_of(part: Part) -> list[AxisMark]:
    """Return the marks within one part of the axis, without that of its beginning."""
    length = part.end - part.start
    if part.collapsed or length <= 0:
        return []
    every = _round(length * _APART / part.width)
    inside = itertools.takewhile(lambda at: at <= length, (every * number for number in itertools.count(1)))
    return [_mark(part, at) for at in inside]


def _mark(part: Part, at: float) -> AxisMark:
    """Make a mark; its label is left out where it would overlap the next part."""
    x, label = part.place(part.start + at), f"+{lasting(at)}"
    half = _AXIS_LETTER * len(label) / 2
    return AxisMark(x, label if part.x + half <= x <= part.x + part.width - half else "")


def _round(least: float) -> float:
    """The smallest round span that is long enough."""
    fitting = next((span for span in _ROUND if span >= least), None)
    return fitting if fitting is not None else _ROUND[-1] * -(-least // _ROUND[-1])


MOST_BANDS = 500
"""Bands that are drawn, without that of the run."""
WIDTH = 1000.0
LABELS = 236.0
"""How wide the column of names is."""
MARGIN = 14.0
HEAD = 46.0
"""How high the axis is."""
BAND = 26.0
LETTER = 6.2
"""The approximate width of a letter; the font of the reader is not known."""
_WIDE_LETTER = 7.2
"""How wide a letter is where text must not be cut."""
_LEAST = 3.0
"""A bar is at least so wide: what took no time can be seen, too."""
_LONGEST_NOTE = 40
"""Letters of the note of the run itself; its tooltip has all of it."""
_CLOSE = 1.0
"""Equal bars that are closer to each other become one. In a band of many steps they may be farther apart."""


class Bar(NamedTuple):
    """A stretch of time in a band."""

    x: float
    width: float
    state: str
    work: bool
    undo: bool
    told: tuple[str, ...]


class Note(NamedTuple):
    """The note of a band: its position, and whether the text ends or begins there."""

    x: float
    text: str
    ends: bool


@dataclass(frozen=True, slots=True)
class Band:
    """A step, or many equal ones, drawn in a row of its own."""

    y: float
    name: str
    item: int | None
    """Of which item of a map it is the first step."""
    depth: int
    kind: str
    state: str
    count: int
    track: tuple[float, float] | None
    """From where to where it reaches: the thin line behind its bars."""
    bars: tuple[Bar, ...]
    note: Note
    told: tuple[str, ...]
    child: str | None
    undo: str | None


class Gap(NamedTuple):
    """A stretch of time in which nothing was done, drawn narrow."""

    x: float
    width: float
    label: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """The layout, in units of the view box."""

    label: str
    """What it shows, in a sentence."""
    width: float
    height: float
    bands: tuple[Band, ...]
    gaps: tuple[Gap, ...]
    beginnings: tuple[AxisMark, ...]
    """Where stretches begin, by the clock (UTC)."""
    marks: tuple[AxisMark, ...]
    now: float | None
    """The position of the time at which the run was read; None if it has ended."""
    left_out: int
    """How many bands are not drawn, because there are too many."""


def lay_out(
    run: RunInfo,
    steps: Sequence[StepInfo],
    calls: Sequence[Activity] = (),
    graph: Graph | None = None,
    *,
    part: bool = False,
) -> Timeline:
    """Lay out the timeline of a run: ``calls`` (``run.activity()``) have its failed tries, the graph its approvals.
    ``part`` says that there are more steps than these: then the axis covers these alone."""
    whole, *rows = rows_of(run, steps, calls, graph)
    rows = folded(rows)
    shown = rows[:MOST_BANDS]
    scale = _scale(run, whole, shown, alone=part or len(rows) > len(shown))
    pairs = zip([whole, *shown], [None, whole, *shown], strict=False)
    bands = [_band(row, before, number, scale) for number, (row, before) in enumerate(pairs)]
    gaps = [Gap(p.x, p.width, lasting(p.end - p.start)) for p in scale.parts if p.collapsed]
    return Timeline(
        label=f"Timeline of run {run.id} of {run.workflow}: {run.status}, {count(len(steps), 'step')}",
        width=WIDTH,
        height=HEAD + BAND * len(bands) + MARGIN,
        bands=tuple(bands),
        gaps=tuple(gaps),
        beginnings=tuple(_beginnings(scale.parts)),
        marks=tuple(mark for part in scale.parts for mark in marks_of(part)),
        now=None if run.completed_at is not None else scale.x(run.read_at.timestamp()),
        left_out=len(rows) - len(shown),
    )


# -- the axis ----------------------------------------------------------------------------------------------------------


def _scale(run: RunInfo, whole: Row, rows: list[Row], *, alone: bool) -> Scale:
    """Make the axis: of the whole run, or of the rows alone."""
    stretches = [stretch for row in ([*rows] if alone else [whole, *rows]) for stretch in row.stretches]
    bounds = [] if alone and stretches else [run.created_at.timestamp(), (run.completed_at or run.read_at).timestamp()]
    start = min([*bounds, *(stretch.start for stretch in stretches)])
    end = max([*bounds, *(stretch.end for stretch in stretches)])
    work = [span for stretch in stretches for span in _moments(stretch)]
    room = _WIDE_LETTER * len(_run_note(whole)) + 6
    return make_scale(start, end, work, LABELS, WIDTH - LABELS - MARGIN - room)


def _moments(stretch: Stretch) -> list[tuple[float, float]]:
    """When something happened in a stretch: all the time, or, while it was waited, at its beginning and its end."""
    start, end = stretch.start, stretch.end
    return [(start, end)] if stretch.work else [(start, start), (end, end)]


def _beginnings(parts: list[Part]) -> list[AxisMark]:
    """When stretches began, where there is room to write it."""
    found: list[AxisMark] = []
    free, day = 0.0, None
    for part in parts:
        when = moment(part.start * 1000)
        text = f"{when:%H:%M:%S}" if when.date() == day else f"{when.day} {when:%b %H:%M:%S}"
        room = LETTER * len(text) + 8
        if not part.collapsed and part.x >= free and part.x + room <= WIDTH:
            found.append(AxisMark(part.x, text))
            free, day = part.x + room, when.date()
    return found


# -- bands -------------------------------------------------------------------------------------------------------------


def _band(row: Row, before: Row | None, number: int, scale: Scale) -> Band:
    bars = _bars(row, scale)
    begins_item = len(row.path) > 1 and (before is None or before.path[:-1] != row.path[:-1])
    item = next((item for _, item in reversed(row.path[:-1])), -1) if begins_item and row.count == 1 else -1
    return Band(
        y=HEAD + BAND * number,
        name=row.name,
        item=None if item < 0 else item,
        depth=row.depth,
        kind=row.kind,
        state=row.state,
        count=row.count,
        track=_track(row, scale, bars),
        bars=tuple(bars),
        note=_note(row, bars, scale),
        told=(*row.told, row.note) if row.count == 1 else (f"{row.count} times {row.name!r}: {row.state}", row.note),
        child=row.child,
        undo=row.undo,
    )


def _track(row: Row, scale: Scale, bars: list[Bar]) -> tuple[float, float] | None:
    """The line that joins the tries of a step, if there are several; that of the run goes through to its end."""
    last = scale.parts[-1]
    if row.kind == RUN and bars:
        return bars[0].x + bars[0].width, last.x + last.width
    own = [bar for bar in bars if not bar.undo]
    return (own[0].x, own[-1].x) if len(own) > 1 else None


def _bars(row: Row, scale: Scale) -> list[Bar]:
    """The stretches of a row, placed: in order, none over another, each wide enough to be seen."""
    close = _CLOSE if row.count == 1 else 2 * _LEAST
    found: list[Bar] = []
    for stretch in sorted(row.stretches):
        bar = _bar(stretch, scale)
        last = found[-1] if found else None
        if last is not None and last[2:5] == bar[2:5] and bar.x - (last.x + last.width) < close:
            end = max(bar.x + bar.width, last.x + last.width)
            found[-1] = last._replace(width=end - last.x, told=(*last.told, *bar.told)[:8])
        else:
            found.append(bar)
    return _apart(found, scale.parts[-1].x + scale.parts[-1].width)


def _bar(stretch: Stretch, scale: Scale) -> Bar:
    x, end = scale.x(stretch.start), scale.x(stretch.end)
    told = (stretch.told,) if stretch.told else ()
    return Bar(x, max(end - x, _LEAST), stretch.state, stretch.work, stretch.undo, told)


def _apart(bars: list[Bar], edge: float) -> list[Bar]:
    """Move and cut bars so that they neither overlap nor leave the view. If they are too many, all are narrow."""
    least = min(_LEAST, (edge - LABELS) / max(len(bars), 1))
    found: list[Bar] = []
    for number, bar in enumerate(bars):
        room = edge - least * (len(bars) - number - 1)
        x = min(max(bar.x, found[-1].x + found[-1].width) if found else bar.x, room - least)
        found.append(bar._replace(x=x, width=min(max(bar.x + bar.width - x, least), room - x)))
    return found


def _run_note(whole: Row) -> str:
    return whole.note if len(whole.note) <= _LONGEST_NOTE else whole.note[: _LONGEST_NOTE - 1] + "…"


def _note(row: Row, bars: list[Bar], scale: Scale) -> Note:
    """Place the note behind the last of its own bars, behind all, or before the first one; cut if there is no room.
    That of the run has room behind the axis."""
    if row.kind == RUN:
        return Note(scale.parts[-1].x + scale.parts[-1].width + 6, _run_note(row), False)
    own = [number for number, bar in enumerate(bars, 1) if not bar.undo]
    behind = own[-1] if own else len(bars)  # of an undo there may be bars on both sides of it
    right = bars[behind - 1].x + bars[behind - 1].width if bars else LABELS
    undo = bars[behind].x if behind < len(bars) else WIDTH
    left = bars[0].x if bars else LABELS
    end = bars[-1].x + bars[-1].width if bars else LABELS
    short = row.note.partition(" · ")[0]
    for text in (row.note, short):
        wide = LETTER * len(text) + 6
        for x, room, ends in (
            (right, undo - right, False),
            (end, WIDTH - MARGIN - end, False),
            (left, left - LABELS, True),
        ):
            if wide <= room:
                return Note(x - 6 if ends else x + 6, text, ends)
    return Note(right, "", False)
