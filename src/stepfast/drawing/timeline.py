"""A timeline of a run as plain values: which bands there are, and where everything stands. It is drawn by
``timeline_svg``; here nothing knows of SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..model.graph import Graph
from ..model.moments import moment
from ..monitoring.text import count, lasting
from ..reports import Activity, RunInfo, StepInfo
from .axis import AxisMark, marks_of
from .folding import folded
from .scale import Part, Scale, make_scale
from .stretches import RUN, Row, Stretch, rows_of

PAGE = 500
"""So many bands are drawn at once; further ones are on pages of their own."""
WIDTH = 1000.0
LABELS = 236.0
"""How wide the column of names is."""
MARGIN = 14.0
HEAD = 46.0
"""How high the axis is."""
BAND = 26.0
LETTER = 6.2
"""How wide a letter is, more or less: nobody has measured the font of the reader."""
_WIDE_LETTER = 7.2
"""How wide a letter is where text must not be cut."""
_LEAST = 3.0
"""A bar is at least so wide: what took no time can be seen, too."""
_LONGEST_NOTE = 40
"""Letters of what stands beside the run itself; all of it is told to a reader who points at it."""
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
    """A few words beside the bars of a band: where, and whether they end there or begin there."""

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
    """Where everything stands, in units of the view box."""

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
    """Where the moment stands at which the run was read; None: it has ended."""
    page: int
    pages: int
    total: int
    """How many bands there are on all pages, without that of the run."""


def lay_out(
    run: RunInfo,
    steps: Sequence[StepInfo],
    calls: Sequence[Activity] = (),
    graph: Graph | None = None,
    *,
    page: int = 0,
    collapse: bool = True,
    fold: bool = True,
    part: bool = False,
) -> Timeline:
    """The timeline of a run: ``calls`` (``run.activity()``) bring its failed tries, a graph tells which steps are
    approvals. Pages count from 0; one that does not exist is the last. ``part`` says that there are more steps than
    these: then the axis covers these alone."""
    whole, *rows = rows_of(run, steps, calls, graph)
    rows = folded(rows) if fold else rows
    pages = max(1, -(-len(rows) // PAGE))
    page = min(max(page, 0), pages - 1)
    shown = rows[page * PAGE : (page + 1) * PAGE]
    scale = _scale(run, whole, shown, collapse=collapse, alone=part or pages > 1)
    bands = [_band(row, before, number, scale) for number, (row, before) in enumerate(_pairs([whole, *shown]))]
    gaps = [Gap(p.x, p.width, lasting(p.end - p.start)) for p in scale.parts if p.collapsed]
    return Timeline(
        label=_label(run, len(steps), page, pages),
        width=WIDTH,
        height=HEAD + BAND * len(bands) + MARGIN,
        bands=tuple(bands),
        gaps=tuple(gaps),
        beginnings=tuple(_beginnings(scale.parts)),
        marks=tuple(mark for part in scale.parts for mark in marks_of(part)),
        now=None if run.completed_at is not None else scale.x(run.read_at.timestamp()),
        page=page,
        pages=pages,
        total=len(rows),
    )


def _label(run: RunInfo, steps: int, page: int, pages: int) -> str:
    where = f", page {page + 1} of {pages}" if pages > 1 else ""
    return f"Timeline of run {run.id} of {run.workflow}: {run.status}, {count(steps, 'step')}{where}"


# -- the axis ----------------------------------------------------------------------------------------------------------


def _scale(run: RunInfo, whole: Row, rows: list[Row], *, collapse: bool, alone: bool) -> Scale:
    """The axis: over the whole run, or, where there are pages, over what this one shows."""
    stretches = [stretch for row in ([*rows] if alone else [whole, *rows]) for stretch in row.stretches]
    bounds = [] if alone and stretches else [run.created_at.timestamp(), (run.completed_at or run.read_at).timestamp()]
    start = min([*bounds, *(stretch.start for stretch in stretches)])
    end = max([*bounds, *(stretch.end for stretch in stretches)])
    work = [span for stretch in stretches for span in _moments(stretch)]
    room = _WIDE_LETTER * len(_run_note(whole)) + 6
    return make_scale(start, end, work, LABELS, WIDTH - LABELS - MARGIN - room, collapse=collapse)


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


def _pairs(rows: list[Row]) -> list[tuple[Row, Row | None]]:
    """Each row with the one before it."""
    return list(zip(rows, [None, *rows], strict=False))


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
        if last is not None and _alike(last, bar) and bar.x - (last.x + last.width) < close:
            end = max(bar.x + bar.width, last.x + last.width)
            found[-1] = last._replace(width=end - last.x, told=(*last.told, *bar.told)[:8])
        else:
            found.append(bar)
    return _apart(found, scale.parts[-1].x + scale.parts[-1].width)


def _bar(stretch: Stretch, scale: Scale) -> Bar:
    x, end = scale.x(stretch.start), scale.x(stretch.end)
    told = (stretch.told,) if stretch.told else ()
    return Bar(x, max(end - x, _LEAST), stretch.state, stretch.work, stretch.undo, told)


def _alike(one: Bar, other: Bar) -> bool:
    return one[2:5] == other[2:5]


def _apart(bars: list[Bar], edge: float) -> list[Bar]:
    """Moved and cut so that none stands over another or beyond the edge. If they are too many, all are narrow."""
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
    """Beside the last of its own bars, else before the first one; as much of it as there is room for. That of the run
    has room of its own behind the axis."""
    if row.kind == RUN:
        return Note(scale.parts[-1].x + scale.parts[-1].width + 6, _run_note(row), False)
    own = [bar for bar in bars if not bar.undo] or bars
    right = own[-1].x + own[-1].width if own else LABELS
    undo = bars[len(own)].x if len(own) < len(bars) else WIDTH
    left = own[0].x if own else LABELS
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
