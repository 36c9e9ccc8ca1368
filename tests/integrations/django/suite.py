"""Runs Django's own tests of tasks on another backend: `python -m tests.integrations.django.suite FOLDER BACKEND`.

FOLDER has the package `tasks` of Django's tests, which is copied with other names of backends in it; with django-tasks,
which Django's tests were made from, also with the names of that package. Prints a line of JSON: which tests there are,
and what became of those that did not pass.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import traceback
import unittest
from pathlib import Path
from typing import Any

import django
from django.conf import settings
from django.test.runner import DiscoverRunner

BACKENDS = "tests.integrations.django.backends"
STAND_INS = {
    "drained": {"dummy.DummyBackend": "QueuedBackend", "immediate.ImmediateBackend": "DrainedBackend"},
    "eager": {"dummy.DummyBackend": "QueuedBackend", "immediate.ImmediateBackend": "EagerBackend"},
}
MODULES = {"drained": ("tasks.test_tasks", "tasks.test_dummy_backend", "tasks.test_immediate_backend"),
           "eager": ("tasks.test_immediate_backend",)}  # fmt: skip


def transposed(text: str, stand_ins: dict[str, str]) -> str:
    """A module of the tests, with our backends and, for django-tasks, its names."""
    text = text.replace("SimpleTestCase", "TransactionTestCase")  # ours needs its database
    for theirs, ours in stand_ins.items():
        module, name = theirs.split(".")
        text = text.replace(f"django.tasks.backends.{theirs}", f"{BACKENDS}.{ours}")
        text = text.replace(f"from django.tasks.backends.{module} import {name}", f"from {BACKENDS} import {ours}")
        text = re.sub(rf"\b{name}\b", ours, text)
    if django.VERSION < (6, 0):
        text = text.replace("django.tasks", "django_tasks")
        text = re.sub(r"\b(InvalidTask|InvalidTaskBackend)\b", r"\1Error", text)
    return text


def told(error: Any) -> str:
    return "".join(traceback.format_exception(*error))


class Outcomes(unittest.TextTestResult):
    """Notes how each test ended, for the process that began this one."""

    noted: dict[str, str] = {}

    def startTest(self, test: Any) -> None:
        super().startTest(test)
        self.noted[test.id()] = ""

    def addError(self, test: Any, err: Any) -> None:
        super().addError(test, err)
        self.noted[test.id()] = told(err)

    def addFailure(self, test: Any, err: Any) -> None:
        super().addFailure(test, err)
        self.noted[test.id()] = told(err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.noted[test.id()] = told(err)


class Runner(DiscoverRunner):
    def get_resultclass(self) -> Any:
        return Outcomes


def main(folder: Path, how: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        package = Path(place, "tasks")
        package.mkdir()
        for file in sorted(folder.glob("*.py")):
            (package / file.name).write_text(transposed(file.read_text(), STAND_INS[how]))
        sys.path.insert(0, place)
        file_of_database = str(Path(place, "db.sqlite3"))
        database = {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": file_of_database,
            "TEST": {"NAME": file_of_database},
        }
        own = [] if django.VERSION >= (6, 0) else ["django_tasks"]
        settings.configure(
            INSTALLED_APPS=["stepfast.django", *own],
            DATABASES={"default": database},
            TASKS={"default": {"BACKEND": f"{BACKENDS}.QueuedBackend", "QUEUES": []}},
            SECRET_KEY="-",
            USE_TZ=True,
        )
        django.setup()
        Runner(interactive=False, verbosity=1).run_tests(list(MODULES[how]))
    print(json.dumps(Outcomes.noted))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
