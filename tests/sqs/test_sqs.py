"""Remote steps over SQS: what the engine sends, what a worker serves, and what comes of messages that are odd."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from stepfast import Backoff, Context, RemoteStepError
from stepfast.errors import ConfigurationError, DatabaseUnavailable
from stepfast.remote import FatalError, RemoteTask, RemoteWorker, SqsTransport, Task
from stepfast.store.answers import MissingRight
from tests.sqs.conftest import Scene
from tests.support.engine import Calls, Gate, eventually
from tests.support.sqs import REGION, Account

VALUES = [None, False, 0, "", "Grüße 🎈 \u0000 \uffff end", [1, 2.5, "x"], {"a": {"b": None}}, "x" * 200_000, 2**53]


async def drained(account: Account, *names: str) -> None:
    """Wait until queues are empty."""
    await eventually(lambda: all(not account.count(name) for name in names or ("tasks-echo", "results")), 60)


async def test_steps_of_an_application_on_sqlite_are_served(scene: Scene) -> None:
    app, worker = scene.app(), scene.worker()
    seen: list[RemoteTask] = []

    @worker.handle("moody")
    def moody(input: Any, task: RemoteTask) -> Any:
        seen.append(task)
        if input == "fatal":
            raise FatalError("card declined", code="declined")
        if task.attempt < 3:
            raise ValueError("not yet")
        return "done"

    @app.workflow
    async def shop(ctx: Context) -> list[Any]:
        values = await ctx.gather(*(ctx.remote("echo", value) for value in VALUES))
        options: dict[str, Any] = {"group": "echo", "retries": 3, "backoff": Backoff(base=0.01)}
        calls = [ctx.remote(name, given, **options) for name, given in (("moody", 1), ("moody", "fatal"), ("none", 1))]
        found = await ctx.gather(*calls, return_errors=True)
        return [values, [each.message if isinstance(each, RemoteStepError) else each for each in found]]

    run = await app.start(shop)
    async with app.worker(), worker:
        values, found = await run.result(timeout=40)
        await drained(scene.account)
    assert values == VALUES
    assert found == ["done", "card declined", "no handler for none"]
    first, second = (sorted(t.attempt for t in seen if t.step_id == f"{run.id}:{len(VALUES) + n}") for n in (0, 1))
    assert (first, second) == ([1, 2, 3], [1])
    waits = [step.queue_wait for step in await run.steps() if step.name in ("echo", "moody")]
    assert None not in waits


async def test_queues_that_exist_already_are_used_and_others_left_alone(scene: Scene) -> None:
    """A queue that is shared with others has messages without the marker."""
    account = scene.account
    tasks, results = account.url("extraction"), account.url("answers")
    account.put("extraction", "a message of others")
    urls = {"pipeline.extract": tasks}
    app = scene.app(queue_urls=urls, results_url=results, marker="durable", create=False)
    worker = scene.worker(
        "pipeline.extract", {"results_url": results, "marker": "durable"}, queue_urls=urls, create=False
    )

    @app.workflow
    async def shop(ctx: Context) -> Any:
        return await ctx.remote("echo", 7, group="pipeline.extract")

    run = await app.start(shop)
    async with app.worker(), worker:
        assert await run.result(timeout=30) == 7
        await eventually(lambda: account.count("extraction") == 1 and account.count("answers") == 0)
    found = await eventually(lambda: account.take("extraction"))
    assert [message["Body"] for message in found] == ["a message of others"]


@pytest.mark.thorough
async def test_queues_that_keep_an_order(scene: Scene) -> None:
    app, worker = scene.app(fifo=True), scene.worker(parameters={"fifo": "true"})
    calls = Calls()

    @worker.handle("late")
    async def late(input: Any, task: RemoteTask) -> int:
        calls.hit(task.step_id)
        if task.attempt < 2:
            raise ValueError("once more")
        return task.attempt

    @app.workflow
    async def shop(ctx: Context) -> Any:
        late = (ctx.remote("late", n, group="echo", retries=1, backoff=Backoff(base=0)) for n in range(3))
        return await ctx.gather(*(ctx.remote("echo", n) for n in range(12)), *late)

    run = await app.start(shop)
    async with app.worker(), worker:
        assert await run.result(timeout=40) == [*range(12), 2, 2, 2]
        await drained(scene.account, "tasks-echo.fifo", "results.fifo")
    assert sorted(calls.values()) == [2, 2, 2]


async def test_a_body_that_is_too_large_is_refused_by_name(scene: Scene) -> None:
    scene.account.url("tasks-echo", MaximumMessageSize="4096")
    scene.account.url("results", MaximumMessageSize="2048")
    app, worker = scene.app(), scene.worker()

    @app.workflow
    async def shop(ctx: Context) -> list[Any]:
        calls = (ctx.remote("echo", "x" * size, retries=2) for size in (10, 3_000, 5_000, 20))
        found = await ctx.gather(*calls, return_errors=True)
        return [each.message if isinstance(each, RemoteStepError) else len(str(each)) for each in found]

    run = await app.start(shop)
    async with app.worker(), worker:
        small, result, task, last = await run.result(timeout=30)
        await drained(scene.account)
    assert (small, last) == (10, 20)
    assert "the result of step" in result and "at most 2048" in result and "bucket=" in result
    assert "the task of step" in task and "at most 4096" in task and "bucket=" in task


async def test_a_body_that_is_too_large_goes_through_s3(scene: Scene) -> None:
    scene.account.url("tasks-echo", MaximumMessageSize="4096")
    scene.account.url("results", MaximumMessageSize="4096")
    bucket = scene.account.bucket()
    app, worker = scene.app(bucket=bucket), scene.worker(parameters={"bucket": bucket})

    @app.workflow
    async def shop(ctx: Context) -> list[int]:
        texts: list[Any] = await ctx.gather(*(ctx.remote("echo", "ü" * size) for size in (10, 90_000)))
        return [len(str(text)) for text in texts]

    run = await app.start(shop)
    async with app.worker(), worker:
        assert await run.result(timeout=30) == [10, 90_000]
        await drained(scene.account)
        await eventually(lambda: not scene.account.objects())


@pytest.mark.thorough
async def test_a_worker_without_the_bucket_says_so(scene: Scene) -> None:
    scene.account.url("tasks-echo", MaximumMessageSize="4096")
    app, worker = scene.app(bucket=scene.account.bucket()), scene.worker()

    @app.workflow
    async def shop(ctx: Context) -> Any:
        try:
            return await ctx.remote("echo", "x" * 9_000, retries=5)
        except RemoteStepError as error:
            return error.message

    run = await app.start(shop)
    async with app.worker(), worker:
        assert "this side has no bucket=" in await run.result(timeout=30)
    [dead] = scene.account.take("dead")
    assert "this side has no bucket=" in dead["MessageAttributes"]["stepfast-reason"]["StringValue"]


async def test_poison_goes_to_the_dead_letter_queue_with_the_reason(scene: Scene) -> None:
    account = scene.account
    graves = account.url("graves")
    arn = account.sqs.get_queue_attributes(QueueUrl=graves, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "1000"})
    account.url("tasks-echo", RedrivePolicy=policy)
    account.put("tasks-echo", "no JSON")
    account.put("tasks-echo", {"stepId": 5})
    account.put("tasks-echo", json.dumps(account.task("run:0", float("nan"))))
    account.put("tasks-echo", account.task("run:1", 1))
    async with scene.worker():
        found: dict[str, Any] = {}

        async def two() -> bool:
            found.update({body["stepId"]: body for body in map(_body, account.take("results"))})
            return len(found) == 2

        await eventually(two)
        await drained(account, "tasks-echo")
    assert found["run:1"]["output"] == 1
    assert found["run:0"]["error"]["retryable"] is False and "not a task" in found["run:0"]["error"]["message"]
    dead = account.take("graves")
    assert sorted(message["Body"][:8] for message in dead) == ["no JSON", '{"runId"', '{"stepId']
    for message in dead:
        assert "not a task" in message["MessageAttributes"]["stepfast-reason"]["StringValue"]


@pytest.mark.thorough
async def test_a_task_that_kills_its_workers_is_given_up(scene: Scene) -> None:
    account = scene.account
    account.put("tasks-echo", account.task("run:0", 1))
    url = account.url("tasks-echo")
    for _ in range(10):
        found = account.sqs.receive_message(QueueUrl=url, VisibilityTimeout=0, WaitTimeSeconds=0).get("Messages", [])
        assert len(found) == 1
    async with scene.worker():
        [result] = await eventually(lambda: account.take("results"))
        await drained(account, "tasks-echo")
    assert "received 11 times" in _body(result)["error"]["message"]
    [dead] = account.take("dead")
    assert "received 11 times" in dead["MessageAttributes"]["stepfast-reason"]["StringValue"]


@pytest.mark.thorough
async def test_results_that_cannot_be_read_and_those_of_others(scene: Scene) -> None:
    """They do not keep a result that is good from its run."""
    account, app = scene.account, scene.app()

    @app.workflow
    async def shop(ctx: Context) -> Any:
        return await ctx.remote("echo", 1)

    run = await app.start(shop)
    bodies = ("[]", {"stepId": "run:0", "status": "odd"}, {"stepId": "a:1", "status": "completed", "output": 1})
    for body in bodies:
        account.put("results", body)
    async with app.worker(), scene.worker():
        assert await run.result(timeout=30) == 1
        await eventually(lambda: account.count("dead") == 2)
        await drained(account, "tasks-echo")
    reasons = [message["MessageAttributes"]["stepfast-reason"]["StringValue"] for message in account.take("dead")]
    assert any("not the result" in reason for reason in reasons) and any("'odd'" in reason for reason in reasons)


@pytest.mark.thorough
async def test_what_is_delivered_twice_counts_once(scene: Scene) -> None:
    """Tasks and results both: SQS delivers at least once."""
    account, app, calls, transport = scene.account, scene.app(), Calls(), scene.transport()

    @app.workflow
    async def shop(ctx: Context) -> list[Any]:
        return [await ctx.remote("count", n, group="echo") for n in range(3)]

    worker = scene.worker()

    @worker.handle("count")
    async def count(input: Any, task: RemoteTask) -> Any:
        calls.hit(task.step_id)
        return input

    run = await app.start(shop)
    for seq in range(3):
        for _ in range(3):
            account.put("results", {"stepId": f"{run.id}:{seq}", "runId": run.id, "seq": seq, "status": "failed",
                                    "error": {"message": "of an attempt that never was"}, "attempt": 9})  # fmt: skip
    async with app.worker(), worker, transport:
        await eventually(lambda: calls[f"{run.id}:0"])
        await transport.dispatch([Task(f"{run.id}:0", run.id, 0, "count", "echo", "0")] * 3)
        assert await run.result(timeout=30) == [0, 1, 2]
        done = {"stepId": f"{run.id}:2", "runId": run.id, "seq": 2, "status": "completed", "output": 7}
        account.put("results", done)
        account.put("results", done)
        await drained(account)
    assert [step.output for step in await run.steps()] == [0, 1, 2]


async def test_a_task_stays_hidden_while_its_handler_works(scene: Scene) -> None:
    account, gate, calls = scene.account, Gate(), Calls()
    workers = [scene.worker(lease=1) for _ in range(2)]
    for worker in workers:

        @worker.handle("slow")
        async def slow(input: Any) -> str:
            calls.hit("slow")
            await gate.passing()
            return "done"

    account.put("tasks-echo", account.task("run:0", name="slow"))
    async with workers[0], workers[1]:
        await gate.reached()
        await asyncio.sleep(2.5)  # in which it must not be delivered again
        gate.open()
        [result] = await eventually(lambda: account.take("results"))
        await drained(account, "tasks-echo")
    assert (_body(result)["output"], calls["slow"]) == ("done", 1)


@pytest.mark.thorough
async def test_a_worker_that_stops_gives_its_tasks_back_at_once(scene: Scene) -> None:
    account, gate = scene.account, Gate()
    first, second = scene.worker(lease=600), scene.worker()

    @first.handle("slow")
    async def slow(input: Any) -> None:
        await gate.passing()

    @second.handle("slow")
    async def quick(input: Any) -> str:
        return "by the second"

    account.put("tasks-echo", account.task("run:0", name="slow"))
    await first.start()
    await gate.reached()
    await first.stop(grace=0)
    async with second:
        [result] = await eventually(lambda: account.take("results"))
    assert _body(result)["output"] == "by the second"


async def test_what_was_sent_is_not_sent_again_with_the_rest(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    account = scene.account
    async with scene.transport() as transport:
        assert transport._open is not None
        queues = transport._open._queues
        call, left = queues._call, [1]

        async def failing(name: str, /, **arguments: Any) -> Any:
            if name == "send_message_batch" and not left:
                raise DatabaseUnavailable("cut off")
            if name == "send_message_batch":
                left.pop()
            return await call(name, **arguments)

        monkeypatch.setattr(queues, "_call", failing)
        tasks = [Task(f"run:{n}", "run", n, "echo", "echo", str(n)) for n in range(25)]
        with pytest.raises(DatabaseUnavailable):
            await transport.dispatch(tasks)
        assert account.count("tasks-echo") == 10
        monkeypatch.setattr(queues, "_call", call)
        kept = await transport.dispatch(tasks)
        assert kept == 14 * 24 * 3600
        assert account.count("tasks-echo") == 25
        with pytest.raises(ConfigurationError, match="takes no connection"):
            await transport.dispatch(tasks, connection=object())


async def test_trouble_is_named(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DatabaseUnavailable, match="SQS cannot be reached at http"):
        await SqsTransport(REGION, "http://127.0.0.1:9").open()
    transport = scene.transport(create=False)
    with pytest.raises(Exception, match="make the queue or bucket"):
        await transport.open()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    with pytest.raises(MissingRight, match="finds no credentials"):
        await scene.transport().open()
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    with pytest.raises(ConfigurationError, match="needs a region"):
        await SqsTransport().open()


async def test_a_name_that_no_queue_can_have_is_refused(scene: Scene) -> None:
    async with scene.transport() as transport:
        with pytest.raises(ConfigurationError, match="cannot be the name of a queue"):
            await transport.dispatch([Task("run:0", "run", 0, "echo", "pipeline.extract", "1")])
    with pytest.raises(ConfigurationError, match="queue_urls="):
        await scene.worker("pipeline.extract").start()


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("sqs://key:secret@eu-central-1", "no user or password"),
        ("sqs://eu-central-1/queue", "cannot be read"),
        ("sqs://eu-central-1?wait=3", "not known here"),
        ("sqs://eu-central-1?fifo=perhaps", "fifo=true"),
        ("sqs://eu-central-1?endpoint_url=ftp://x", "begins with https"),
        ("sqs://EU_1", "not a region"),
        ("sqs://eu-central-1?bucket=A_B", "S3 bucket"),
        ("sqs://eu-central-1?marker=a%20b", "message attribute"),
    ],
)
def test_a_url_that_cannot_work_is_refused_at_once(url: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told) as error:
        RemoteWorker(url, "echo")
    assert "secret" not in str(error.value)


def test_options_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="12 hours"):
        RemoteWorker("sqs://eu-central-1", "echo", lease=50_000)
    with pytest.raises(ConfigurationError, match="queue_urls="):
        RemoteWorker("postgresql://db/shop", "echo", queue_urls={})
    with pytest.raises(ConfigurationError, match="is not the URL of a queue"):
        SqsTransport(queue_urls={"echo": "tasks"})


async def test_an_unopened_transport_says_so() -> None:
    with pytest.raises(ConfigurationError, match="not open"):
        await SqsTransport(REGION).results(["run:0"])


def _body(message: dict[str, Any]) -> Any:
    return json.loads(message["Body"])
