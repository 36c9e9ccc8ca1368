"""Where the code of a branch stands. Each branch counts its own positions, and belongs to one task."""

from __future__ import annotations

import asyncio
from typing import Any


class Cursor:
    """Where the code of a branch stands: the position that its next call takes, and who may make it."""

    __slots__ = ("branch", "calls", "draws", "outer", "owner", "position")

    def __init__(
        self, branch: str = "", owner: asyncio.Task[Any] | int | None = None, outer: Cursor | None = None
    ) -> None:
        self.branch = branch
        self.outer = outer
        """The cursor of the branch in which this one began."""
        self.owner = owner
        """The task (or thread, for a plain def) that may call the context."""
        self.position = 0
        """The position that the next call takes."""
        self.draws = 0
        """What the code has drawn of ``ctx.random()`` and ``ctx.uuid()``."""
        self.calls = 0
        """Calls of this branch that are under way; with none, its code itself is at work."""


def sub_branch(branch: str, position: int, item: int | None = None) -> str:
    """The name of the branch that begins at a position; ``item`` where one call begins many."""
    name = str(position) if item is None else f"{position}.{item}"
    return f"{branch}/{name}" if branch else name


def branches_around(branch: str) -> list[str]:
    """The branch itself, that of which it is an item, and those in which they began, out to the main branch."""
    around = [branch[:at] for at, sign in enumerate(branch) if sign in "/."]
    return ["", *around, branch] if branch else [""]


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
