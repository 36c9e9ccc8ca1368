"""Records that a new attempt is to make anew; a signal that one of them took goes back into the mailbox."""

from __future__ import annotations

from typing import Any


async def forget_steps(connection: Any, statements: dict[str, str], places: list[tuple[str, str, int]]) -> None:
    """Records that the next attempt is to make anew; signals that they took go back into the box."""
    if places:
        columns = [list(column) for column in zip(*places, strict=True)]
        await connection.execute(statements["untake"], *columns)
        await connection.execute(statements["forget"], *columns)
