"""Remote steps of declared graphs."""

from __future__ import annotations

from typing import Any

import pytest

from stepfast import Backoff, ConfigurationError, RemoteStepError, RunFailed, UnknownOption
from stepfast.remote import FatalError
from tests.remote_steps.conftest import Home, enough_joined, joined
from tests.support.engine import eventually


@enough_joined
async def test_a_step_of_a_graph_is_served_elsewhere(home: Home) -> None:
    fulfil = home.app.dag("fulfil")

    @fulfil.step
    async def scan(ctx: Any) -> int:
        return int(ctx.input) + 1

    fulfil.remote("echo", after=[scan])
    fulfil.remote("twice", handler="echo", group="echo", after=["echo"], input=lambda ctx: ctx.outputs["scan"] * 2)
    fulfil.remote("never", after=["scan"], when=lambda ctx: False)
    worker = home.worker()

    @worker.handle("echo")
    async def echo(input: Any) -> Any:
        return input

    run = await home.app.start(fulfil, 1)
    async with home.app.worker(), worker:
        assert await run.result(timeout=20) == {"scan": 2, "echo": {"input": 1, "outputs": {"scan": 2}}, "twice": 4}
        await home.nothing_is_left()
    assert {call.name for call in await run.activity() if call.queue_wait is not None} == {"echo"}
    assert {step.name for step in await run.steps() if step.queue_wait is not None} == {"echo", "twice"}


@joined
async def test_its_retries_its_failure_and_its_catch(home: Home) -> None:
    fulfil = home.app.dag("fulfil")
    fulfil.remote("echo", retries=1, catch={RemoteStepError: "mend"})
    fulfil.remote("mend", group="echo")
    worker, seen = home.worker(), []

    @worker.handle("echo")
    async def echo(input: Any) -> None:
        seen.append("echo")
        raise ValueError("no")

    @worker.handle("mend")
    async def mend(input: Any) -> str:
        return "mended"

    run = await home.app.start(fulfil)
    async with home.app.worker(), worker:
        assert await run.result(timeout=20) == {"mend": "mended"}
    assert seen == ["echo", "echo"]


@joined
async def test_it_waits_without_a_slot_and_says_for_what(home: Home) -> None:
    fulfil = home.app.dag("fulfil")
    fulfil.remote("echo")
    run = await home.app.start(fulfil)
    async with home.app.worker(concurrency=1):
        await eventually(lambda: _detail(run, "remote:echo"))
        await run.cancel()
        await home.nothing_is_left()


async def _detail(run: Any, what: str) -> bool:
    return [step.detail for step in await run.steps()] == [what]


@joined
async def test_a_completed_step_is_undone_elsewhere(home: Home) -> None:
    fulfil, undone = home.app.dag("fulfil"), list[Any]()
    fulfil.remote("charge", group="echo", input=lambda ctx: {"cents": ctx.input}, compensate="refund")
    fulfil.remote("ship", group="echo", after=["charge"])
    worker = home.worker()

    @worker.handle("charge")
    async def charge(input: Any) -> str:
        return "receipt"

    @worker.handle("ship")
    async def ship(input: Any) -> None:
        raise FatalError("no stock")

    @worker.handle("refund")
    async def refund(input: Any, task: Any) -> None:
        undone.append((input, task.step_id))

    run = await home.app.start(fulfil, 5)
    async with home.app.worker(), worker:
        with pytest.raises(RunFailed, match="no stock"):
            await run.result(timeout=20)
        await home.nothing_is_left()
    assert undone == [({"input": {"cents": 5}, "output": "receipt"}, f"{run.id}:-1")]
    assert await run.status() == "compensated"


@joined
async def test_it_is_tried_again_as_the_settings_say(home: Home) -> None:
    fulfil, calls = home.app.dag("fulfil"), list[int]()
    fulfil.remote("charge", group="echo", backoff=Backoff(base=0.001))
    worker = home.worker()

    @worker.handle("charge")
    async def charge(input: Any, task: Any) -> None:
        calls.append(task.attempt)
        raise ConnectionError("no answer")

    run = await home.app.start(fulfil)
    async with home.app.worker(), worker:
        with pytest.raises(RunFailed, match="no answer"):
            await run.result(timeout=20)
        await home.nothing_is_left()
    assert calls == [1, 2, 3]


def test_the_graph_says_nothing_of_its_retries(sqlite_url: str) -> None:
    """They are counted where it is served. Its run is executed once, which is not what a reader has to know."""
    from stepfast import Stepfast

    fulfil = Stepfast(sqlite_url).dag("fulfil")
    fulfil.remote("echo", retries=4)
    assert fulfil.graph.dag_steps["echo"].retries is None
    assert fulfil.steps["echo"].options.max_attempts == 1


def test_what_cannot_work_is_refused_with_the_name_of_the_step(sqlite_url: str) -> None:
    from stepfast import Stepfast

    fulfil = Stepfast(sqlite_url).dag("fulfil")
    with pytest.raises(ConfigurationError, match="step 'echo' of dag 'fulfil': retries must be"):
        fulfil.remote("echo", retries=-1)
    with pytest.raises(ConfigurationError, match="step 'echo' of dag 'fulfil': compensate must be the name of a"):
        fulfil.remote("echo", compensate=print)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="step 'echo' of dag 'fulfil': input must be a function"):
        fulfil.remote("echo", input=5)  # type: ignore[arg-type]
    with pytest.raises(UnknownOption, match="aftr"):
        fulfil.remote("echo", aftr=["x"])  # type: ignore[call-arg]
