"""Remote steps over SQS beside the published packages: their workers serve our engine, and ours serves theirs."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from stepfast import Backoff, Context, RemoteStepError
from stepfast.remote import FatalError, RemoteTask
from tests.interop.packages import node, node_folder
from tests.interop.test_published import VALUES
from tests.sqs.conftest import Scene, account, credentials, scene, sqs_server
from tests.support.engine import eventually

__all__ = ["account", "credentials", "scene", "sqs_server"]

MAKERS = [
    pytest.param("sqs_worker.mjs", id="node"),
    pytest.param("python_sqs_worker.py", id="python", marks=pytest.mark.thorough),
]
RETRYING: dict[str, Any] = {"retries": 2, "backoff": Backoff(base=0.01)}


def begin(spawn: Callable[..., Any], scene: Scene, maker: str, group: str) -> Any:
    """Start a worker of theirs; its queues are there."""
    scene.account.url(f"tasks-{group}")
    scene.account.url("results")
    return spawn(maker, scene.account.endpoint, scene.account.prefix, group)


async def nothing_is_left(scene: Scene, group: str) -> None:
    await eventually(lambda: not scene.account.count(f"tasks-{group}") and not scene.account.count("results"), 60)


@pytest.mark.parametrize("maker", MAKERS)
async def test_their_worker_serves_our_engine(scene: Scene, spawn: Callable[..., Any], maker: str) -> None:
    app = scene.app()

    @app.workflow
    async def all_of_it(ctx: Context) -> list[Any]:
        return await ctx.gather(*(ctx.remote("echo", value, group="theirs") for value in [*VALUES, *range(50)]))

    @app.workflow
    async def errors(ctx: Context) -> list[Any]:
        calls = [ctx.remote(name, group="theirs", **RETRYING) for name in ("rain", "fatal", "nobody")]
        found: list[Any] = []
        for error in await ctx.gather(*calls, return_errors=True):
            assert isinstance(error, RemoteStepError)
            found.append([error.message, error.code])
        found.append(await ctx.remote("shower", "over", group="theirs", **RETRYING))
        return found

    runs = [await app.start(all_of_it), await app.start(errors)]
    begin(spawn, scene, maker, "theirs")
    async with app.worker():
        values = await runs[0].result(timeout=60)
        rain, fatal, nobody, shower = await runs[1].result(timeout=60)
        await nothing_is_left(scene, "theirs")
    assert values == [*VALUES, *range(50)]
    assert rain[0] == "it rains"
    assert fatal == ["card declined", "declined"]
    assert nobody == ["no handler for nobody", None]
    assert shower == "over"
    tries = Counter(call.name for call in await runs[1].activity())
    assert (tries["rain"], tries["nobody"], tries["shower"]) == (3, 1, 3)
    assert {step.queue_wait is not None for step in await runs[0].steps()} == {True}


async def test_their_engine_is_served_by_our_worker(scene: Scene) -> None:
    scene.account.url("tasks-our-step")
    worker = scene.worker("our-step")
    calls: list[RemoteTask] = []

    @worker.handle("our:step")
    async def serve(input: Any, task: RemoteTask) -> Any:
        calls.append(task)
        if input == "rain" or (input == "shower" and task.attempt < 3):
            raise ValueError("it rains")
        if input == "fatal":
            raise FatalError("card declined", code="declined")
        if input == "unfit":
            return float("nan")
        return input

    retrying = {"retries": 3, "backoffMs": 1}
    steps: list[dict[str, Any]] = [{"name": "our:step", "input": value} for value in VALUES]
    steps += [{"name": "our:step", "input": name, "options": retrying} for name in ("rain", "shower", "fatal", "unfit")]
    steps += [{"name": "our:step", "input": number} for number in range(50)]
    plan = {"endpoint": scene.account.endpoint, "prefix": scene.account.prefix, "run": "run", "steps": steps}
    async with worker:
        process = await asyncio.create_subprocess_exec(
            node(), "sqs_engine.mjs", cwd=node_folder(),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        said, complained = await asyncio.wait_for(process.communicate(json.dumps(plan).encode()), 100)
        assert process.returncode == 0, complained.decode()
        await eventually(lambda: not scene.account.count("tasks-our-step"))
    outcomes: list[dict[str, Any]] = json.loads(said)
    count = len(VALUES)
    assert [outcome["output"]["value"] for outcome in outcomes[:count]] == VALUES
    rain, shower, fatal, unfit = outcomes[count : count + 4]
    assert (rain["status"], rain["error"]["message"]) == ("failed", "it rains")
    assert shower["output"] == {"value": "shower"}
    assert (fatal["status"], fatal["error"]["message"]) == ("failed", "card declined")
    assert unfit["status"] == "failed" and "nan is not a JSON number" in unfit["error"]["message"]
    assert [outcome["output"]["value"] for outcome in outcomes[count + 4 :]] == list(range(50))
    attempts = Counter(task.step_id for task in calls)
    assert [attempts[f"run-{count + n}:0"] for n in range(4)] == [3, 3, 1, 1]


@pytest.mark.thorough
async def test_workers_of_three_makers_share_a_group(scene: Scene, spawn: Callable[..., Any]) -> None:
    app, worker = scene.app(), scene.worker("who")

    @worker.handle("who")
    async def who(input: Any) -> str:
        await asyncio.sleep(0.01)
        return "stepfast"

    @app.workflow
    async def crowd(ctx: Context) -> dict[str, int]:
        return dict(Counter(await ctx.gather(*(ctx.remote("who", n) for n in range(150)))))

    begin(spawn, scene, "sqs_worker.mjs", "who")
    begin(spawn, scene, "python_sqs_worker.py", "who")
    run = await app.start(crowd)
    async with app.worker(), worker:
        makers = await run.result(timeout=100)
        await nothing_is_left(scene, "who")
    assert set(makers) == {"node", "python", "stepfast"}
    assert sum(makers.values()) == 150


@pytest.mark.thorough
@pytest.mark.parametrize("maker", ["sqs_worker.mjs", "python_sqs_worker.py"])
async def test_what_their_worker_held_when_it_was_killed_is_done_by_ours(
    scene: Scene, spawn: Callable[..., Any], maker: str
) -> None:
    app, account = scene.app(), scene.account

    @app.workflow
    async def patient(ctx: Context) -> Any:
        return await ctx.remote("hold", group="who")

    run, process = await app.start(patient), begin(spawn, scene, maker, "who")
    hidden = "ApproximateNumberOfMessagesNotVisible"
    url = account.url("tasks-who")

    def held() -> bool:
        found = account.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[hidden])["Attributes"]
        return bool(found[hidden] == "1")

    async with app.worker():
        await eventually(held)
        process.kill()
        worker = scene.worker("who")

        @worker.handle("hold")
        async def hold(input: Any) -> str:
            return "stepfast"

        async with worker:
            assert await run.result(timeout=60) == "stepfast"
            await nothing_is_left(scene, "who")
