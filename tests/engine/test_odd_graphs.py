"""A stored graph that a hand has damaged: its run is shown with the reason, and keeps no other from being shown,
checked or executed (rule 59)."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from typer.testing import CliRunner

from stepfast import ConfigurationError, InvalidState, Run, Settings, Stepfast
from stepfast.cli import cli
from stepfast.console import console
from stepfast.monitoring.explain import explain
from tests.console.conftest import TOKEN, browse
from tests.engine.conftest import ON_SQLITE, MakeApp
from tests.support.engine import PATIENCE, eventually
from tests.support.odd_rows import Tables

pytestmark = ON_SQLITE

QUICK = Settings(inline_wait=0, poll_interval=0.05, sweep_interval=0.05)
TEXTS = (
    "{", "", "null", "[]", "{}", "-1", '[{"nome":"one"}]', '[{"name":"one"},{"name":"one"}]',
    '[{"name":"one","after":["last"]},{"name":"last","after":["one"]}]', '[{"name":"one","after":["gone"]}]',
    "[" * 5000,
)  # fmt: skip


def declare(app: Stepfast) -> None:
    dag = app.dag("graph")
    dag.declare(lambda ctx: 1, name="one")
    dag.approval("ok", after=["one"])

    other = app.dag("other")
    other.approval("ok")


@pytest.fixture
def app(make_app: MakeApp) -> Stepfast:
    app = make_app(settings=QUICK)
    declare(app)
    return app


async def damage(app: Stepfast, text: str) -> None:
    """Let every stored copy of the graph be this."""
    tables = await Tables.of(app)
    await tables.execute(f"UPDATE {tables.name('definitions')} SET graph = {{}} WHERE name = 'graph'", text)
    await tables.execute(
        f"UPDATE {tables.name('run_values')} SET value = {{}} WHERE key = '~graph' AND run_id IN "
        f"(SELECT id FROM {tables.name('runs')} WHERE workflow = 'graph')",
        text,
    )
    await tables.close()


async def end_as_failed(app: Stepfast, run: Run[Any], *, without: str = "") -> None:
    """Let a run have failed, and have lost a step."""
    tables = await Tables.of(app)
    runs = tables.name("runs")
    await tables.execute(f"UPDATE {runs} SET status = 'failed' WHERE id = {{}}", tables.id(run.id))
    if without:
        await tables.execute(f"DELETE FROM {runs} WHERE dag_id = {{}} AND dag_step = '{without}'", tables.id(run.id))
    await tables.close()


async def begun(app: Stepfast) -> list[Run[Any]]:
    """Two dag runs that wait for their approvals."""
    runs = [await app.start("graph", {}), await app.start("other", {})]
    async with app.worker():
        for run in runs:
            await eventually(partial(_is_waiting, run))
    return runs


async def _is_waiting(run: Run[Any]) -> bool:
    return await run.status() == "waiting"


@pytest.mark.parametrize("text", TEXTS[::4])
async def test_a_run_with_a_damaged_graph_is_shown_with_the_reason(app: Stepfast, text: str) -> None:
    odd, other = await begun(app)
    await damage(app, text)
    steps = await odd.steps()
    assert [(step.name, step.kind, step.status) for step in steps] == [
        ("one", "unknown", "completed"), ("ok", "unknown", "waiting"),
    ]  # fmt: skip
    assert "graph is damaged" in await explain(app, await odd.info(), steps, [], [])
    assert {info.id for info in await app.runs()} == {odd.id, other.id}
    async with browse(console(app, token=TOKEN)) as client:
        page = await client.get(f"/runs/{odd.id}")
        assert page.status_code == 200 and "graph is damaged" in page.text
    shown = await asyncio.to_thread(CliRunner().invoke, cli, ["show", odd.id, "--url", app.url.text])
    assert shown.exit_code == 0 and "graph is damaged" in " ".join(shown.output.split())


@pytest.mark.parametrize("text", TEXTS)
async def test_a_damaged_graph_keeps_no_other_run_from_being_checked(app: Stepfast, text: str) -> None:
    odd, other = await begun(app)
    await damage(app, text)
    verdicts = {checked.id: (checked.verdict, checked.detail) for checked in await app.check()}
    assert verdicts[odd.id][0] == "unknown" and "damaged" in verdicts[odd.id][1]
    assert verdicts[other.id][0] == "fits"
    replayed = await app.replay(await odd.export())
    assert replayed.verdict == "unknown" and "damaged" in replayed.detail
    with pytest.raises(InvalidState, match=r"graph of run .* is damaged"):
        await _start_anew(app, odd)


async def _start_anew(app: Stepfast, run: Run[Any]) -> None:
    await run.cancel()
    await end_as_failed(app, run)
    await run.retry(from_start=True)


async def test_a_run_with_a_damaged_graph_is_not_retried(app: Stepfast) -> None:
    odd, _ = await begun(app)
    await end_as_failed(app, odd)
    await damage(app, "{")
    with pytest.raises(InvalidState, match="is damaged"):
        await odd.retry()


async def test_a_dag_run_without_one_of_its_steps_is_not_retried(app: Stepfast) -> None:
    odd, _ = await begun(app)
    await end_as_failed(app, odd, without="ok")
    with pytest.raises(InvalidState, match="has no step 'ok'"):
        await odd.retry()


async def test_a_dag_whose_definition_is_damaged_is_not_started_by_its_name(make_app: MakeApp, app: Stepfast) -> None:
    await begun(app)
    await damage(app, "{")
    with pytest.raises(ConfigurationError, match="the graph of dag 'graph' is damaged"):
        await make_app(settings=QUICK).start("graph", {})


async def test_a_worker_leaves_a_run_with_a_damaged_graph_to_wait(app: Stepfast) -> None:
    odd, other = await begun(app)
    await damage(app, "{")
    async with app.worker() as worker:
        await odd.signal("ok", 1)
        await other.signal("ok", 2)
        assert await other.result(timeout=PATIENCE) == {"ok": 2}
        assert not worker.broken.is_set()
