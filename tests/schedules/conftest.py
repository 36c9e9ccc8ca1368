"""Applications on the test's database, and time that passes for their schedules."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from stepfast import Stepfast
from tests.engine.conftest import MakeApp, app, calls, make_app
from tests.store.scene import Rows

__all__ = ["MakeApp", "PassBy", "app", "calls", "make_app", "pass_by"]

PassBy = Callable[[str, float], Awaitable[None]]


@pytest.fixture
async def pass_by(app: Stepfast) -> AsyncIterator[PassBy]:
    """Let so many seconds have passed since a schedule was last looked at: nobody waits for a real hour."""
    opened: list[Rows] = []

    async def let_pass(name: str, seconds: float) -> None:
        await app._declared.declare(None)  # so that it is stored
        if not opened:
            opened.append(Rows(await app.store(), app.namespace, app.url.text))
        columns = ("next_at", "due_at", "woken_at", "created_at")
        moved = ", ".join(f"{column} = {column} - {round(seconds * 1000)}" for column in columns)
        await opened[0].fetch(f"UPDATE [schedules] SET {moved} WHERE name = ?", name)

    yield let_pass
    for rows in opened:
        await rows.close()
