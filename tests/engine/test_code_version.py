"""The version of a workflow's code: the same while the code is, another when it changes."""

from __future__ import annotations

import linecache
import os
import subprocess
import sys
from typing import Any

import pytest

from stepfast.engine.function_spec import code_version


def made(source: str) -> Any:
    """The function ``f`` of a text that is in no file."""
    space: dict[str, Any] = {}
    exec(source, space)
    return space["f"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("return 'bill'", "return 'mail'"),
        ("return 1", "return 2"),
        ("return a", "return b"),
        ("return lambda: 1", "return lambda: 2"),
        ("return a in {1, 2}", "return a in {1, 3}"),
    ],
)
def test_code_without_a_source_has_another_version_when_it_says_something_else(one: str, other: str) -> None:
    first, again, second = (made(f"def f(a, b):\n    {body}") for body in (one, one, other))
    assert code_version(first) == code_version(again) != code_version(second)


def test_lines_of_another_text_are_not_taken_for_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["def f(): pass\n"]
    monkeypatch.setitem(linecache.cache, "<string>", (len(lines[0]), None, lines, "<string>"))
    assert code_version(made("def f():\n    return 1")) != code_version(made("def f():\n    return 2"))


def test_code_without_a_source_has_one_version_in_all_processes() -> None:
    program = (
        "from stepfast.engine.function_spec import code_version\n"
        "space = {}\n"
        'exec(\'def f(a):\\n    return a in {"x", "y", "z"}, lambda: 1\', space)\n'
        "print(code_version(space['f']))"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True, timeout=60,
        ).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert len(told) == 1
