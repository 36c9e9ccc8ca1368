"""The checker of the import rules sees what it should, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools import layering


def violations(tmp_path: Path, module: str, source: str) -> list[str]:
    path = tmp_path / "holdfast" / module
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    return [f"{found.line}: {found.message}" for found in layering.check(tmp_path / "holdfast")]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("app.py", "from holdfast.worker.claimer import Claimer"),
        ("__init__.py", "from holdfast.app import Holdfast\nfrom holdfast.run import Run"),
        ("cli/runs.py", "from holdfast.app import Holdfast\nfrom holdfast import settings"),
        ("worker/claimer.py", "from holdfast.engine import context\nimport holdfast.store.protocol"),
        (
            "engine/replay.py",
            "from ..store import protocol\nfrom ..errors import HoldfastError\nfrom . import context",
        ),
        ("engine/__init__.py", "from .context import Context"),
        ("store/postgres.py", "import asyncpg\nX = 'SELECT 1 FROM t'"),
        ("store/__init__.py", "def open():\n    from holdfast.store import sqlite"),
        ("remote/sqs.py", "import boto3"),
        (
            "model/retry.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from holdfast.app import Holdfast",
        ),
        ("model/a.py", "import typing\nif typing.TYPE_CHECKING:\n    import asyncpg"),
        (
            "engine/prose.py",
            '"""SELECT the run FROM memory."""\nX = "please select one and update the settings"',
        ),
    ],
)
def test_what_is_allowed(tmp_path: Path, module: str, source: str) -> None:
    assert violations(tmp_path, module, source) == []


@pytest.mark.parametrize(
    ("module", "source", "message"),
    [
        (
            "model/retry.py",
            "\nfrom holdfast.store import protocol",
            "2: model imports holdfast.store, but store lies above it",
        ),
        (
            "model/retry.py",
            "from ..engine.context import Context",
            "1: model imports holdfast.engine.context, but",
        ),
        (
            "engine/context.py",
            "from holdfast import Holdfast",
            "1: engine imports holdfast, but app lies above it",
        ),
        ("engine/context.py", "from holdfast import worker", "1: engine imports holdfast.worker, but"),
        (
            "engine/context.py",
            "from holdfast.run import Run",
            "1: engine imports holdfast.run, but app lies above",
        ),
        (
            "store/a.py",
            "def f():\n    import holdfast.worker.journal",
            "2: store imports holdfast.worker.journal",
        ),
        (
            "worker/a.py",
            "from holdfast.remote import sqs",
            "1: worker imports holdfast.remote, but remote lies beside it",
        ),
        ("errors.py", "from holdfast import settings", "1: errors imports holdfast.settings, but"),
        ("worker/a.py", "import asyncpg.exceptions", "1: worker imports the driver asyncpg"),
        ("cli/a.py", "from sqlite3 import connect", "1: cli imports the driver sqlite3"),
        ("app.py", "\nX = 'SELECT n\\n FROM t'", "2: SQL outside"),
        ("app.py", "def f(t):\n    return f'UPDATE {t} SET n = 1'", "2: SQL outside"),
        ("app.py", "X = 'INSERT INTO t VALUES (1)'", "1: SQL outside"),
        ("app.py", "X = 'DELETE FROM t'", "1: SQL outside"),
        (
            "model/a.py",
            "if TYPE_CHECKING:\n    pass\nelse:\n    import asyncpg",
            "4: model imports the driver",
        ),
        ("app.py", "def f(t):\n    return f'DELETE FROM {t}'", "2: SQL outside"),
        ("utils.py", "", "1: utils has no place among the layers"),
        ("app.py", "import holdfast.helpers", "1: app imports holdfast.helpers, but helpers has no place"),
    ],
)
def test_what_is_not(tmp_path: Path, module: str, source: str, message: str) -> None:
    (found,) = violations(tmp_path, module, source)
    assert found.startswith(message)


def test_it_ends_with_1_and_names_file_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    violations(tmp_path, "model/a.py", "import sqlite3")
    assert layering.main([str(tmp_path / "holdfast")]) == 1
    assert "holdfast/model/a.py:1: model imports the driver sqlite3" in capsys.readouterr().out
