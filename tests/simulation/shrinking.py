"""A scenario that breaks a promise is made smaller: whatever can be left out without mending it is left out.

What was left out is written as a text (``runs.1,faults.0,workers=1``), which together with the seed is the smaller
scenario, exactly.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

from tests.simulation.scenario import Scenario

LISTS = frozenset(
    {"runs", "signals", "wishes", "orders", "holders", "talk", "faults", "dag", "program", "lines", "ops"}
)
"""What can be left out is an item of one of these."""
SIMPLER: tuple[tuple[str, Any], ...] = (
    ("remote", False), ("limits", None), ("schedule", None), ("dag", None), ("slow", 0.0), ("workers", 1)
)  # fmt: skip
_GONE = object()
MOST = 200
"""Worlds that are played at most to make one smaller."""


def without(scenario: Scenario, left_out: list[str]) -> Scenario:
    """The scenario without these parts. Runs stay in their places, for others name them by number."""
    made: Any = copy.deepcopy(scenario)
    for change in left_out:
        path, is_value, value = change.partition("=")
        *way, last = path.split(".")
        here = made
        for name in way:
            here = here[int(name) if isinstance(here, list) else name]
        if is_value:
            here[last] = json.loads(value)
        else:
            here[int(last)] = None if way == ["runs"] else _GONE
    cleaned: Scenario = _cleaned(made)
    return cleaned


def _cleaned(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _cleaned(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_cleaned(each) for each in value if each is not _GONE]
    return value


def parts(scenario: Scenario) -> list[str]:
    """All that can be left out, the largest first."""
    simpler = [f"{name}={json.dumps(value)}" for name, value in SIMPLER if scenario.get(name) not in (value, None)]
    items = sorted(_items(scenario, ""), key=lambda path: path.count("."))
    return [*simpler, *items]


def _items(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _items_of(each, f"{path}{name}", name in LISTS and value.get("do") != "race")
    elif isinstance(value, list):
        yield from _items_of(value, path.rstrip("."), True)


def _items_of(value: Any, path: str, removable: bool) -> Iterator[str]:
    for number, each in enumerate(value) if isinstance(value, list) else ():
        if removable and each is not None:
            yield f"{path}.{number}"
        yield from _items(each, f"{path}.{number}.")
    if isinstance(value, dict):
        yield from _items(value, f"{path}.")


def shrink(scenario: Scenario, breaks: Callable[[Scenario], bool], most: int = MOST) -> list[str]:
    """What can be left out so that it still breaks."""
    left_out: list[str] = []
    played = 0
    again = True
    while again:
        again = False
        for part in parts(scenario):
            if part in left_out or any(part.startswith(f"{gone.partition('=')[0]}.") for gone in left_out):
                continue
            if played == most:
                return left_out
            played += 1
            if breaks(without(scenario, [*left_out, part])):
                left_out.append(part)
                again = True
    return left_out
