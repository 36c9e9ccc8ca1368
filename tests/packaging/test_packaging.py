"""What is installed with what, the wheel, the source archive, and the settings of editors."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.support.needs import Program, leave_out

ROOT = Path(__file__).parents[2]

WITHOUT_EXTRAS = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {
            "asyncmy", "asyncpg", "boto3", "botocore", "click", "jinja2", "markupsafe", "opentelemetry", "pydantic",
            "rich", "sentry_sdk", "sqlalchemy", "starlette", "structlog", "typer", "uvicorn"
        }:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""

A_RUN = """
import asyncio
from stepfast import Context, Stepfast

app = Stepfast("sqlite:///library.db")

@app.workflow
async def order(ctx: Context, name: str) -> str:
    return await ctx.step("greet", lambda: f"hello {name}")

async def main():
    async with app:
        run = await app.start(order, "ada")
        await app.drain()
        print(await run.result())

asyncio.run(main())
"""

THE_COMMAND = """
sys.argv = ["stepfast", "runs"]
from stepfast.__main__ import main
main()
"""

ON_POSTGRES = """
from stepfast import Stepfast
import asyncio
asyncio.run(Stepfast("postgresql://localhost/shop").migrate())
"""

OBSERVERS = """
import importlib

for name in ("otel", "sentry"):
    try:
        importlib.import_module(f"stepfast.telemetry.{name}")
    except ModuleNotFoundError as error:
        print(error)
"""

THE_CONSOLE = """
try:
    import stepfast.console
except ImportError as error:
    print(error)
"""


def without_extras(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run code as in an environment that has the library and what it always brings."""
    command = [sys.executable, "-c", WITHOUT_EXTRAS + code]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


def test_the_library_runs_on_sqlite_without_any_extra(tmp_path: Path) -> None:
    done = without_extras(A_RUN, tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, "hello ada"), done.stderr


def test_the_command_without_its_extra_says_what_to_install(tmp_path: Path) -> None:
    done = without_extras(THE_COMMAND, tmp_path)
    assert done.returncode == 1
    assert "pip install 'stepfast[cli]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_postgres_without_its_driver_says_what_to_install(tmp_path: Path) -> None:
    done = without_extras(ON_POSTGRES, tmp_path)
    assert "pip install 'stepfast[postgres]'" in done.stderr


def test_observers_without_their_packages_say_what_to_install(tmp_path: Path) -> None:
    done = without_extras(OBSERVERS, tmp_path)
    for extra in ("otel", "sentry"):
        assert f"pip install 'stepfast[{extra}]'" in done.stdout, done.stderr


def test_the_console_without_its_packages_says_what_to_install(tmp_path: Path) -> None:
    assert "pip install 'stepfast[console]'" in without_extras(THE_CONSOLE, tmp_path).stdout


def test_all_brings_every_other_extra_and_the_library_itself_little() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    named = extras["all"][0].removeprefix("stepfast[").removesuffix("]").split(",")
    assert sorted(named) == sorted(set(extras) - {"all"})
    assert [name.partition(">")[0] for name in project["dependencies"]] == ["cronsim", "msgspec"]


def test_the_readme_and_the_changelog_name_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"])
    numbers = {1: "one small package", 2: "two small packages", 3: "three small packages"}
    readme = re.search(r"^`all` is (.+?)\. Python", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    changes = re.search(r"^\* Extras: (.+?)^\* ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE | re.DOTALL)
    assert readme is not None and changes is not None
    assert set(re.findall(r"`([\w-]+)`", readme[1])) - {"stepfast"} == extras - {"all"}
    assert numbers[len(project["dependencies"])] in " ".join(readme[1].split())
    assert set(re.findall(r"`([\w-]+)`", changes[1])) == extras


def test_every_dependency_is_imported_by_the_code_that_it_came_with() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [named for name, needs in project["optional-dependencies"].items() if name != "all" for named in needs]
    wanted = {re.match(r"[\w-]+", needed)[0] for needed in (*project["dependencies"], *extras)}  # type: ignore[index]
    wanted = {name.removesuffix("-api").removesuffix("-slim").replace("-", "_") for name in wanted}
    source = "\n".join(file.read_text() for file in (ROOT / "src").rglob("*.py"))
    wanted = {"agents" if name == "openai_agents" else name for name in wanted}
    imported = set(re.findall(r"^\s*(?:import|from) (\w+)", source, re.MULTILINE))
    assert wanted - imported == set()


# -- the wheel in an environment that has only pytest


INDEX = Program("package index", "pip must be able to install packages")

MINE = """
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
    (suite / "test_mine.py").write_text(MINE)
    done = call(python, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "test_mine.py", cwd=suite)
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    assert [path.name for path in suite.iterdir() if path.suffix == ".db"] == []


def test_the_archive_has_every_folder_that_tests_and_targets_use() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["sdist"]
    imported = {
        name
        for file in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r"^\s*(?:from|import) (\w+)", file.read_text(), re.MULTILINE)
    }
    named = set(re.findall(r"\b(\w+)/\w", (ROOT / "Makefile").read_text())) - {"build"}  # what targets make
    used = {name for name in imported | named if (ROOT / name).is_dir()}
    assert {"bench", "tests", "tools"} <= used
    assert {f"/{name}" for name in used} <= set(settings["include"])


def test_editors_and_the_formatter_have_the_same_line_length() -> None:
    settings = configparser.ConfigParser()
    settings.read_string("[top]\n" + (ROOT / ".editorconfig").read_text())
    ruff = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]
    assert settings["*"]["max_line_length"] == str(ruff["line-length"])
    assert settings["*"]["indent_size"] == str(ruff.get("indent-width", 4))
