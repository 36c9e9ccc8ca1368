"""The log says why: which step, what message, where in the user's code; and with which ids, for those who search it."""

from __future__ import annotations

import ast
import logging
from pathlib import Path

import pytest

import stepfast
from stepfast import Backoff, Context, NonRetryableError, RunFailed, Stepfast
from stepfast.settings import Settings

SOURCE = Path(stepfast.__file__).parent
LEVELS = ("debug", "info", "warning", "error", "exception", "critical")
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
            run = await app.start(checkout)
            await app.drain()
        with pytest.raises(RunFailed):
            await run.result()
    return [record for record in caplog.records if getattr(record, "run_id", None) == run.id]


async def test_a_failure_is_told_with_step_message_and_the_users_traceback(caplog: pytest.LogCaptureFixture) -> None:
    tried, ended = await logged(caplog, Stepfast("sqlite://"))
    assert f"step 'charge', try 1 failed with NonRetryableError: {SECRET}; no further try" in tried.getMessage()
    assert "failed for good (code): StepFailed: step 'charge' failed: NonRetryableError" in ended.getMessage()
    for record in (tried, ended):
        text = logging.Formatter().format(record)
        assert "in declined" in text and "raise NonRetryableError(SECRET)" in text
        assert PAYLOAD not in text
    assert (tried.levelno, ended.levelno) == (logging.INFO, logging.WARNING)


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
            run = await app.start(load)
            await app.drain()
    large = [record for record in caplog.records if "is large" in record.getMessage()]
    told = {(record.getMessage().partition(" is")[0], getattr(record, "step", None)) for record in large}
    assert told == {
        ("the value of 'page'", None),
        ("the result of step 'fetch'", "fetch"),
        ("the result of 'load'", None),
    }
    assert {getattr(record, "run_id", None) for record in large} == {run.id}


def test_whatever_is_logged_of_a_run_carries_its_ids() -> None:
    """As attributes of the record, for those who search their logs: read off the source."""
    without = []
    for file in sorted(SOURCE.rglob("*.py")):
        for call in ast.walk(ast.parse(file.read_text())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in LEVELS:
                text = [part.value for part in ast.walk(call) if isinstance(part, ast.Constant)]
                names_run = any(isinstance(part, str) and "run %s" in part for part in text)
                if names_run and "extra" not in [keyword.arg for keyword in call.keywords]:
                    without.append(f"{file.name}:{call.lineno}")
    assert without == []


async def test_without_log_errors_no_message_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """For those who may not have messages in their logs: the class and the step are told all the same."""
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
            run = await app.start(order)
            await app.drain()
        assert await run.status() == "completed"
    told = [r.getMessage().partition("): ")[2] for r in caplog.records if getattr(r, "run_id", None) == run.id]
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
        run = await app.start(order)
        await app.drain()
        assert (await run.info()).reason == "undo_failed"
    [told] = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert "1 undos failed: undo 'refund' of step 'charge': NonRetryableError: the bank is closed" in told


async def test_the_error_of_a_run_keeps_where_its_step_went_wrong() -> None:
    """A traceback that ends at ctx.step tells nobody anything."""
    app = Stepfast("sqlite://")

    @app.workflow(max_attempts=1)
    async def child(ctx: Context) -> None:
        await ctx.step("charge", declined, "x")

    @app.workflow(max_attempts=1)
    async def parent(ctx: Context) -> None:
        try:
            await ctx.call(child)
        except Exception as error:
            raise RuntimeError("the order cannot be served") from error

    async with app:
        run = await app.start(parent)
        await app.drain()
        error = (await run.info()).error
    assert error is not None and error.traceback is not None
    assert "raise NonRetryableError(SECRET)" in error.traceback
    assert error.traceback.endswith("RuntimeError: the order cannot be served")
