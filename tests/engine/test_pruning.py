"""app.prune, its archive, and run.delete: what goes, what stays, and that nothing is lost on the way (rules 26, 35)."""

from __future__ import annotations

import json
import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stepfast import ConfigurationError, Context, InvalidState, RunNotFound, Settings, Stepfast
from stepfast.retention import _BEGINNING
from stepfast.worker import pruner
from tests.engine.conftest import MakeApp
from tests.store.scene import DAY
from tests.support import nursery
from tests.support.codecs import Backwards
from tests.support.engine import drained, finished
from tests.support.waiting import rows_of
from tests.support.workflows import task

pytestmark = pytest.mark.enough_on("sqlite")
EVERYWHERE = pytest.mark.enough_on("sqlite", "postgres")
MONTH = timedelta(days=30)


@pytest.fixture
def app(make_app: MakeApp) -> Stepfast:
    """One whose runs give their slots back at once."""
    return make_app(settings=Settings(inline_wait=0, drain=0.05, backoff_base=0.001))


async def age(app: Stepfast, *run_ids: str, days: int = 40) -> None:
    """Let runs have ended so many days ago; all of them, if none is named."""
    async with rows_of(app) as rows:
        if run_ids:
            for run_id in run_ids:
                await rows.shift(run_id, "completed_at", -days * DAY)
        else:
            await rows.fetch("UPDATE [runs] SET completed_at = completed_at - ?", days * DAY)


async def count(app: Stepfast, table: str) -> int:
    async with rows_of(app) as rows:
        [(number,)] = await rows.fetch(f"SELECT count(*) FROM [{table}]")
    return int(number)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@EVERYWHERE
async def test_what_ended_goes_and_nothing_that_is_still_needed(app: Stepfast) -> None:
    undone: list[str] = []
    fulfil = app.dag("fulfil")

    @fulfil.step(compensate=lambda ctx: undone.append(ctx.output))
    async def reserve(ctx: Any) -> str:
        return "r-1"

    fulfil.approval("ok", after=["reserve"])

    @app.workflow
    async def child(ctx: Context) -> str:
        return "child"

    @app.workflow
    async def parent(ctx: Context, patient: bool) -> str:
        started = await ctx.start(child)
        if patient:
            await ctx.wait_signal("go")
        return await started.result()

    @app.workflow
    async def chain(ctx: Context, n: int) -> None:
        if n:
            await ctx.continue_as(n - 1)
        await ctx.wait_signal("go")

    approved, cancelled, completed = [await app.start(fulfil) for _ in range(3)]
    waits, over = await app.start(parent, True), await app.start(parent, False)
    first = await app.start(chain, 3, key="c")
    await completed.signal("ok", True)
    await app.drain()
    await age(app)
    assert await app.prune(MONTH, dry_run=True) == 5
    assert await app.prune(MONTH) == 5, "the dag run, the parent that is over, its child, two links of the chain"
    assert await app.prune(MONTH) == 0
    for run in (completed, over):
        with pytest.raises(RunNotFound, match="may have been pruned"):
            await run.info()
    assert (await app.start(chain, 3, key="c")).id == first.id
    await approved.signal("ok", True)
    await cancelled.cancel()
    await waits.signal("go")
    await first.signal("go")
    assert await finished(app, approved) == {"reserve": "r-1", "ok": True}
    assert ((await cancelled.info()).status, undone) == ("compensated", ["r-1"])
    assert await waits.result() == "child"
    await first.result()
    await age(app)
    await app.prune(MONTH)
    assert [await count(app, table) for table in ("runs", "steps", "mailbox", "run_values")] == [0, 0, 0, 0]


