"""The wheel, in an environment that has nothing else but pytest: the plugin is found, it works, and it is light."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.needs import Program, leave_out

ROOT = Path(__file__).parents[2]
INDEX = Program("package index", "pip must be able to install packages")

SUITE = """
import asyncio
import sys

def test_no_suite_pays_for_a_plugin_that_it_does_not_use():
    assert "stepfast_pytest" in sys.modules
    assert not [name for name in sys.modules if name.partition(".")[0] in ("stepfast", "msgspec", "sqlite3")]

def test_a_month_passes(stepfast_lab):
    from stepfast import Context, Stepfast

    app = Stepfast("sqlite:///must-not-be-made.db")

    @app.workflow
    async def wait(ctx: Context) -> str:
        await ctx.sleep(30 * 86400)
        return "slept"

    async def month():
        async with stepfast_lab(app) as lab:
            run = await lab.start(wait)
            await lab.advance(30 * 86400)
            assert await run.result() == "slept"

    asyncio.run(month())
"""


def call(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Call a program as a stranger would, without anything of this environment."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "STEPFAST", "PYTHON"))}
    return subprocess.run([*map(str, command)], cwd=cwd, env=clean, capture_output=True, text=True, timeout=300)


@pytest.mark.thorough
def test_the_plugin_works_where_only_the_wheel_and_pytest_are(tmp_path: Path) -> None:
    built = call(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", tmp_path, ROOT, cwd=tmp_path)
    if built.returncode:
        leave_out(INDEX)
    (wheel,) = tmp_path.glob("stepfast-*.whl")
    here = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src").rglob("*")
        if path.suffix in (".html", ".css", ".js", ".svg", ".sql")
    }
    pages = {f"stepfast/docs/{path.relative_to(ROOT / 'docs')}" for path in (ROOT / "docs").rglob("*.md")}
    with zipfile.ZipFile(wheel) as packed:
        assert (here | pages) - set(packed.namelist()) == set()
        assert not [name for name in packed.namelist() if name.endswith(".png")]
        [metadata] = [name for name in packed.namelist() if name.endswith("/METADATA")]
        shown = packed.read(metadata).decode()
    assert "All documents: how-tos, reference, schema" in shown
    assert re.findall(r"\]\((?!https?://|#)", shown) == []
    assert "<!-- docs" not in shown
    call(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    if call(python, "-m", "pip", "install", "--quiet", wheel, "pytest", cwd=tmp_path).returncode:
        leave_out(INDEX)
    read = call(python, "-c", "from stepfast import documents; print(documents.read('tutorial'))", cwd=tmp_path)
    assert read.stdout.startswith("# Tutorial"), read.stderr
    suite = tmp_path / "suite"
    suite.mkdir()
    (suite / "test_mine.py").write_text(SUITE)
    done = call(python, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "test_mine.py", cwd=suite)
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    assert [path.name for path in suite.iterdir() if path.suffix == ".db"] == []
