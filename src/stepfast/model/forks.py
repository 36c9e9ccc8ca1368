"""Forks and rewinds: which records of a run stay when it is executed again from one of its steps.

A record that a fork has from another run says so in ``undo``: ``~`` and how many forks there were from the first run of
the line to the one that made the record. Undoing it belongs to that run alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..errors import InvalidState
from . import status
from .ids import new_seed
from .stored import read_json

_MARK = "~"
_UNDONE = "~undo"
"""The branch that the records of undos are in."""
_PATCH, _SLEEP = "patch", "sleep"
_CALLBACK, _CALLBACK_RESULT = "callback", "callback_result"


class Point(NamedTuple):
    """A recorded step: a run is executed again from here on."""

    branch: str
    position: int
    name: str


class Lean(NamedTuple):
    """A record without its payloads."""

    branch: str
    position: int
    seq: int
    name: str
    kind: str
    status: str
    undo: str | None
    mail: str | None = None
    """The mail that it took."""
    plan: str | None = None
    """Of a callback, what is kept of it."""

    @property
    def callback(self) -> str | None:
        """The id of the callback that it made, which its outcome has as well."""
        made: dict[str, object] = read_json(self.plan, dict[str, object], {})
        return str(made["id"]) if "id" in made else None


def addresses_above(branch: str) -> list[tuple[str, int]]:
    """The addresses at which a branch and the branches around it began, outermost first."""
    addresses: list[tuple[str, int]] = []
    outer = ""
    for part in branch.split("/") if branch else ():
        number = part.split(".", 1)[0]
        if not number.isdigit():
            return []  # not a branch of the code: the undos have a name of their own
        addresses.append((outer, int(number)))
        outer = f"{outer}/{part}" if outer else part
    return addresses


def kept(records: Sequence[Lean], point: Point, run_id: str) -> list[Lean]:
    """The records that stay: what was recorded before that step, and in its branch only what was called before it.
    Calls that are under way stay not, but for sleeps, whose records say until when. InvalidState if the step is not
    recorded."""
    target = next((each for each in records if each[:2] == point[:2] and each.name == point.name), None)
    if target is None or target.branch == _UNDONE or target.kind == _PATCH:
        raise InvalidState(f"step {point.name!r} is not recorded in run {run_id}; `run.steps()` lists what is")
    return [each for each in records if each.seq < target.seq and not _is_behind(each, target) and _is_final(each)]


def _is_final(record: Lean) -> bool:
    if record.branch == _UNDONE:
        return False
    return record.status != status.WAITING or record.kind == _SLEEP


def _is_behind(record: Lean, target: Lean) -> bool:
    """Whether it was called at the point or after it, in the branch of the point or within one that began there."""
    branch = record.branch.partition("@")[2] if record.kind == _PATCH else record.branch
    address = (branch, record.position)
    return any(at == target.branch and n >= target.position for at, n in (*addresses_above(branch), address))


def check_fork(stay: Sequence[Lean], undoing: bool, run_id: str) -> None:
    """Refuse a fork that would build on what the run undoes, or wait for a callback that belongs to the run."""
    undone = next((each.name for each in stay if undoing and is_own(each.undo)), None)
    if undone is not None:
        raise InvalidState(f"run {run_id} was undone, with its step {undone!r}: fork it before that step")
    taken = {each.mail for each in stay if each.kind == _CALLBACK_RESULT}
    callback = next((each.name for each in stay if each.kind == _CALLBACK and each.callback not in taken), None)
    if callback is not None:
        raise InvalidState(
            f"callback {callback!r} of run {run_id} was made before that step, and has no outcome by then. Its token "
            f"belongs to that run: fork it before the callback, which makes one of its own"
        )


def is_own(undo: str | None) -> bool:
    """Whether a record names an undo, and its run is the one that undoes it."""
    return undo is not None and not undo.startswith(_MARK)


def is_copied(undo: str | None) -> bool:
    """Whether another run has made a record."""
    return undo is not None and undo.startswith(_MARK)


def mark_of(depth: int) -> str:
    """What records of a run have in ``undo`` in its forks, so many forks after the first run of the line."""
    return f"{_MARK}{depth}"


class Makers:
    """Which run of a line of forks made the records of a branch: what the code drew at random before a record is drawn
    alike in every fork that has it."""

    def __init__(self, records: Iterable[tuple[str, int, str | None]]) -> None:
        found: dict[str, dict[int, int]] = {}
        for branch, position, undo in records:
            if undo is None or not undo.startswith(_MARK) or not undo[1:].isdigit():
                continue
            for outer, at in (*addresses_above(branch), (branch, position)):
                known = found.setdefault(outer, {})
                known[at] = min(int(undo[1:]), known.get(at, int(undo[1:])))
        self._found = {branch: sorted(places.items()) for branch, places in found.items()}

    def at(self, branch: str, position: int) -> int | None:
        """The depth of the run that made the first record at a position or after it; None: the run itself does."""
        places = self._found.get(branch, [])
        index = bisect_left(places, (position, -1))
        return places[index][1] if index < len(places) else None


# -- the secret of a run ------------------------------------------------------------------------------------------

_FORK, _REWIND = ";", "~"


def forked_seed(seed: str, source: str) -> str:
    """The seed of a fork: a secret of its own, and before it those of the runs that it has records of."""
    return _FORK.join((new_seed(), f"{source}:{_own(seed)}", *seed.split(_FORK)[1:]))


def rewound_seed(seed: str) -> str:
    """The seed of a run that is rewound once more: what it draws stays alike, its further children are others."""
    head, *others = seed.split(_FORK)
    return _FORK.join((f"{_own(seed)}{_REWIND}{rewinds(head) + 1}", *others))


def rewinds(seed: str) -> int:
    """How often a run was rewound."""
    number = seed.partition(_FORK)[0].partition(_REWIND)[2]
    return int(number) if number.isdigit() else 0


def depth(seed: str) -> int:
    """How many forks there are from the first run of the line to this one."""
    return seed.count(_FORK)


def _own(seed: str) -> str:
    return seed.partition(_FORK)[0].partition(_REWIND)[0]


def secret_of(seed: str, run_id: str, made_at: int | None) -> tuple[str, str]:
    """The secret, and the run that it is of, by which is drawn what the run at a depth of the line drew; None: this
    run."""
    if made_at is None:
        return _own(seed), run_id
    others = seed.split(_FORK)[1:]
    index = len(others) - made_at
    if not 0 <= index < len(others):
        return _own(seed), run_id
    source, _, secret = others[index].partition(":")
    return secret, source
