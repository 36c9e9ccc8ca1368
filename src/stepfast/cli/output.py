"""What goes to stdout: tables and fields for people, JSON for scripts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ..monitoring.text import harmless_json, printable
from .exit_codes import put

_UNBOUNDED = 10_000
"""Width of a table that goes to a file or a pipe: nothing is cut or wrapped there."""
_STATES = ("status", "state", "")
_COLOURS = {
    "completed": "green",
    "live": "green",
    "awake": "green",
    "ok": "green",
    "running": "cyan",
    "waiting": "blue",
    "paused": "yellow",
    "stopping": "yellow",
    "cancelled": "yellow",
    "compensated": "yellow",
    "failed": "red",
    "failing": "red",
    "dead": "red",
    "wrong": "red",
}


def write_json(value: Any) -> None:
    """Write a value as one JSON document on one line."""
    print(harmless_json(msgspec.json.encode(value).decode()))


def write_line(value: Any) -> None:
    """Write a value as one JSON document on a line, at once: a reader may wait for it."""
    print(harmless_json(msgspec.json.encode(value).decode()), flush=True)


def write_value(value: Any) -> None:
    """Write a result as JSON that people can read."""
    print(harmless_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()))


def say(text: str) -> None:
    """Write a line to stderr; stdout is for data. If stderr is closed, the command continues."""
    put(printable(text), sys.stderr)


def write_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a table on stdout."""
    _show(make_table(columns, rows))


def make_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table; columns that are empty in every row are left out. Only the last one is folded to fit the terminal, so
    that ids are not cut."""
    shown = [i for i in range(len(columns)) if any(row[i] for row in rows)]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i in shown[:-1]:
        widest = max(cell_len(printable(text)) for text in (columns[i], *(row[i] for row in rows)))
        table.add_column(columns[i], no_wrap=True, min_width=widest)
    table.add_column(columns[shown[-1]], overflow="fold")
    for row in rows:
        table.add_row(*(_cell(columns[i], row[i]) for i in shown))
    return table


def write_fields(fields: Sequence[tuple[str, str]]) -> None:
    """Names and values, one below the other; empty values are left out."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for name, value in fields:
        if value:
            table.add_row(name, _cell(name, value))
    _show(table)


def write_heading(text: str) -> None:
    """Write the heading of a table."""
    print()
    _show(Text(text, style="bold"))


def write_text(text: str) -> None:
    """Write text as it is, on stdout."""
    print(printable(text))


def _show(thing: RenderableType) -> None:
    if sys.stdout.isatty():
        # Rather let the terminal break lines than squeeze columns until nothing can be read.
        wide = _console(_UNBOUNDED)
        needed = Measurement.get(wide, wide.options, thing).minimum
        _console(max(Console().width, needed)).print(thing)
    else:
        print_plain(thing)


def print_plain(thing: RenderableType) -> None:
    """Write it without colours, and as wide as it is."""
    console = _console(_UNBOUNDED)
    with console.capture() as captured:
        console.print(thing)
    # Cells are padded to the width of their column, which in a file is only trailing blanks.
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _console(width: int) -> Console:
    return Console(file=sys.stdout, width=width, highlight=False)


def _cell(column: str, text: str) -> Text:
    """Never markup: what users wrote is shown as they wrote it. States are coloured."""
    state = text.partition(" ")[0] if column in _STATES else ""
    return Text(printable(text), style=_COLOURS.get(state, ""))
