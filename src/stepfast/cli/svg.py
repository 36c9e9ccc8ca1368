"""``--svg``: drawings for files, and for whatever reads stdout."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ..app import Stepfast
from ..diagrams import Markup, Timeline, graph_svg, lay_out, standalone, timeline_svg
from ..errors import ConfigurationError
from ..monitoring.explain import graph_of, steps_of
from ..monitoring.text import find_run
from .options import option
from .output import say
from .session import Session

SvgOption = Annotated[str | None, option("--svg", metavar="FILE", help="As a drawing, to a file; - is stdout.")]


def write_svg(drawing: Markup, file: str) -> None:
    """Write a drawing with its colours inside."""
    text = standalone(drawing)
    if file == "-":
        print(text, end="")
        return
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{file!r} cannot be written: {error.strerror}") from None
    say(f"written to {file}")


def refuse_both(session: Session, svg: str | None, other: str) -> None:
    """A drawing is not a document for scripts."""
    if svg is not None and session.json:
        raise ConfigurationError(f"--svg and --json are two forms of the same {other}; give one of them")


async def write_timeline(session: Session, run: str, file: str, key: str | None = None) -> None:
    """Draw when a run did what. A long one has several pages, of which the first is drawn."""
    async with session.looking() as app:
        timeline = await _timeline(app, run, key)
    if timeline.pages > 1:
        say(f"only the first of {timeline.pages} pages is drawn: {timeline.total} rows are too many for one")
    write_svg(timeline_svg(timeline), file)


async def _timeline(app: Stepfast, run: str, key: str | None) -> Timeline:
    handle = await find_run(app, run, key)
    info = await handle.info()
    return lay_out(info, await steps_of(app, info), await handle.activity(), await graph_of(app, info))


async def write_graph_of(session: Session, run: str, file: str) -> None:
    """Draw the graph that a dag run goes by, coloured by how its steps stand."""
    async with session.looking() as app:
        info = await (await find_run(app, run)).info()
        graph, steps = await graph_of(app, info), await steps_of(app, info)
    if graph is None:
        raise ConfigurationError(
            f"run {info.id} of {info.workflow!r} has no graph, for that is no dag; "
            f"`stepfast show {info.id} --svg FILE` draws its timeline"
        )
    write_svg(graph_svg(graph, info, steps), file)
