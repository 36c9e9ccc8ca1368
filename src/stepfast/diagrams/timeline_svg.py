"""A timeline as SVG: a band per step, with a bar for every try; what was waited for is hatched, and gaps are narrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .svg import Markup, class_of, element, mark, number
from .timeline import BAND, HEAD, LABELS, LETTER, MARGIN, RUN, Band, Bar, Gap, Note, Timeline

Href = Callable[[str], str]
"""The id of a child → the address of its page."""

_BAR = 12.0
_INDENT = 12.0
_DEEPEST = 5
"""Deeper branches are indented no further: the name needs room."""


def timeline_svg(timeline: Timeline, href: Href | None = None) -> Markup:
    """The drawing, as an element to be put into a page; children are links where ``href`` says where to."""
    return element(
        "svg",
        element("title", timeline.label),
        element("defs", *_patterns()),
        *(
            element("rect", x=0, y=band.y, width=timeline.width, height=BAND, class_="sf-stripe")
            for band in timeline.bands[1::2]
        ),
        *(_gap(gap, timeline.height) for gap in timeline.gaps),
        *_axis(timeline),
        *(_band(band, href) for band in timeline.bands),
        *_now(timeline),
        xmlns="http://www.w3.org/2000/svg", class_="sf-drawing sf-timeline", role="img", aria_label=timeline.label,
        viewBox=f"0 0 {number(timeline.width)} {number(timeline.height)}", width=timeline.width,
        height=timeline.height,
    )  # fmt: skip


def _patterns() -> Iterator[Markup]:
    """Hatching, in the colour of every state that can be waited in."""
    for name in ("waiting", "completed", "cancelled", "queued", "paused", "failed"):
        line = element("path", d="M0 6 6 0M-1.5 1.5 1.5 -1.5M4.5 7.5 7.5 4.5", class_=f"sf-hatching sf-{name}")
        yield element("pattern", line, id=f"sf-wait-{name}", width=6, height=6, patternUnits="userSpaceOnUse")


# -- the axis ----------------------------------------------------------------------------------------------------------


def _gap(gap: Gap, height: float) -> Markup:
    middle = gap.x + gap.width / 2
    return element(
        "g",
        element("title", f"Nothing was done for {gap.label}"),
        element("rect", x=gap.x, y=4, width=gap.width, height=height - 8, class_="sf-gap"),
        element("text", gap.label, x=middle, y=HEAD - 9, text_anchor="middle", class_="sf-gap-text"),
        _break(gap.x, height),
        _break(gap.x + gap.width, height),
    )


def _break(x: float, height: float) -> Markup:
    return element("path", d=f"M{number(x)} 4V{number(height - 4)}", class_="sf-break")


def _axis(timeline: Timeline) -> Iterator[Markup]:
    bottom = timeline.height - MARGIN
    for axis_mark in timeline.beginnings:
        yield element("text", axis_mark.label, x=axis_mark.x + 3, y=16, class_="sf-clock")
    for axis_mark in timeline.marks:
        yield element("path", d=f"M{number(axis_mark.x)} {number(HEAD - 4)}V{number(bottom)}", class_="sf-grid")
        if axis_mark.label:
            yield element("text", axis_mark.label, x=axis_mark.x, y=HEAD - 9, text_anchor="middle", class_="sf-tick")
    yield element("text", "UTC", x=LABELS - 8, y=16, text_anchor="end", class_="sf-tick")


def _now(timeline: Timeline) -> Iterator[Markup]:
    if timeline.now is not None:
        d = f"M{number(timeline.now)} {number(HEAD - 6)}V{number(timeline.height - MARGIN)}"
        yield element("g", element("title", "now"), element("path", d=d, class_="sf-now"))


# -- bands -------------------------------------------------------------------------------------------------------------


def _band(band: Band, href: Href | None) -> Markup:
    middle = band.y + BAND / 2
    return element(
        "g",
        element("title", "\n".join(band.told)),
        element("rect", x=0, y=band.y, width=LABELS - 8, height=BAND, class_="sf-target"),
        *_name(band, middle, href),
        *_track(band, middle),
        *(_bar(bar, middle) for bar in band.bars),
        _note(band.note, middle, band.state) if band.note.text else None,
        class_=f"sf-band {class_of(band.state)}" + (" sf-run" if band.kind == RUN else ""),
    )


def _name(band: Band, middle: float, href: Href | None) -> Iterator[Markup]:
    """Draw the mark of its state and its name, which is cut to the room there is; the tooltip has all of it."""
    x = MARGIN + _INDENT * min(band.depth, _DEEPEST)
    yield mark(band.state, x, middle)
    before = f"[{band.item}] " if band.item is not None else ""
    kind = "" if band.kind in ("step", "dag_step", RUN, band.name) else band.kind
    after = f" × {band.count}" if band.count > 1 else f" {kind}" if kind else ""
    room = int((LABELS - 8 - x - 12) / LETTER) - len(before) - len(after)
    name = band.name if len(band.name) <= room else band.name[: max(room - 1, 1)] + "…"
    text = element(
        "text",
        element("tspan", before, class_="sf-more") if before else None,
        name,
        element("tspan", after, class_="sf-more") if after else None,
        x=x + 12, y=middle + 4, class_="sf-name",
    )  # fmt: skip
    yield _linked(band, text, href)


def _linked(band: Band, text: Markup, href: Href | None) -> Markup:
    """The table of steps has the same link for those who use a keyboard."""
    return text if href is None or band.child is None else element("a", text, href=href(band.child), tabindex="-1")


def _track(band: Band, middle: float) -> Iterator[Markup]:
    """The line behind the bars: between two of them the step waited for its next try."""
    if band.track is not None:
        since, until = band.track
        yield element("rect", x=since, y=middle - 1, width=max(until - since, 0), height=2, class_="sf-track")


def _bar(bar: Bar, middle: float) -> Markup:
    top = middle - _BAR / 2
    told = element("title", "\n".join(bar.told)) if bar.told else None
    shape = {"x": bar.x, "y": top, "width": bar.width, "height": _BAR, "rx": min(3.0, bar.width / 2)}
    if bar.work:
        return element("rect", told, class_=f"sf-bar {class_of(bar.state)}" + (" sf-undo" if bar.undo else ""), **shape)
    return element(
        "g",
        told,
        element("rect", class_=f"sf-wait {class_of(bar.state)}", **shape),
        element("rect", class_="sf-hatch", fill=f"url(#{_pattern(bar.state)})", **shape),
    )


def _pattern(state: str) -> str:
    known = ("waiting", "completed", "cancelled", "queued", "paused", "failed")
    return f"sf-wait-{state if state in known else 'waiting'}"


def _note(note: Note, middle: float, state: str) -> Markup:
    anchor = "end" if note.ends else None
    return element("text", note.text, x=note.x, y=middle + 4, text_anchor=anchor, class_=f"sf-note {class_of(state)}")
