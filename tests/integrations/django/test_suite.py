"""Django's own tests of tasks pass on our backend, but for what it does differently on purpose.

They are taken from Django's source distribution. On Django 5.2 they run on django-tasks, from which they were made.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import django
import pytest

ROOT = Path(__file__).resolve().parents[3]
VERSION = django.__version__ if django.VERSION >= (6, 0) else "6.1.3"
CACHE = ROOT / ".cache" / f"django-{VERSION}"

_TASKS, _DUMMY = "tasks.test_tasks.TaskTestCase.", "tasks.test_dummy_backend.DummyBackendTestCase."
_IMMEDIATE = "tasks.test_immediate_backend.ImmediateBackendTestCase."
_COMMITTED = (
    "tasks.test_immediate_backend.ImmediateBackendTransactionTestCase."
    "test_doesnt_wait_until_transaction_commit_by_default"
)
_IN_LOOP = "a query in an event loop is refused, as Django refuses those of models"
_STORED = "the test changes a result in memory, and ours is read from the database"
_RESULTS = "the test expects that results cannot be had"

DIFFERENT = {
    "drained": {
        f"{_TASKS}test_get_missing_result": _IN_LOOP,
        f"{_TASKS}test_refresh_result": _IN_LOOP,
        f"{_DUMMY}test_get_missing_result": _IN_LOOP,
        f"{_DUMMY}test_refresh_result": _STORED,
        f"{_DUMMY}test_refresh_result_async": _STORED,
        f"{_IMMEDIATE}test_cannot_get_result": _RESULTS,
        f"{_IMMEDIATE}test_cannot_refresh_result": _RESULTS,
        f"{_IMMEDIATE}test_cannot_pass_run_after": "the test expects that tasks cannot be deferred",
        f"{_IMMEDIATE}test_throws_keyboard_interrupt": "what a task raises does not end its worker",
        _COMMITTED: "a task is executed when the transaction is committed that it was enqueued in",
    },
    "eager": {
        f"{_IMMEDIATE}test_cannot_get_result": _RESULTS,
        f"{_IMMEDIATE}test_cannot_refresh_result": _RESULTS,
        f"{_IMMEDIATE}test_cannot_pass_run_after": "the test expects that tasks cannot be deferred",
    },
}
"""How the backend is run → test → why it does not pass."""

OF_DJANGO_TASKS = dict.fromkeys(
    [
        f"{_TASKS}test_pickle_task",
        f"{_TASKS}test_pickle_task_result",
        f"{_TASKS}test_run_after_in_decorator",
        f"{_TASKS}test_unpickle_arbitrary_string",
        f"{_TASKS}test_unpickle_non_task_object",
        f"{_DUMMY}test_validate_disallowed_async_task",
    ],
    "django-tasks 0.12 does not have it, or says it in other words",
)


@pytest.fixture(scope="session")
def folder() -> Path:
    """Django's tests of tasks, out of its source distribution."""
    tests = CACHE / "tasks"
    if not tests.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        wanted = ["--no-deps", "--no-binary", ":all:", "--ignore-requires-python", f"django=={VERSION}"]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(CACHE), *wanted]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        subprocess.run(command, check=True, timeout=300, env=environment)
        with tarfile.open(next(CACHE.glob("*.tar.gz"))) as archive:
            members = [member for member in archive if "/tests/tasks/" in member.name and member.isfile()]
            unpacked = CACHE / f"unpacked-{os.getpid()}"
            unpacked.mkdir()
            for member in members:
                content = archive.extractfile(member)
                assert content is not None
                (unpacked / Path(member.name).name).write_bytes(content.read())
            unpacked.rename(tests)
    return tests


@pytest.mark.timeout(400)
@pytest.mark.parametrize("how", DIFFERENT)
def test_the_tests_of_django_pass(how: str, folder: Path) -> None:
    command = [sys.executable, "-m", "tests.integrations.django.suite", str(folder), how]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    outcomes: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    expected = set(DIFFERENT[how]) | (set(OF_DJANGO_TASKS) if django.VERSION < (6, 0) and how == "drained" else set())
    failed = {test: said for test, said in outcomes.items() if said}
    assert failed.keys() == expected, "\n\n".join(
        [*(f"{test}:\n{failed[test]}" for test in failed.keys() - expected), *(expected - failed.keys())]
    )
    assert len(outcomes) >= {"drained": 70, "eager": 19}[how]
