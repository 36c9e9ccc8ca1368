"""A type checker reports wrong uses of the face, where they are written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

WRONG = """
from __future__ import annotations

import stepfast
from stepfast import Backoff, Context, DagContext, Stepfast, SyncContext, step

app = Stepfast("sqlite://")


@step(retries=3)
async def charge(cents: int, *, note: str = "") -> str:
    return str(cents)


def add_tax(cents: int, rate: float) -> float:
    return cents * rate


async def write(connection: object, cents: int) -> int:
    return cents


@step(retry=3)  # wrong
def print_label() -> None: ...


@app.workflow
async def checkout(ctx: Context, cents: int) -> str:
    await ctx.step(charge, "5")  # wrong
    await ctx.step(charge)  # wrong
    await ctx.step(charge, 5, nte="x")  # wrong
    await ctx.step("tax", add_tax, 5)  # wrong
    await ctx.step("tax", add_tax, 5, "1.2")  # wrong
    await ctx.options(retries="3").step(charge, 5)  # wrong
    await ctx.options(retries=3).step(charge, "5")  # wrong
    await ctx.options(retry=3).step(charge, 5)  # wrong
    await ctx.options(retries=3).options(timeout="1").step(charge, 5)  # wrong
    await ctx.transaction(write, "5")  # wrong
    await ctx.transaction(write)  # wrong
    await ctx.transaction("label", write, 5, 6)  # wrong
    text: str = await ctx.options(retries=3).transaction(write, 5)  # wrong
    await ctx.first(ctx.sleep(5))  # wrong
    await ctx.branches().branch(5, checkout)  # wrong
    await stepfast.current().step(charge, 5)  # wrong
    await ctx.start(checkout, 5, key="k")  # wrong
    number: int = await ctx.step(charge, 5)  # wrong
    await ctx.step(5)  # wrong
    await ctx.remote("pay", retry=3)  # wrong
    await ctx.remote("pay", type=int, retries="3")  # wrong
    fine: str = await ctx.step(charge, 5, note="x")
    return fine


@app.workflow
def in_a_thread(ctx: SyncContext, cents: int) -> float:
    ctx.step(charge, "5")  # wrong
    ctx.transaction(write, "5")  # wrong
    ctx.remote("pay", type=int, grp="payments")  # wrong
    number: int = ctx.step(charge, cents)  # wrong
    return ctx.step(add_tax, cents, 1.2)


@app.task(max_attempts="3")  # wrong
async def send(cents: int) -> str:
    return await charge(cents, note=5)  # wrong


@app.workflow(retries=3)  # wrong
async def with_a_wrong_option(ctx: Context) -> None: ...


app.dag("hurried", priority=3)  # wrong
fulfil = app.dag("fulfil", queue="dags", deadline=5)


@fulfil.step(affter=["pack"])  # wrong
async def send_off(ctx: DagContext) -> None: ...


@fulfil.step(join="some")  # wrong
async def pack(ctx: DagContext) -> None: ...


fulfil.remote("pack.it", affter=["pack"])  # wrong
fulfil.remote("send.it", after=["pack"], retries=3, compensate=add_tax)  # wrong


async def trigger() -> None:
    await app.start(checkout, "5")  # wrong
    await app.start(checkout, 5, priority="high")  # wrong
    await app.start(checkout, 5, colour="red")  # wrong
    await app.start_many(checkout, ["5"])  # wrong
    run = await app.start(checkout, 5)
    number: int = await run.result()  # wrong
    fine: str = await run.result(timeout=5)
    Backoff(base="1")  # wrong
    await app.start_many(checkout, [5], key="k")  # wrong
    app.sync.start(checkout, 5, colour="red")  # wrong
    app.sync.start(checkout, "5")  # wrong
    await app.runs(state="failed")  # wrong
    await app.runs(limit="5")  # wrong
    app.sync.runs(state="failed")  # wrong
    app.sync.prune(0, archve="old.jsonl")  # wrong
    app.sync.prune(0, dry_run="yes")  # wrong
    app.sync.check(limit="5")  # wrong
    app.sync.replay("{}", timeot=5)  # wrong
    await app.work(queues=["a"], sweep_interval=3)  # wrong
"""


def marked() -> set[int]:
    return {number for number, line in enumerate(WRONG.splitlines(), 1) if line.endswith("# wrong")}


def reported(output: str) -> set[int]:
    return {int(found) for found in re.findall(r"wrong\.py:(\d+)(?::\d+)?(?: -)?:? error", output)}


@pytest.mark.parametrize("checker", ["mypy", pytest.param("pyright", marks=pytest.mark.thorough)])
def test_wrong_types_are_reported_where_they_are_written(checker: str, tmp_path: Path) -> None:
    """Typed end to end."""
    file = tmp_path / "wrong.py"
    file.write_text(WRONG)
    if checker == "mypy":
        command = ["-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--strict", str(file)]
    else:
        # Without settings of its own it would take the project's folder for the one to check.
        (tmp_path / "pyrightconfig.json").write_text('{"include": ["wrong.py"], "typeCheckingMode": "standard"}')
        command = ["-m", "pyright", "--pythonpath", sys.executable, "--project", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert reported(done.stdout) == marked(), done.stdout
