"""What is hidden stays so where an error of one run quotes what only another holds, where a value was only set for
others to read, and where names are strange."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from stepfast import Backoff, Context, NonRetryableError, Settings, Stepfast
from stepfast.console import console
from stepfast.console.redaction import HIDDEN, Redactor, rule_of
from tests.console.conftest import JSON, TOKEN, browse

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRET = "se-cret-zwq-xy"


def fetched() -> Any:
    return {"card": {"number": SECRET}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def app() -> AsyncIterator[Stepfast]:
    made = Stepfast("sqlite://", settings=Settings(inline_wait=0))

    @made.workflow(max_attempts=1)
    async def child(ctx: Context, number: int) -> None:
        found = await ctx.step(fetched)
        raise NonRetryableError(f"no money on {found['card']['number']}")

    @made.workflow(max_attempts=1)
    async def parent(ctx: Context, number: int) -> None:
        await (await ctx.start(child, number)).result()

    @made.workflow(max_attempts=1)
    async def setter(ctx: Context, number: int) -> None:
        await ctx.set("card", {"number": SECRET})
        await ctx.step("refuse", refuse)

    def refuse() -> None:
        raise NonRetryableError(f"no money on {SECRET}")

    @made.workflow(max_attempts=1)
    async def named(ctx: Context, given: Any) -> None:
        raise NonRetryableError(f"no money on {next(iter(given['card']))}")

    dag = made.dag("graph")

    @dag.step(retries=5, backoff=Backoff(base=3600, max=3600))
    async def once_more(ctx: Any) -> None:
        found = await ctx.step("fetched", fetched)
        raise ValueError(f"no money on {found['card']['number']}")

    @dag.step
    async def gives(ctx: Any) -> Any:
        return fetched()

    @dag.step(after=["gives"])
    async def takes(ctx: Any) -> None:
        raise NonRetryableError(f"no money on {ctx.outputs['gives']['card']['number']}")

    async with made:
        for workflow, given in (("parent", 1), ("setter", 1), ("named", {"card": {SECRET: 1}}), ("graph", None)):
            await made.start(workflow, given)
        await made.drain()
        await made.put_schedule("nightly", "named", every=3600, input={"card": {"number": SECRET}})
        yield made


async def addresses(app: Stepfast) -> list[str]:
    """All that shows something of these runs, and of the runs that are their steps."""
    ids = [run.id for run in await app.runs()]
    ids += [step.child for run in list(ids) for step in await app.get(run).steps() if step.child]
    found = ["/runs", "/failures", "/schedules", "/schedules/confirm/trigger?schedule=nightly"]
    for run in dict.fromkeys(ids):
        found += [f"/runs/{run}", f"/runs/{run}/confirm/retry"]
        found += [f"/runs/{run}/payload?what=error{more}" for more in ("", "&position=0", "&position=1", "&position=2")]
    return found


@pytest.mark.parametrize("redact", [["card"], lambda path, value: "-" if "card" in path else value])
async def test_errors_that_quote_what_is_not_at_hand(app: Stepfast, redact: Any) -> None:
    sent = {}
    async with browse(console(app, token=TOKEN, redact=redact)) as client:
        for address in await addresses(app):
            for headers in ({}, JSON):
                sent[address] = (await client.get(address, headers=headers)).text
                assert SECRET not in sent[address], address
    assert any(f"no money on {HIDDEN}" in text for text in sent.values())  # where all is at hand, it is struck out


async def test_a_star_stands_for_a_name_with_dots_in_it() -> None:
    given = {"card": {"a.b": SECRET, "c\0d": SECRET, "e": {"f": SECRET}}, "other": {"number": "seen"}}
    shown = Redactor(rule_of(["card.*"])).value(given, "input")
    assert shown == {"card": {"a.b": HIDDEN, "c\0d": HIDDEN, "e": HIDDEN}, "other": {"number": "seen"}}
    assert Redactor(rule_of(["a.b"])).value({"a.b": 1, "a": {"b": 2, "c": 3}}, "input") == {
        "a.b": HIDDEN, "a": {"b": HIDDEN, "c": 3},
    }  # fmt: skip


async def test_a_function_is_given_paths_with_dots() -> None:
    paths: list[str] = []

    def rule(path: str, value: Any) -> Any:
        paths.append(path)
        return value

    Redactor(rule_of(rule)).value({"a": [{"b": 1}]}, "input")
    assert paths == ["input", "input.a", "input.a", "input.a.b"]


async def test_what_is_nested_deeply_is_veiled_too() -> None:
    deep: Any = SECRET
    for _ in range(900):
        deep = [deep]
    redactor = Redactor(rule_of(["card"]))
    assert SECRET not in str(redactor.value({"card": deep, "other": deep}, "input"))
    assert redactor.text(f"it is {SECRET}") == f"it is {HIDDEN}"
