"""The pytest plugin: found by itself, light, and good for suites of every kind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import ROOT
from tests.support import nursery

SUITE = """
import asyncio
import pytest
from stepfast import Context, Stepfast

app = Stepfast("sqlite://")

@app.workflow
async def wait(ctx: Context) -> str:
    await ctx.sleep(86400)
    return "slept"

async def day(stepfast_lab):
    async with stepfast_lab(app) as lab:
        run = await lab.start(wait)
        await lab.advance(86400)
        assert await run.result() == "slept"

@pytest.mark.asyncio
async def test_with_pytest_asyncio(stepfast_lab):
    await day(stepfast_lab)

class TestWithAnyio:
    @pytest.fixture
    def anyio_backend(self):
        return "asyncio"

    @pytest.mark.anyio
    async def test_with_anyio(self, stepfast_lab):
        await day(stepfast_lab)

def test_with_nothing(stepfast_lab):
    asyncio.run(day(stepfast_lab))
"""


def pytest_says(*arguments: str | Path, cwd: Path) -> str:
    """What pytest writes in a process of its own, without the settings of this suite, and without plugins that no suite
    here uses: they take longer to import than everything else."""
    command = ["-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider"]
    command += ["-p", "no:hypothesispytest", "-p", "no:xdist", "-p", "no:xdist.looponfail"]
    command += ["-W", "error", "-o", "asyncio_default_fixture_loop_scope=function"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "STEPFAST"))}
    done = nursery.run([*command, *arguments], folder=cwd, environment=environment, timeout=60)
    return done.stdout + done.stderr


def test_with_pytest_asyncio_with_anyio_and_with_neither(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(SUITE)
    assert "3 passed" in pytest_says("test_mine.py", cwd=tmp_path)


def test_the_suite_of_the_order_application(tmp_path: Path) -> None:
    assert "5 passed" in pytest_says("--rootdir", tmp_path, ROOT / "examples" / "test_order_checkout.py", cwd=tmp_path)


def test_a_suite_without_labs_loads_nothing_of_stepfast() -> None:
    code = "import sys, stepfast_pytest; sys.exit(any(name.split('.')[0] == 'stepfast' for name in sys.modules))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
