"""The drawings on the page of a run: inline, without styles of their own, linked, and veiled like the rest."""

from __future__ import annotations

import re
from typing import Any

import pytest

from stepfast import Backoff, Context, Settings, Stepfast, step
from stepfast.console import console
from tests.console.conftest import TOKEN, browse

pytestmark = pytest.mark.enough_on("sqlite")


def visits(url: str) -> Stepfast:
    app = Stepfast(url, settings=Settings(inline_wait=0))
    tries = iter(range(100))

    @step(retries=2, backoff=Backoff(base=0.001, jitter=False))
    def knock() -> str:
        if next(tries) < 2:
            raise ConnectionError("the secret zwq-xy does not answer")
        return "open"

    @app.workflow
    async def visit(ctx: Context, what: Any) -> None:
        await ctx.step(knock)
        await ctx.step("</svg><script>alert(1)</script>", lambda: 1)
        await ctx.start(visit_child)

    @app.workflow(max_attempts=1)
    async def refused(ctx: Context) -> None:
        await ctx.options(retries=0).step("decline", decline)

    @app.task
    async def visit_child() -> None:
        pass

    dag = app.dag("line")
    dag.declare(lambda ctx: 1, name="first")
    dag.approval("ok", after=["first"])
    return app


async def test_a_timeline_with_tries_and_links(url: str) -> None:
    async with visits(url) as app:
        run = await app.start("visit", {"code": "zwq-xy"})
        await app.drain()
        child = next(step.child for step in await run.steps() if step.child)
        async with browse(console(app, token=TOKEN)) as client:
            page = (await client.get(f"/runs/{run.id}")).text
        drawn = page[page.index("<svg") : page.index("</svg>")]
        said = re.search(r"<title>.*?knock.*?>([^<>]+) · 3 tries<", drawn, re.DOTALL)
        assert said is not None
        assert f'<td data-name="took">{said[1]}' in page.replace("\n", ""), "the table and the timeline count alike"
        assert 'role="img"' in drawn and f"Timeline of run {run.id}" in drawn
        assert f'href="/runs/{child}"' in drawn and "ConnectionError" in drawn and "3 tries" in drawn
        assert "style=" not in page and "<script>alert" not in page
        async with browse(console(app, token=TOKEN, redact=["code"])) as client:
            veiled = (await client.get(f"/runs/{run.id}")).text
        assert "ConnectionError" in veiled and "zwq-xy" not in veiled


def decline() -> None:
    raise ValueError("card declined")


async def test_an_error_and_what_is_beside_it_are_apart(url: str) -> None:
    async with visits(url) as app:
        run = await app.start("refused")
        await app.drain()
        async with browse(console(app, token=TOKEN)) as client:
            page = (await client.get(f"/runs/{run.id}")).text
            listed = (await client.get("/runs")).text
    assert re.search(r"card declined(</\w+>)? <details><summary>1 failed try</summary>", page)
    assert '<td data-name="error" class="cut rest">' in listed and 'data-name="input"' not in listed


async def test_the_graph_of_a_dag_run(url: str) -> None:
    async with visits(url) as app:
        run = await app.start("line", None)
        await app.drain()
        async with browse(console(app, token=TOKEN), base="http://testserver") as client:
            page = (await client.get(f"/runs/{run.id}")).text
            style = await client.get(re.findall(r'href="(/static/diagrams.css[^"]*)"', page)[0])
        assert f"Graph of run {run.id} of line: 2 steps, 1 completed, 1 waiting" in page
        assert page.count("<svg") == 2
        assert style.status_code == 200 and ".sf-drawing" in style.text