@EVERYWHERE
async def test_an_archive_has_a_line_for_each_run_with_its_steps_and_tries(app: Stepfast, tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl"

    @app.workflow(max_attempts=1)
    async def order(ctx: Context, cents: int) -> int:
        await ctx.set("progress", 0.5)
        return await ctx.options(retries=1, name="charge").step(charge, cents)

    async def charge(cents: int) -> int:
        if cents < 0:
            raise ValueError("negative")
        return cents * 10**20

    good, bad = await app.start(order, 3, key="o-3", tags=["red"]), await app.start(order, -3)
    await app.drain()
    await age(app)
    assert await app.prune(MONTH, status="completed", archive=path) == 1
    assert await app.prune(older_than=30 * 86400, archive=str(path)) == 1
    kept, failed = lines(path)
    assert (kept["id"], kept["key"], kept["tags"], kept["input"]) == (good.id, "o-3", ["red"], 3)
    assert kept["output"] == 3 * 10**20 and kept["values"] == {"progress": 0.5} and kept["tries"] == []
    [charged] = [step for step in kept["steps"] if step["name"] == "charge"]
    assert (charged["status"], charged["arguments"], charged["output"]) == ("completed", {"cents": 3}, 3 * 10**20)
    assert (failed["id"], failed["status"], failed["error"]["type"]) == (bad.id, "failed", "StepFailed")
    assert [each["number"] for each in failed["tries"] if each["name"] == "charge"] == [1, 2]
    assert path.stat().st_mode & 0o077 == 0, "payloads are for their owner"


async def test_what_went_through_a_codec_stays_as_it_is_stored(make_app: MakeApp, tmp_path: Path) -> None:
    app = make_app(codec=Backwards())
    flow = app.dag("flow")

    @flow.step
    async def only(ctx: Any) -> str:
        return "secret"

    await drained(app, flow, "secret")
    assert await app.prune(0, archive=tmp_path / "old.jsonl") == 1
    [line] = lines(tmp_path / "old.jsonl")
    assert line["format"] == 2 and isinstance(line["input"], str)
    assert [step["name"] for step in line["dag_steps"]] == ["only"] and isinstance(line["dag_steps"][0]["output"], str)
    assert "secret" not in (tmp_path / "old.jsonl").read_text()


async def test_an_archive_that_cannot_be_written_keeps_everything(app: Stepfast, tmp_path: Path) -> None:
    echo = task(app, "echo")
    await drained(app, echo, 1)
    notes = tmp_path / "notes.txt"
    notes.write_text("not\nan archive")
    for path, why in (
        (tmp_path / "no" / "old.jsonl", "No such file"),
        (tmp_path, "Is a directory"),
        (notes, "no arch"),
    ):
        with pytest.raises(ConfigurationError, match=why):
            await app.prune(0, archive=path)
    assert notes.read_text() == "not\nan archive"
    with pytest.raises(ConfigurationError, match="only runs that have ended"):
        await app.prune(0, status="running")
    assert len(await app.runs()) == 1


async def test_a_full_disk_ends_it_before_anything_is_removed(app: Stepfast) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    echo = task(app, "echo")
    await drained(app, echo, 1)
    with pytest.raises(ConfigurationError, match="No space left"):
        await app.prune(0, archive="/dev/full")
    assert len(await app.runs()) == 1


async def test_an_unfinished_line_is_cut_off_and_two_do_not_write_at_once(app: Stepfast, tmp_path: Path) -> None:
    echo = task(app, "echo")
    path = tmp_path / "old.jsonl"
    path.write_bytes(b'{"id":"first"}\n' + _BEGINNING + b'"id":"torn')
    runs = await app.start_many(echo, range(3))
    await app.drain()
    told: list[int] = []

    def progress(gone: int) -> None:
        told.append(gone)

    assert await app.prune(0, archive=path, progress=progress) == 3
    assert [line["id"] for line in lines(path)] == ["first", *(run.id for run in runs)]
    assert told[-1] == 3
    from stepfast.retention import open_archive

    async with open_archive(path, await app.store()):
        with pytest.raises(ConfigurationError, match="another process is writing"):
            await app.prune(0, archive=path)


KILLED = """
import asyncio, os, signal, sys
from stepfast import Stepfast
from stepfast.worker import pruner
pruner._BATCH = 2

async def main():
    app = Stepfast(sys.argv[1])
    store, calls, remove = await app.store(), [], None
    remove = store.remove

    async def killing(*args):
        calls.append(args)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return await remove(*args)

    store.remove = killing
    await app.prune(0, archive=sys.argv[2])

asyncio.run(main())
"""


async def test_a_kill_between_the_archive_and_the_removal_loses_no_run(
    app: Stepfast, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    echo = task(app, "echo")
    runs = await app.start_many(echo, range(6))
    await app.drain()
    path = tmp_path / "old.jsonl"
    killed = nursery.run(["-c", KILLED, url, path], folder=tmp_path, environment=os.environ, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    there, archived = {info.id for info in await app.runs()}, [line["id"] for line in lines(path)]
    assert len(there) == 4 and len(archived) == 4
    assert there | set(archived) == {run.id for run in runs}
    monkeypatch.setattr(pruner, "_BATCH", 2)
    assert await app.prune(0, archive=path) == 4
    assert {line["id"] for line in lines(path)} == {run.id for run in runs} and len(lines(path)) == 8


@EVERYWHERE
async def test_one_run_is_deleted(app: Stepfast) -> None:
    @app.workflow(max_attempts=1)
    async def parent(ctx: Context) -> str:
        await ctx.call(child)
        await ctx.wait_signal("go")
        raise ValueError("no")

    child = task(app, "child", returns="done")
    run = await app.start(parent, key="p")
    with pytest.raises(InvalidState, match="is queued; only a run that has ended can be deleted"):
        await run.delete()
    await app.drain()
    [born] = await app.runs(workflow=child)
    with pytest.raises(InvalidState, match=f"cannot be deleted yet: its parent {run.id} is waiting and goes on"):
        await app.get(born.id).delete()
    await run.signal("go")
    await app.drain()
    with pytest.raises(InvalidState, match="is failed and may be retried"):
        await app.get(born.id).delete()
    await run.delete()
    await app.get(born.id).delete()
    with pytest.raises(RunNotFound):
        await run.delete()
    assert [await count(app, table) for table in ("runs", "steps", "tries")] == [0, 0, 0]
    assert (await app.start(parent, key="p")).id != run.id


async def test_a_step_of_a_dag_run_goes_only_with_it(app: Stepfast) -> None:
    flow = app.dag("flow")

    @flow.step
    async def only(ctx: Any) -> None: ...

    run = await drained(app, flow)
    [step] = await (await app.store()).dag_steps(run.id)
    with pytest.raises(InvalidState, match="it can only be deleted with that run"):
        await app.get(step.id).delete()
    await run.delete()
    assert await count(app, "runs") == 0


def test_the_same_without_an_event_loop(tmp_path: Path) -> None:
    app = Stepfast(f"sqlite:///{tmp_path / 'stepfast.db'}")
    echo = task(app, "echo")
    one, two = app.sync.start_many(echo, [1, 2])
    app.sync.drain()
    one.delete()
    assert app.sync.prune(0, archive=tmp_path / "old.jsonl") == 1
    assert [line["id"] for line in lines(tmp_path / "old.jsonl")] == [two.id]
    app.sync.close()
