"""What is done leaves a line, whatever comes of it."""

from __future__ import annotations

import asyncio

import pytest

from stepfast import InvalidInput, Stepfast
from stepfast.errors import DatabaseUnavailable, InvalidState
from stepfast.monitoring.audit import audited, line_shape, new_entry
from stepfast.store.answers import AuditLine
from tests.engine.conftest import MakeApp

pytestmark = pytest.mark.enough_on("sqlite")


@pytest.fixture
async def app(make_app: MakeApp) -> Stepfast:
    return make_app()


async def lines(app: Stepfast) -> list[AuditLine]:
    return await (await app.store()).audit()


async def test_a_line_tells_what_came_of_it(app: Stepfast) -> None:
    async def act() -> int:
        [line] = await lines(app)
        assert line.outcome == "begun"  # before anything is done
        return 7

    what = new_entry("ada", "run.retry", "r-1", "192.0.2.7", {"from_start": True})
    assert await audited(app, what, act, lambda number: f"{number} of them") == 7
    [line] = await lines(app)
    assert line[2:] == ("ada", "run.retry", "r-1", "192.0.2.7", '{"from_start":true}', "done", "7 of them")
    assert line_shape(line)["detail"] == {"from_start": True}


@pytest.mark.parametrize(
    ("error", "outcome", "said"),
    [
        (InvalidState("it has ended"), "refused", "it has ended"),
        (InvalidInput("Invalid enum value 'a payload'"), "refused", "what was given does not fit"),
        (DatabaseUnavailable("gone"), "failed", "DatabaseUnavailable"),
        (ValueError("a payload"), "failed", "ValueError"),
    ],
)
async def test_what_is_refused_or_fails_has_a_line_too(
    app: Stepfast, error: Exception, outcome: str, said: str
) -> None:
    async def act() -> None:
        raise error

    with pytest.raises(type(error)):
        await audited(app, new_entry("ada", "run.cancel", "r-1", "::1"), act)
    assert [line[-2:] for line in await lines(app)] == [(outcome, said)]


async def test_whoever_is_interrupted_leaves_a_line_that_says_so(app: Stepfast) -> None:
    begun = asyncio.Event()

    async def act() -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(audited(app, new_entry("ada", "run.cancel", "r-1", "::1"), act))
    await begun.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [line.outcome for line in await lines(app)] == ["interrupted"]


async def test_names_that_people_choose_cannot_spoil_a_line(app: Stepfast) -> None:
    async def act() -> None: ...

    await audited(app, new_entry("a\x00\ud800" + "x" * 1000, "queue.pause", "\x1b[2J", "::1"), act)
    [line] = await lines(app)
    assert line.who.startswith("a\ufffd\ufffdxxx") and len(line.who) == 300
    assert line.which == "\ufffd[2J"
