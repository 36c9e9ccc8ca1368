"""What others write into the transport's tables: it is read for what it is, and harms nobody else's steps."""

from __future__ import annotations

from typing import Any

import pytest

from stepfast import Context, Settings, Stepfast
from stepfast.model.remote_steps import key_of, read_error
from stepfast.remote import RemoteWorker, SqlTransport
from tests.remote.tables import Tables

RUN = "01a1e2ff-9401-7a89-847a-d1691b87dc74"


@pytest.mark.parametrize("number", [0, 7, -1, 123456789])
def test_a_step_of_ours_is_known_by_its_id(number: int) -> None:
    assert key_of(f"{RUN}:{number}") == (RUN, number)


@pytest.mark.parametrize(
    "step_id",
    ["z" * 36 + ":0", " " * 36 + ":0", "é" * 36 + ":0", f"{RUN.upper()}:0", f"{RUN}:00", f"{RUN}:-0", f"{RUN}:٣",
     f"{RUN}:", f"{RUN}:1234567890", f"{RUN}:1\n", RUN, ""],
)  # fmt: skip
def test_an_id_that_cannot_be_ours_is_nobody_we_know(step_id: str) -> None:
    assert key_of(step_id) is None


def test_an_error_with_half_a_character_still_says_that_no_retry_will_help() -> None:
    """JavaScript cuts texts in the midst of an emoji, and writes the half that is left as an escape."""
    text, again = read_error(r'{"message":"no \ud83d","stack":"at \ud83d","retryable":false}')
    assert not again
    assert '"message":"no \\\\ud83d"' in text


async def test_rows_of_others_do_not_keep_our_steps_from_being_settled(postgres_url: str) -> None:
    """Another engine on the same tables names its runs as it likes. What lies there for longer than a lease is looked
    at, whosesoever it is."""
    settings = Settings(sweep_interval=0.1, poll_interval=0.05, lease=0.3)
    app = Stepfast(postgres_url, settings=settings, transport=SqlTransport(settings=settings))
    worker = RemoteWorker(postgres_url, "echo", poll_interval=0.02)

    @worker.handle("echo")
    async def echo(input: Any) -> Any:
        return input

    @app.workflow
    async def shop(ctx: Context, order: int) -> Any:
        return await ctx.remote("echo", order)

    async with SqlTransport(postgres_url):
        tables = await Tables(postgres_url).open()
    await tables.put_task(strange := "z" * 36 + ":0", group="another")
    await tables.put_result(strange, "completed", output="1")
    async with app, app.worker(), worker:
        assert await (await app.start(shop, 1)).result(timeout=20) == 1
        assert await (await app.start(shop, 2)).result(timeout=20) == 2
    assert await tables.tasks() == [strange]
    assert list(await tables.results()) == [strange]
    await tables.close()
