"""Our worker beside the published packages: it serves their engine, and shares a group with their workers."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from stepfast.remote import FatalError, RemoteTask, RemoteWorker, SqlTransport, Task
from tests.interop.packages import node, node_folder
from tests.remote.scene import results_of
from tests.remote.tables import Tables
from tests.support.engine import eventually
from tests.support.postgres import ROOT

VALUES = [None, False, 0, "", "Grüße 🎈 \u2028", [1, 2.5, "x"], {"a": {"b": None}}, "x" * 200_000, 9007199254740991]


async def test_their_engine_is_served_by_our_worker(url: str) -> None:
    node_folder()
    worker = RemoteWorker(url, group="our-step", poll_interval=0.02)
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
    steps += [{"name": "our:step", "input": number} for number in range(100)]
    async with worker:
        outcomes = await their_engine(url, "run", steps)
    count = len(VALUES)
    assert [outcome["output"]["value"] for outcome in outcomes[:count]] == VALUES
    rain, shower, fatal, unfit = outcomes[count : count + 4]
    assert (rain["status"], rain["error"]["message"]) == ("failed", "it rains")
    assert shower["output"] == {"value": "shower"}
    assert (fatal["status"], fatal["error"]["message"]) == ("failed", "card declined")
    assert unfit["status"] == "failed" and "nan is not a JSON number" in unfit["error"]["message"]
    assert [outcome["output"]["value"] for outcome in outcomes[count + 4 :]] == list(range(100))
    attempts = Counter(task.step_id for task in calls)
    assert [attempts[f"run-{number}:0"] for number in range(count, count + 4)] == [3, 3, 1, 1]
    assert sum(attempts.values()) == len(steps) + 4
    assert await left_over(url) == []


async def test_their_engine_hears_of_a_handler_that_is_missing(url: str) -> None:
    node_folder()
    async with RemoteWorker(url, group="nobody", poll_interval=0.02):
        [outcome] = await their_engine(url, "run", [{"name": "nobody", "input": 1, "options": {"retries": 5}}])
    assert (outcome["status"], outcome["error"]["message"]) == ("failed", "no handler for nobody")


@pytest.mark.thorough
async def test_workers_of_three_makers_share_a_group(postgres_url: str, spawn: Callable[..., Any]) -> None:
    async with SqlTransport(postgres_url) as transport:
        tables = await Tables(postgres_url).open()
        spawn("worker.mjs", postgres_url, "who")
        spawn("python_worker.py", postgres_url, "who")
        worker = RemoteWorker(postgres_url, group="who", poll_interval=0.02, batch=3)

        @worker.handle("who")
        async def who(input: Any) -> str:
            await asyncio.sleep(0.01)
            return "stepfast"

        async with worker:
            tasks = [Task(f"run:{n}", "run", n, "who", "who", None) for n in range(300)]
            await transport.dispatch(tasks)
            results = await results_of(tables, 300)
        assert {result["status"] for result in results.values()} == {"completed"}
        makers = Counter(result["output"] for result in results.values())
        assert set(makers) == {"node", "python", "stepfast"}, makers
        await eventually(lambda: _none_left(tables))
        await tables.close()


@pytest.mark.thorough
async def test_the_example_of_the_contract_serves_our_transport(postgres_url: str, spawn: Callable[..., Any]) -> None:
    async with SqlTransport(postgres_url) as transport:
        tables = await Tables(postgres_url).open()
        spawn("example.mjs", postgres_url, "text")
        names = ("upper", "upper", "nobody")
        inputs = ('"Grüße"', "7", "null")
        pairs = enumerate(zip(names, inputs, strict=True))
        await transport.dispatch([Task(f"run:{n}", "run", n, name, "text", text) for n, (name, text) in pairs])
        results = await results_of(tables, 3)
        assert results["run:0"]["output"] == "GRÜSSE"
        assert results["run:1"]["status"] == "failed" and "retryable" not in results["run:1"]["error"]
        assert results["run:2"]["error"] == {"message": "no handler for nobody", "retryable": False}
        assert await tables.tasks() == []
        await tables.close()


@pytest.mark.thorough
async def test_what_their_worker_held_when_it_was_killed_is_done_by_ours(
    url: str, transport: SqlTransport, tables: Tables, spawn: Callable[..., Any]
) -> None:
    process = spawn("worker.mjs", url, "who")
    await transport.dispatch(
        [Task("run:0", "run", 0, "hold", "who", None), Task("run:1", "run", 1, "who", "who", None)]
    )

    async def held() -> bool:
        return bool((await tables.fetch("SELECT claimed_by FROM [tasks] WHERE step_id = 'run:0'"))[0][0])

    await eventually(held)
    process.kill()
    worker = RemoteWorker(url, group="who", poll_interval=0.02, lease=0.5)
    for name in ("who", "hold"):

        @worker.handle(name)
        async def serve(input: Any) -> str:
            return "stepfast"

    async with worker:
        results = await results_of(tables, 2)
    assert results["run:0"]["output"] == "stepfast"


async def their_engine(url: str, run: str, steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run their engine until all its runs have ended."""
    plan = json.dumps({"url": url, "run": run, "steps": steps})
    process = await asyncio.create_subprocess_exec(
        node(), "engine.mjs", cwd=node_folder(),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said, complained = await asyncio.wait_for(process.communicate(plan.encode()), 60)
    assert process.returncode == 0, complained.decode()
    outcomes: list[dict[str, Any]] = json.loads(said)
    return outcomes


async def left_over(url: str) -> list[Any]:
    tables = await Tables(url).open()
    found = [*await tables.tasks(), *await tables.results()]
    await tables.close()
    return found


async def _none_left(tables: Tables) -> bool:
    return not await tables.tasks()


def test_groups_are_spelled_as_their_engine_does() -> None:
    cases = json.loads((ROOT / "contract" / "vectors" / "groups.json").read_text())
    command = [node(), "groups.mjs", json.dumps(cases)]
    done = subprocess.run(command, cwd=node_folder(), capture_output=True, check=True, timeout=60)
    assert json.loads(done.stdout) == [case["group"] for case in cases]
