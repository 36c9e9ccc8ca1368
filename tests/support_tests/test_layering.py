"""The checker of the import rules sees what it should, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools import layering


def violations(tmp_path: Path, module: str, source: str) -> list[str]:
    path = tmp_path / "stepfast" / module
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    return [f"{found.line}: {found.message}" for found in layering.check(tmp_path / "stepfast")]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("app.py", "from stepfast.worker.claimer import Claimer"),
        ("__init__.py", "from stepfast.app import Stepfast\nfrom stepfast.run import Run"),
        ("cli/runs.py", "from stepfast.app import Stepfast\nfrom stepfast import settings"),
        ("worker/claimer.py", "from stepfast.engine import context\nimport stepfast.store.store"),
        (
            "engine/history.py",
            "from ..store import protocol\nfrom ..errors import StepfastError\nfrom . import context",
        ),
        ("engine/__init__.py", "from .context import Context"),
        ("store/postgres.py", "import asyncpg\nX = 'SELECT 1 FROM t'"),
        ("store/__init__.py", "def open():\n    from stepfast.store import sqlite"),
        ("remote/sqs.py", "import boto3"),
        (
            "model/retry.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from stepfast.app import Stepfast",
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
            "\nfrom stepfast.store import sql",
            "2: model imports stepfast.store, but store lies above it",
        ),
        (
            "model/retry.py",
            "from ..engine.context import Context",
            "1: model imports stepfast.engine.context, but",
        ),
        (
            "engine/context.py",
            "from stepfast import Stepfast",
            "1: engine imports stepfast, but app lies above it",
        ),
        ("engine/context.py", "from stepfast import worker", "1: engine imports stepfast.worker, but"),
        (
            "engine/context.py",
            "from stepfast.run import Run",
            "1: engine imports stepfast.run, but app lies above",
        ),
        (
            "store/a.py",
            "def f():\n    import stepfast.worker.journal",
            "2: store imports stepfast.worker.journal",
        ),
        (
            "worker/a.py",
            "from stepfast.remote import sqs",
            "1: worker imports stepfast.remote, but remote lies beside it",
        ),
        ("errors.py", "from stepfast import settings", "1: errors imports stepfast.settings, but"),
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
        ("app.py", "import stepfast.helpers", "1: app imports stepfast.helpers, but helpers has no place"),
    ],
)
def test_what_is_not(tmp_path: Path, module: str, source: str, message: str) -> None:
    (found,) = violations(tmp_path, module, source)
    assert found.startswith(message)


def test_it_ends_with_1_and_names_file_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    violations(tmp_path, "model/a.py", "import sqlite3")
    assert layering.main([str(tmp_path / "stepfast")]) == 1
    assert "stepfast/model/a.py:1: model imports the driver sqlite3" in capsys.readouterr().out
