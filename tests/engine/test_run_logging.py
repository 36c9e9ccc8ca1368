"""The log says why: which step, what message, where in the user's code; and with which ids, for those who search it."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stepfast
from stepfast import Backoff, Context, NonRetryableError, Stepfast
from stepfast.engine.observers import tell_each
from stepfast.model.records import WorkerInfo
from stepfast.model.urls import parse_url
from stepfast.runtime import all_namesakes, database_shown, namesakes
from stepfast.settings import Settings
from tests.engine.conftest import ON_SQLITE, MakeApp
from tests.support.engine import drained, failure
from tests.support.workflows import calling, task

SOURCE = Path(stepfast.__file__).parent
LEVELS = ("debug", "info", "warning", "error", "exception", "critical")
NAMED = re.compile(r"\b(run|step) %")
"""How a line says of which run or step it speaks."""
GIVERS = ("ids_of", "_ids", "ids_of_step")
"""Functions that give the ids of a run, or of a step of one, for a record of the log."""
PAYLOAD = "what the step was given"
SECRET = "card 4111 was declined"


async def declined(card: str) -> None:
    raise NonRetryableError(SECRET)


async def logged(caplog: pytest.LogCaptureFixture, app: Stepfast) -> list[logging.LogRecord]:
    """A run whose step fails for good, and what was logged of it."""

    @app.workflow(max_attempts=1)
    async def checkout(ctx: Context) -> None:
        await ctx.step("charge", declined, PAYLOAD)

    async with app:
        with caplog.at_level(logging.INFO, "stepfast"):
            run = await drained(app, checkout)
        await failure(run)
    return [record for record in caplog.records if getattr(record, "run_id", None) == run.id]


async def test_a_failure_is_told_with_step_message_and_the_users_traceback(caplog: pytest.LogCaptureFixture) -> None:
    tried, ended = await logged(caplog, Stepfast("sqlite://"))
    said = f"step 'charge', try 1 failed with NonRetryableError: {SECRET}; no further try (at test_run_logging.py:"
    assert said in tried.getMessage()
    assert "failed for good (code): StepFailed: step 'charge' failed: NonRetryableError" in ended.getMessage()
    text = logging.Formatter().format(ended)
    assert "in declined" in text and "raise NonRetryableError(SECRET)" in text
    assert "in checkout" in text and 'await ctx.step("charge", declined, PAYLOAD)' in text
    assert str(SOURCE) not in text and len(text.splitlines()) <= 16
    for record in (tried, ended):
        assert PAYLOAD not in logging.Formatter().format(record)
    assert tried.exc_info is None
    assert (tried.levelno, ended.levelno) == (logging.INFO, logging.WARNING)


async def test_a_long_traceback_is_cut_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def deep(left: int) -> None:
        (odd if left % 2 else deep)(left - 1)  # two functions, or Python itself would count the repetitions
        raise AssertionError

    def odd(left: int) -> None:
        if left < 2:
            raise ValueError("at the bottom")
        deep(left - 1)

    async with Stepfast("sqlite://") as app:

        @app.task(max_attempts=1)
        async def dive() -> None:
            deep(91)

        @app.workflow(max_attempts=1)
        async def send_down(ctx: Context) -> None:
            await ctx.options(retries=0).step(deep, 91)

        with caplog.at_level(logging.WARNING, "stepfast"):
            runs = [await app.start(dive), await app.start(send_down)]
            await app.drain()
            for run in runs:
                await failure(run)
    for record in caplog.records:
        text = logging.Formatter().format(record)
        assert "at the bottom" in text and 'raise ValueError("at the bottom")' in text
        assert len(text.splitlines()) <= 50
    assert len(caplog.records) == 2


async def test_the_end_of_a_dag_run_repeats_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async with Stepfast("sqlite://") as app:
        dag = app.dag("line")

        @dag.step(retries=0)
        async def refuse(ctx: object) -> None:
            raise NonRetryableError(SECRET)

        with caplog.at_level(logging.WARNING, "stepfast"):
            await drained(app, dag)
    assert len(caplog.records) == 2
    assert [record.exc_info is not None for record in caplog.records] == [True, False]


async def test_every_record_of_a_run_has_its_ids(caplog: pytest.LogCaptureFixture) -> None:
    records = await logged(caplog, Stepfast("sqlite://"))
    found = [(getattr(r, "workflow", None), getattr(r, "attempt", None), getattr(r, "step", None)) for r in records]
    assert found == [("checkout", 1, "charge")] * 2
    assert not [r for r in caplog.records if "run " in r.getMessage() and not hasattr(r, "run_id")]


async def test_values_that_are_large_are_told_with_the_ids_of_their_run(caplog: pytest.LogCaptureFixture) -> None:
    async with Stepfast("sqlite://", settings=Settings(warn_payload=100)) as app:

        @app.workflow
        async def load(ctx: Context) -> str:
            await ctx.set("page", "x" * 200)
            return await ctx.step("fetch", lambda: "x" * 200)

        with caplog.at_level(logging.WARNING, "stepfast"):
            run = await drained(app, load)
    large = [record for record in caplog.records if "is large" in record.getMessage()]
    told = {(record.getMessage().partition(" is")[0], getattr(record, "step", None)) for record in large}
    assert told == {
        ("the value of 'page'", None),
        ("the result of step 'fetch'", "fetch"),
        ("the result of 'load'", None),
    }
    assert {getattr(record, "run_id", None) for record in large} == {run.id}


class Spoken:
    """A call of a logger in the source, with what the names in it stand for in the same function."""

    def __init__(self, call: ast.Call, function: ast.AST) -> None:
        self.call = call
        self._meant: dict[str, list[ast.expr]] = {}
        for part in ast.walk(function):
            if isinstance(part, ast.Assign):
                for name in part.targets:
                    if isinstance(name, ast.Name):
                        self._meant.setdefault(name.id, []).append(part.value)

    def names_a_run(self) -> bool:
        """Whether it says of which run or step it speaks."""
        names = {part.id for given in self.call.args for part in ast.walk(given) if isinstance(part, ast.Name)}
        parts = [*self.call.args, *(value for name in names for value in self._meant.get(name, ()))]
        return any(NAMED.search(text) for part in parts for text in _texts(part))

    def has_run_id(self) -> bool:
        """Whether the record gets the id of the run as an attribute, whatever else it gets."""
        extra = [keyword.value for keyword in self.call.keywords if keyword.arg == "extra"]
        return bool(extra) and self._has_run_id(extra[0])

    def _has_run_id(self, given: ast.expr) -> bool:
        if isinstance(given, ast.Dict):
            return "run_id" in [key.value for key in given.keys if isinstance(key, ast.Constant)]
        if isinstance(given, ast.Call):
            return isinstance(given.func, ast.Name) and given.func.id in GIVERS
        meant = self._meant.get(given.id, []) if isinstance(given, ast.Name) else []
        return bool(meant) and all(self._has_run_id(value) for value in meant)


def _texts(part: ast.expr) -> Iterator[str]:
    for inner in ast.walk(part):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield inner.value
        elif isinstance(inner, ast.JoinedStr):
            yield "".join(str(each.value) if isinstance(each, ast.Constant) else "%" for each in inner.values)


def spoken(source: str) -> Iterator[Spoken]:
    """The calls of loggers in a source text."""
    tree = ast.parse(source)
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in LEVELS:
                    yield Spoken(call, function)


def test_whatever_is_logged_of_a_run_carries_its_ids() -> None:
    texts = {file: file.read_text() for file in sorted(SOURCE.rglob("*.py"))}
    logging_ = [file for file, text in texts.items() if any(f".{level}(" in text for level in LEVELS)]
    named = [(file, each) for file in logging_ for each in spoken(texts[file]) if each.names_a_run()]
    assert len(named) > 15
    assert sorted({f"{file.name}:{each.call.lineno}" for file, each in named if not each.has_run_id()}) == []


@pytest.mark.parametrize("number", [1, 5, 6, 1000])
def test_of_many_runs_the_first_have_a_record_each(caplog: pytest.LogCaptureFixture, number: int) -> None:
    runs = [f"run-{index}" for index in range(number)]
    tell_each(logging.getLogger("stepfast"), "expired", [{"run_id": run_id} for run_id in runs])
    named = [record for record in caplog.records if hasattr(record, "run_id")]
    assert [(record.getMessage(), getattr(record, "run_id", None)) for record in named] == [
        (f"run {run_id}: expired", run_id) for run_id in runs[:5]
    ]
    rest = [record.getMessage() for record in caplog.records if record not in named]
    assert rest == ([f"{number - 5} more runs: expired"] if number > 5 else [])


def test_steps_of_others_are_told_with_their_ids(caplog: pytest.LogCaptureFixture) -> None:
    tell_each(logging.getLogger("stepfast"), "sent once more", [{"run_id": "a", "step_id": "a:3", "step": "charge"}])
    (record,) = caplog.records
    assert record.getMessage() == "step a:3: sent once more"
    assert [getattr(record, name, None) for name in ("run_id", "step_id", "step")] == ["a", "a:3", "charge"]


async def test_without_log_errors_no_message_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    tried, ended = await logged(caplog, Stepfast("sqlite://", settings=Settings(log_errors=False)))
    assert tried.getMessage().endswith("step 'charge', try 1 failed with NonRetryableError; no further try")
    assert ended.getMessage().endswith("failed for good (code): StepFailed (step 'charge': NonRetryableError)")
    text = "\n".join(logging.Formatter().format(record) for record in caplog.records)
    assert SECRET not in text and "Traceback" not in text


async def test_failed_attempts_and_tries_say_when_they_are_made_again(caplog: pytest.LogCaptureFixture) -> None:
    app = Stepfast("sqlite://")
    calls: list[int] = []

    async def flaky() -> None:
        calls.append(1)
        if len(calls) < 4:
            raise ValueError(f"call {len(calls)}")

    @app.workflow(max_attempts=2, backoff=Backoff(base=0.01))
    async def order(ctx: Context) -> None:
        await ctx.options(retries=1, backoff=Backoff(base=0.01)).step(flaky)

    async with app:
        with caplog.at_level(logging.INFO, "stepfast"):
            run = await drained(app, order)
        assert await run.status() == "completed"
    said = [r.getMessage().partition("): ")[2] for r in caplog.records if getattr(r, "run_id", None) == run.id]
    told = [re.sub(r" \(at test_run_logging\.py:\d+\)$", "", text) for text in said]
    assert "Traceback" not in caplog.text and told != said
    assert told == [
        "step 'flaky', try 1 failed with ValueError: call 1; next try in 0.0 s",
        "step 'flaky', try 2 failed with ValueError: call 2; no further try",
        "attempt 1 failed with StepFailed: step 'flaky' failed: ValueError: call 2; next attempt in 0.0 s",
        "step 'flaky', try 1 failed with ValueError: call 3; next try in 0.0 s",
    ]


async def test_an_undo_that_failed_is_named(caplog: pytest.LogCaptureFixture) -> None:
    app = Stepfast("sqlite://")

    async def refund(output: None) -> None:
        raise NonRetryableError("the bank is closed")

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        await ctx.options(compensate=refund).step("charge", lambda: None)
        raise NonRetryableError("no stock")

    async with app:
        run = await drained(app, order)
        assert (await run.info()).reason == "undo_failed"
    [told] = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert "1 undos failed: undo 'refund' of step 'charge': NonRetryableError: the bank is closed" in told


async def test_the_error_of_a_run_keeps_where_its_step_went_wrong() -> None:
    app = Stepfast("sqlite://")
    child = calling(app, lambda ctx: ctx.step("charge", declined, "x"), name="child", max_attempts=1)

    @app.workflow(max_attempts=1)
    async def parent(ctx: Context) -> None:
        try:
            await ctx.call(child)
        except Exception as error:
            raise RuntimeError("the order cannot be served") from error

    async with app:
        run = await drained(app, parent)
        error = (await run.info()).error
    assert error is not None and error.traceback is not None
    assert "raise NonRetryableError(SECRET)" in error.traceback
    assert error.traceback.endswith("RuntimeError: the order cannot be served")


# -- what a worker's log says at its start: where the runs are kept, and who else has code of the same na


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@ON_SQLITE
async def test_a_worker_says_on_which_database_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("STEPFAST_URL", "sqlite:///named.db")
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.INFO, "stepfast"):
        async with Stepfast() as app, app.worker():
            pass
    assert f"works on the SQLite file {tmp_path / 'named.db'}, namespace 'stepfast'" in caplog.text
    assert not warnings(caplog)


@ON_SQLITE
@pytest.mark.parametrize("way", ["worker", "drain"])
async def test_a_database_that_nobody_named_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    monkeypatch.delenv("STEPFAST_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    async with Stepfast() as app:
        if way == "drain":
            await app.drain()
        else:
            async with app.worker():
                pass
    assert len(warnings(caplog)) == 1
    assert "STEPFAST_URL" in caplog.text and str(tmp_path / "stepfast.db") in caplog.text


@ON_SQLITE
def test_the_password_of_the_database_is_not_in_the_log() -> None:
    assert database_shown(parse_url("postgresql://ada:secret@db/shop")) == "postgresql://ada:***@db/shop"


def a_service(make_app: MakeApp, module: str, source: str) -> Stepfast:
    """An application whose one workflow is from a module of that name."""
    app = make_app()
    space: dict[str, Any] = {"__name__": module, "app": app, "Context": Context}
    exec(f"async def send(ctx: Context, what: str) -> str:\n    return {source}", space)
    app.workflow(space["send"])
    return app


@ON_SQLITE
async def test_two_services_with_one_name_for_different_code_are_told(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    bills, mails = a_service(make_app, "bills", "'bill'"), a_service(make_app, "mails.letters", "'mail' + what")
    async with bills.worker():
        assert not warnings(caplog)
        async with mails.worker():
            found = all_namesakes(await (await mails.store()).workers())
    told = "\n".join(warnings(caplog))
    assert "'send'" in told and "mails.letters" in told and "bills" in told and "namespace" in told
    assert [(n.workflow, {n.module, n.other}) for n in found] == [("send", {"bills", "mails.letters"})]


@ON_SQLITE
@pytest.mark.parametrize(
    ("module", "version", "differ"),
    [
        ("shop.orders", "v2", False),
        ("orders", "v2", False),
        ("", "v2", False),
        ("bills", "v1", False),
        ("bills", "v2", True),
        ("reorders", "v2", True),
    ],
)
def test_the_same_module_or_the_same_code_is_no_other_service(module: str, version: str, differ: bool) -> None:
    other = WorkerInfo("1", "host", 1, None, {"send": version}, 1, 1, modules={"send": module})
    assert bool(namesakes({"send": "orders"}, {"send": "v1"}, [other])) is differ


@ON_SQLITE
async def test_a_worker_warns_of_a_queue_that_no_workflow_uses(caplog: pytest.LogCaptureFixture) -> None:
    """The start line lists what the worker serves, and dags by their steps."""
    async with Stepfast("sqlite://") as app:
        app.queue("limited", concurrency=1)
        task(app, "send", returns=None, queue="mail")
        task(app, "other", returns=None)
        dag = app.dag("graph", queue="gpu")

        @dag.step
        async def train(ctx: Context) -> None: ...

        with caplog.at_level(logging.INFO, "stepfast"):
            async with app.worker(queues=["mial", "gpu", "limited"]):
                pass
            async with app.worker(queues=["mail"]):
                pass
    [warning] = [text for text in warnings(caplog) if "queue" in text]
    assert warning.startswith("queue 'mial' is the queue of no workflow here")
    assert warning.endswith("; did you mean 'mail'?")
    started = [record.getMessage() for record in caplog.records if " started: " in record.getMessage()]
    assert [line.rpartition(": ")[2] for line in started] == ["graph", "send"]
