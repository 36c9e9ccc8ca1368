"""A text that is not the id of a run names no run: a handler gets for it what it gets for a run that was removed."""

from __future__ import annotations

import asyncio

import pytest

from stepfast import ConfigurationError, RunNotFound, Stepfast

pytestmark = pytest.mark.enough_on("sqlite")


@pytest.mark.parametrize("text", ["garbage", "", "7", "0197a1b2-0000-7000-8000-00000000000", "x" * 5000])
async def test_a_text_that_is_no_id_names_no_run(app: Stepfast, text: str) -> None:
    with pytest.raises(RunNotFound, match="that is not a run id") as told:
        app.get(text)
    assert len(str(told.value)) < 200
    with pytest.raises(RunNotFound):
        await app.signal(text, "go")
    for call in (app.sync.get, lambda text: app.sync.signal(text, "go")):
        with pytest.raises(RunNotFound):
            await asyncio.to_thread(call, text)


async def test_what_is_no_text_is_a_mistake_of_the_caller(app: Stepfast) -> None:
    with pytest.raises(ConfigurationError, match="is not a run id"):
        app.get(7)  # type: ignore[arg-type]
