"""Many equal steps as one row: the items of a map, and a loop that makes the same call again and again."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from ..monitoring.text import lasting
from .stretches import NO_ITEM, Row, Stretch, with_stretches

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
    return [with_stretches(family[0], stretches, len(family), note)]


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
