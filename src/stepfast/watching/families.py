"""The family of a run: who started it, and what it has started, as a tree that is never too large to look at."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..app import Stepfast
from ..reports import RunInfo, listed_info
from ..store.readonly import BaseGlance
from .onlooker import glance_of

DEEP = 4
"""Generations below a run that are told."""
EACH = 20
"""Children of one run that are told."""
_MOST = 200
_ABOVE = 10


@dataclass(slots=True)
class Member:
    """A run with what it has started."""

    run: RunInfo
    children: list[Member] = field(default_factory=list)
    more: bool = False
    """Whether it has started more than are told."""


@dataclass(slots=True)
class Family:
    """The family of one run."""

    above: list[RunInfo]
    """The runs that started it, the nearest first."""
    below: list[Member]
    more: bool
    """Whether it has started more than are told."""


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
    """The children of each run, generation by generation; and of which there are more."""
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
