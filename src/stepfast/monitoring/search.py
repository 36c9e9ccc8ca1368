"""Finding runs: by filters, by text in their inputs, by the beginning of an id, by a key; and the tree of a run's
parents and children.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

import msgspec

from ..app import Stepfast
from ..errors import InvalidInput
from ..filters import ListKeywords, store_filters
from ..info import RunInfo, listed_info
from ..model.ids import ids_beginning_with, made_at
from ..model.stored import moment_or_none
from ..store.readonly import FAR, BaseGlance
from ..store.run_lists import Filters
from .changes import glance_of

COUNTED = 10_000
"""Runs are counted up to this, and then shown as "10 000+"."""
SEARCHED = 10_000
"""Runs whose inputs are searched for a text: the newest that pass the other filters."""
LARGEST = 64 * 1024
"""Inputs of more bytes are not searched."""
ENDS = 100_000
"""Newest runs among which the end of an id is searched."""
_PORTION = 1000
_SHORTEST = 4
"""Characters of an id that are needed at least."""


class Listed(NamedTuple):
    """A page of a list."""

    runs: list[RunInfo]
    after: str | None
    """Where the next page begins; None: this is the last."""
    looked: int | None = None
    """How many inputs were searched for the text."""
    too_large: int = 0
    """How many of them were too large to be searched."""
    ended: bool = False
    """Whether the search ended before the page was full, with more runs beyond."""

    @property
    def back_to(self) -> datetime | None:
        """When the last run that was searched was started, if the search ended early."""
        at = made_at(self.after) if self.ended and self.after is not None else None
        return moment_or_none(at)


class Counted(NamedTuple):
    """How many runs there are."""

    number: int
    more: bool
    """Whether there are, or may be, more than that."""

    def __str__(self) -> str:
        return f"{self.number:,}".replace(",", "\u202f") + ("+" if self.more else "")


async def list_runs(app: Stepfast, filters: ListKeywords, text: str | None = None) -> Listed:
    """A page of runs; with a text, those that have it in their inputs."""
    glance = await glance_of(app)
    wanted, oldest_first = _filters(filters)
    await glance.check_attributes(wanted.attributes)
    if text:
        return await _with_text(app, glance, wanted, oldest_first, text)
    ids, reached = await glance.find(wanted, FAR, oldest_first)
    after = ids[-1] if len(ids) == wanted.limit else reached
    return Listed(await _infos(app, glance, ids, oldest_first), after, ended=reached is not None)


async def _with_text(app: Stepfast, glance: BaseGlance, wanted: Filters, oldest_first: bool, text: str) -> Listed:
    ids, reached = await glance.find(wanted._replace(limit=SEARCHED), FAR, oldest_first)
    texts = text, msgspec.json.encode(text).decode()[1:-1]
    found: list[str] = []
    looked = too_large = 0
    for start in range(0, len(ids), _PORTION):
        portion = ids[start : start + _PORTION]
        closed = await glance.with_inputs(portion, texts, LARGEST)
        _refuse_sealed(closed.values())
        hits = [run_id for run_id in portion if closed.get(run_id) == 0]
        if len(found) + len(hits) >= wanted.limit:
            found = (found + hits)[: wanted.limit]
            looked += portion.index(found[-1]) + 1 if found[-1] in portion else len(portion)
            return Listed(await _infos(app, glance, found, oldest_first), found[-1], looked, too_large)
        found += hits
        looked, too_large = looked + len(portion), too_large + sum(value == 1 for value in closed.values())
    after = ids[-1] if len(ids) == SEARCHED else reached
    infos = await _infos(app, glance, found, oldest_first)
    return Listed(infos, after, looked, too_large, ended=after is not None)


def _refuse_sealed(closed: object) -> None:
    if 2 in closed:  # type: ignore[operator]
        raise InvalidInput(
            "inputs of these runs were stored through a codec, and only the code can read them: they cannot be "
            "searched for a text. Find runs by key or tag instead"
        )


async def count_runs(app: Stepfast, filters: ListKeywords) -> Counted:
    """How many runs the filters let through, up to ten thousand."""
    wanted, oldest_first = _filters(filters)
    glance = await glance_of(app)
    await glance.check_attributes(wanted.attributes)
    ids, reached = await glance.find(wanted._replace(limit=COUNTED + 1, before=None), FAR, oldest_first)
    return Counted(min(len(ids), COUNTED), len(ids) > COUNTED or reached is not None)


async def find_runs(app: Stepfast, text: str, most: int = 50) -> list[RunInfo]:
    """Find runs by an id, its beginning or its end, or by a key; at most so many."""
    glance, text = await glance_of(app), text.strip()
    ids = await _by_id(glance, text, most)
    if not ids and text:
        wanted, _ = _filters({"key": text, "limit": most})
        ids = (await glance.find(wanted, FAR)).ids
    return await _infos(app, glance, ids, False)


async def _by_id(glance: BaseGlance, text: str, most: int) -> list[str]:
    bounds = ids_beginning_with(text)
    if bounds is None or len(text) < _SHORTEST:
        return []
    if bounds[0] == bounds[1]:
        return [bounds[0]]
    ids = await glance.ids_between(*bounds, most)
    return ids or await glance.ids_ending_with(text.lower().replace("-", ""), ENDS, most)


def _filters(given: ListKeywords) -> tuple[Filters, bool]:
    checked = store_filters(given)
    since, older, oldest_first = checked.pop("since_ms"), checked.pop("older_ms"), checked.pop("oldest_first")
    first, last = checked.pop("ids") or (None, None)
    return Filters(**checked, since=since, older=older, first=first, last=last), oldest_first


async def _infos(app: Stepfast, glance: BaseGlance, ids: Sequence[str], oldest_first: bool) -> list[RunInfo]:
    rows = await glance.named(ids)
    return [listed_info(row, app._payloads) for row in (reversed(rows) if oldest_first else rows)]


DEEP = 4
"""Generations below a run that are shown."""
EACH = 20
"""Children of one run that are shown."""
_MOST = 200
_ABOVE = 10


@dataclass(slots=True)
class Member:
    """A run with what it has started."""

    run: RunInfo
    children: list[Member] = field(default_factory=list)
    more: bool = False
    """Whether it has started more than are shown."""


@dataclass(slots=True)
class Family:
    """The family of one run."""

    above: list[RunInfo]
    """The runs that started it, the nearest first."""
    below: list[Member]
    more: bool
    """Whether it has started more than are shown."""


async def family_of(app: Stepfast, run_id: str) -> Family:
    """The runs above and below one."""
    glance = await glance_of(app)
    above = await glance.ancestors(run_id, _ABOVE)
    children, cut = await _generations(glance, run_id)
    rows = await glance.named([*above, *{child for each in children.values() for child in each}])
    infos = {row.id: listed_info(row, app._payloads) for row in rows}

    def members(parent: str) -> list[Member]:
        known = [child for child in children.get(parent, ()) if child in infos]
        return [Member(infos[child], members(child), child in cut) for child in known]

    return Family([infos[each] for each in above if each in infos], members(run_id), run_id in cut)


async def _generations(glance: BaseGlance, run_id: str) -> tuple[dict[str, list[str]], set[str]]:
    children: dict[str, list[str]] = {}
    cut: set[str] = set()
    generation, told = [run_id], 0
    for _ in range(DEEP):
        for parent, child in sorted(await glance.children(generation, EACH + 1)):
            children.setdefault(parent, []).append(child)
        for parent in generation:
            room = max(0, min(EACH, _MOST - told))
            if len(children.get(parent, ())) > room:
                cut.add(parent)
                children[parent] = children[parent][:room]
            told += len(children.get(parent, ()))
        generation = [child for parent in generation for child in children.get(parent, ())]
        if not generation:
            return children, cut
    cut |= {parent for parent, _ in await glance.children(generation, 1)}
    return children, cut
