"""The checks of `make check` see what they should, and nothing else; and so do the tools that count and compare."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tools import clockwork, layering, unwinding, words
from tools.commits import problems
from tools.crossings import Recorder, usual
from tools.sizes import large_files, lonely_modules, long_functions

from bench import meter
from bench.checkouts import checkouts
from bench.option_names import options_of
from bench.pairs import Comparison
from bench.runner import ROOT, ChildFailed, measure_in_child
from bench.shares import shares
from bench.subject import Work

Check = Callable[[Path], list[str]]


def said_of(folder: Path, check: Check, file: str, code: str) -> list[str]:
    """What a check says of one file."""
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(code)
    return check(folder)


# -- imports go downwards --------------------------------------------------------------------------------------------


def layers(folder: Path) -> list[str]:
    return [f"{found.line}: {found.message}" for found in layering.check(folder)]


DOWNWARDS = [
    ("app.py", "from stepfast.worker.claimer import Claimer"),
    ("__init__.py", "from stepfast.app import Stepfast\nfrom stepfast.run import Run"),
    ("cli/runs.py", "from stepfast.app import Stepfast\nfrom stepfast import settings"),
    ("worker/claimer.py", "from stepfast.engine import context\nimport stepfast.store.store"),
    ("engine/history.py", "from ..store import protocol\nfrom ..errors import StepfastError\nfrom . import context"),
    ("engine/__init__.py", "from .context import Context"),
    ("store/postgres.py", "import asyncpg\nX = 'SELECT 1 FROM t'"),
    ("store/__init__.py", "def open():\n    from stepfast.store import sqlite"),
    ("remote/sqs.py", "import boto3"),
    (
        "langgraph.py",
        "import langgraph\nfrom .errors import InvalidInput\nfrom . import Stepfast, web",
    ),
    ("django/tasks.py", "from .backend import Backend\nfrom stepfast.testing import Lab"),
    ("model/a.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from stepfast.app import Stepfast"),
    ("model/a.py", "import typing\nif typing.TYPE_CHECKING:\n    import asyncpg"),
    ("engine/prose.py", '"""SELECT the run FROM memory."""\nX = "please select one and update the settings"'),
]
UPWARDS = [
    ("langgraph.py", "from stepfast.run import Run", "1: langgraph imports stepfast.run; integrations import from"),
    ("django/a.py", "from ..store.store import Store", "1: django imports stepfast.store.store; integrations"),
    ("app.py", "from stepfast.mcp import Server", "1: app imports stepfast.mcp, but mcp lies above it"),
    ("model/a.py", "\nfrom stepfast.store import sql", "2: model imports stepfast.store, but store lies above it"),
    ("model/a.py", "from ..engine.context import Context", "1: model imports stepfast.engine.context, but"),
    ("engine/a.py", "from stepfast import Stepfast", "1: engine imports stepfast, but app lies above it"),
    ("engine/a.py", "from stepfast import worker", "1: engine imports stepfast.worker, but"),
    ("engine/a.py", "from stepfast.run import Run", "1: engine imports stepfast.run, but app lies above"),
    ("store/a.py", "def f():\n    import stepfast.worker.journal", "2: store imports stepfast.worker.journal"),
    ("worker/a.py", "from stepfast.remote import sqs", "1: worker imports stepfast.remote, but remote lies beside it"),
    ("errors.py", "from stepfast import settings", "1: errors imports stepfast.settings, but"),
    ("worker/a.py", "import asyncpg.exceptions", "1: worker imports the driver asyncpg"),
    ("cli/a.py", "from sqlite3 import connect", "1: cli imports the driver sqlite3"),
    ("model/a.py", "if TYPE_CHECKING:\n    pass\nelse:\n    import asyncpg", "4: model imports the driver"),
    ("app.py", "\nX = 'SELECT n\\n FROM t'", "2: SQL outside"),
    ("app.py", "def f(t):\n    return f'UPDATE {t} SET n = 1'", "2: SQL outside"),
    ("app.py", "X = 'INSERT INTO t VALUES (1)'", "1: SQL outside"),
    ("app.py", "X = 'DELETE FROM t'", "1: SQL outside"),
    ("app.py", "def f(t):\n    return f'DELETE FROM {t}'", "2: SQL outside"),
    ("utils.py", "", "1: utils has no place among the layers"),
    ("app.py", "import stepfast.helpers", "1: app imports stepfast.helpers, but helpers has no place"),
]


@pytest.mark.parametrize(("module", "code"), DOWNWARDS)
def test_imports_that_go_downwards_are_allowed(tmp_path: Path, module: str, code: str) -> None:
    assert said_of(tmp_path / "stepfast", layers, module, code) == []


@pytest.mark.parametrize(("module", "code", "message"), UPWARDS)
def test_imports_that_go_upwards_and_sql_elsewhere_are_not(
    tmp_path: Path, module: str, code: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (found,) = said_of(tmp_path / "stepfast", layers, module, code)
    assert found.startswith(message)
    assert layering.main([str(tmp_path / "stepfast")]) == 1
    assert f"stepfast/{module}:{message[0]}: " in capsys.readouterr().out


# -- one clock; no cancellation is swallowed -------------------------------------------------------------------------

PAST_THE_CLOCK = [
    "import time", "from time import monotonic", "import random", "from random import uniform",
    "from concurrent.futures import ThreadPoolExecutor", "await asyncio.sleep(0.1)", "await asyncio.sleep(seconds)",
    "async with asyncio.timeout(5): pass", "await asyncio.wait_for(f(), 5)", "await asyncio.wait(tasks, timeout=1)",
    "asyncio.get_running_loop().call_later(1, f)", "self._loop.call_at(1, f)", "now = self.loop.time()",
    "await loop.run_in_executor(None, f)", "threading.Thread(target=f).start()", "self._stop = threading.Event()",
    "self.id = new_id()", "Threads('step')", "key = os.urandom(16)", "when = datetime.now(UTC)", "now = Clock.now()",
    "ask = Clockwork.now",
]  # fmt: skip
FROM_THE_CLOCK = [
    "await asyncio.sleep(0)", "await asyncio.wait(tasks)", "from random import Random", "self._clock.after(1, f)",
    "await self._kit.clock.sleep(0.1)", "self.id = clock.new_id()", "self._loop.call_soon(f)",
    "here = threading.get_ident()",
]  # fmt: skip
SWALLOWED = [
    "try: f()\nexcept: pass",
    "try: f()\nexcept BaseException: pass",
    "try: f()\nexcept (ValueError, asyncio.CancelledError): g()",
    "with contextlib.suppress(BaseException): f()",
    "with suppress(OSError, CancelledError): f()",
]
LET_THROUGH = [
    "try: f()\nexcept Exception: pass",
    "try: f()\nexcept BaseException:\n    g()\n    raise",
    "try: f()\nexcept CancelledError:  # ends here: the last thing that this task does\n    pass",
    "with contextlib.suppress(Exception): f()",
]
PAST_THE_HELPER = [
    "async with connection.transaction(): pass",
    "async with pool.acquire() as c: pass",
    "await pool.release(c)",
    "connection.terminate()",
]
FOUND: list[tuple[Check, str, str]] = [
    *((clockwork.check, "worker/some.py", code) for code in PAST_THE_CLOCK),
    *((unwinding.check, "store/postgres/some.py", code) for code in SWALLOWED + PAST_THE_HELPER),
    *(
        (unwinding.check, f"{folder}/some.py", PAST_THE_HELPER[1])
        for folder in ("remote/postgres", "store/mysql", "remote/mysql")
    ),
]
NOT_FOUND: list[tuple[Check, str, str]] = [
    *((clockwork.check, "worker/some.py", code) for code in FROM_THE_CLOCK),
    *((clockwork.check, file, "import time") for file in ("engine/host.py", "worker/threads.py", "store/some.py")),
    *((unwinding.check, "store/postgres/some.py", code) for code in LET_THROUGH),
]


@pytest.mark.parametrize(("check", "file", "code"), FOUND)
def test_found(tmp_path: Path, check: Check, file: str, code: str) -> None:
    (line,) = said_of(tmp_path, check, file, code)
    assert "some.py:" in line


@pytest.mark.parametrize(("check", "file", "code"), NOT_FOUND)
def test_allowed(tmp_path: Path, check: Check, file: str, code: str) -> None:
    assert said_of(tmp_path, check, file, code) == []


# -- words, commits, sizes -------------------------------------------------------------------------------------------

RETIRED = [
    "It waits for nobody.", "Whatever fails is tried again.", "somebody's transaction", "the wishes of operators",
    "def nobody_serves() -> None:", "class NobodyServes:", "NOBODY_SERVES = 1", "heeding = True",
]  # fmt: skip


@pytest.mark.parametrize("line", RETIRED)
def test_retired_words_are_refused_also_within_identifiers(tmp_path: Path, line: str) -> None:
    (tmp_path / "page.md").write_text(f"# Page\n\n{line}\n")
    [refused] = words.check([tmp_path])
    assert refused.startswith(f"{tmp_path}/page.md:3: ")


def test_other_words_and_allowed_places_are_not_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("their heirloom, a new attempt, some body, what ever, dishwisher")
    assert words.check([tmp_path]) == []
    page.write_text("prints NOBODY SERVES IT\n")
    allowed = {page.as_posix(): ("NOBODY SERVES IT",)}
    assert words.check([page], allowed) == []
    page.write_text("prints NO WORKER\n")
    [refused] = words.check([page], allowed)
    assert "'NOBODY SERVES IT'" in refused


def test_files_are_checked_by_name_and_folders_by_suffix(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    for name in ("code.py", "page.md", "data.json"):
        (tmp_path / "shop" / name).write_text("# nobody\n")
    assert len(words.check([tmp_path / "shop"])) == 2
    assert len(words.check([tmp_path / "shop" / "data.json"])) == 1
    assert [words.main([str(tmp_path / name)]) for name in ("shop/page.md", "nothing")] == [1, 2]
    assert words.main([]) == 2


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ("journal: " + "x" * 64 + "\n\nWhy.\n", "73 characters"),
        ("Coalesce notify\n\nWhy.\n", "form"),
        ("journal: coalesce notify\n", "no body"),
        ("journal: coalesce notify\nWhy.\n", "no empty line"),
        ("journal: coalesce notify\n\n" + "why " * 21 + "\n", "longer than 80"),
    ],
)
def test_what_is_wrong_with_a_commit_message_is_named(message: str, problem: str) -> None:
    [found] = problems(message)
    assert problem in found
    assert problems("journal: coalesce notify per flush\n\nA NOTIFY per record locked the server.\n") == []


def test_long_functions_are_refused_and_large_files_reported(tmp_path: Path) -> None:
    function = "async def f():\n" + "    x = 1\n" * 59
    (tmp_path / "fine.py").write_text(function)
    assert long_functions(tmp_path) == []
    (tmp_path / "long.py").write_text(function + "    x = 1\n")
    [line] = long_functions(tmp_path)
    assert "f has 61 lines" in line
    (tmp_path / "full.py").write_text("x = 1\n" * 800)
    (tmp_path / "large.sql").write_text("SELECT 1;\n" * 801)
    [line] = large_files(tmp_path)
    assert "large.sql (801 lines)" in line


def test_small_modules_with_one_importer_are_reported(tmp_path: Path) -> None:
    stock = tmp_path / "shop" / "stock"
    stock.mkdir(parents=True)
    for file, text in {
        "../__init__.py": "",
        "__init__.py": "",
        "shared.py": "x = 1\n",
        "large.py": "x = 1\n" * 120,
        "lonely.py": "from .shared import x\nfrom .large import x as y\n",
        "../till.py": "import shop.stock.shared\nfrom shop.stock import lonely\n",
    }.items():
        (stock / file).write_text(text)
    [line] = lonely_modules(tmp_path / "shop")
    assert "lonely.py (2 lines) is imported by shop.till only" in line


# -- counting modules, comparing commits -----------------------------------------------------------------------------


def test_modules_are_counted_in_the_order_of_first_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In all threads; and one counts if most takes have it."""
    package = tmp_path / "till"
    package.mkdir()
    for name in ("__init__", "first", "second"):
        (package / f"{name}.py").write_text("x = [n for n in range(3)]\n\ndef work():\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    import till.first  # type: ignore[import-not-found]
    import till.second  # type: ignore[import-not-found]

    recorder = Recorder("till")
    with recorder.installed():
        till.work()
        with recorder.recording() as modules:
            thread = threading.Thread(target=till.second.work)
            thread.start()
            thread.join()
            till.first.work()
            till.second.work()
        till.work()
    assert list(modules) == ["till.second", "till.first"]
    assert sys.getprofile() is None
    assert usual([dict.fromkeys(names.split()) for names in ("a b", "a c b", "a b d")]) == ["a", "b"]


@pytest.mark.parametrize(
    ("figure", "factors", "verdict"),
    [
        ("client", [1.05] * 4, "within A/A spread"),
        ("client", [1.2] * 4, "slower by 20.0 %"),
        ("client", [0.8] * 4, "quicker by 20.0 %"),
        ("rate", [1.2] * 4, "quicker by 20.0 %"),
        ("rate", [0.8] * 4, "slower by 20.0 %"),
        ("client", [2.0] * 2, "too few pairs"),
    ],
)
def test_a_ratio_outside_of_the_control_is_a_difference(figure: str, factors: list[float], verdict: str) -> None:
    count = len(factors)
    comparison = Comparison(figure, [1.0] * count, factors, [1.0, 1.1, 0.95, 1.05][:count])
    assert comparison.verdict == verdict


async def test_shares_are_of_the_takes_of_one_round() -> None:
    """Whatever the machine does between two rounds, and in which order the takes of a round come."""
    takes = itertools.count()

    def way(rate: float, cpu: float) -> Callable[[], Awaitable[Work]]:
        async def take() -> Work:
            slow = 10 ** (next(takes) // 3)
            return Work(rate / slow, cpu * slow, None)

        return take

    found = await shares(way(100, 2), {"half": way(50, 8)}, rounds=5)
    assert found == {"half": 0.5, "half-cpu": 0.25, "control": 1, "control-cpu": 1}


def test_options_have_the_name_that_the_version_knows() -> None:
    def earlier(poll: float, batch: int) -> None: ...
    def present(poll_interval: float, batch: int) -> None: ...

    assert options_of(earlier, poll_interval=1.0, batch=2) == {"poll": 1.0, "batch": 2}
    assert options_of(present, poll_interval=1.0, batch=2) == {"poll_interval": 1.0, "batch": 2}


def test_a_take_measures_the_copy_of_a_folder(tmp_path: Path) -> None:
    with checkouts(str(ROOT), str(ROOT / "src")) as (copy, other):
        assert (copy.source / "stepfast" / "__init__.py").exists()
        order = {"role": "pair", "engine": "stepfast_sqlite", "kind": "steps", "count": 20, "concurrency": 10}
        order |= {"url": f"sqlite:///{tmp_path}/take.db", "source": str(copy.source)}
        figures = measure_in_child(json.dumps(order), 60, {**os.environ, "PYTHONPATH": str(copy.source)})
        assert set(figures) == {"rate", "client"}
        with pytest.raises(ChildFailed, match="instead of"):
            measure_in_child(json.dumps(order), 60, {**os.environ, "PYTHONPATH": str(other.source)})
    assert not copy.source.exists()
    with pytest.raises(SystemExit, match="neither a commit"), checkouts("no-such-thing"):
        pass


def test_the_cpu_of_a_server_is_that_of_its_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if meter.server_cpu_left_out():
        pytest.skip(str(meter.server_cpu_left_out()))
    burn = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    before = meter.server_cpu(os.getpid())
    process = subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    process.stdout.readline()
    assert meter.server_cpu(os.getpid()) - before > 0.25
    process.communicate("\n")
    assert meter.server_cpu(os.getpid()) - before > 0.25  # also when it has exited
    monkeypatch.setattr(meter, "PROC", tmp_path)
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    assert meter.server_cpu_left_out() == "Darwin has no /proc"
