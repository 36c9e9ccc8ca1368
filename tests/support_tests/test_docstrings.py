"""The check that docstrings say something."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.docstrings import check

TOO_SHORT = [
    '"""A module."""',
    'class A:\n    """One of them."""',
    'def f():\n    """It goes on."""',
    'async def f():\n    """It goes on."""\n    g()',
    'LIMIT = 4\n"""So many seconds."""',
    'class A:\n    size: int = 0\n    """In bytes."""',
]
SUBJECTLESS = [
    'def f():\n    """The same for lists and pictures."""',
    'async def f():\n    """Those of these that are over."""',
    'class A:\n    """It is made once for each console."""',
    'class A:\n    def f(self):\n        """Its name in the form that is sent."""',
    'def f():\n    """Let it go on."""',
    'def f():\n    """Call them no more. Others are called as before."""',
    'def f():\n    """Whether it is ready."""',
    'def f():\n    """How they are doing now."""',
    'class A:\n    """One of them, unless a kind says otherwise."""',
]
ENOUGH = [
    '"""What a module is for."""',
    "def f():\n    pass",
    'def f():\n    """Give the slot back."""',
    'LIMIT = 4\n"""Seconds between two looks."""',
    'def f():\n    g("short")',
    'class A:\n    size: int = 0\n    """Its size, in bytes."""',
    'def f():\n    """Stop calling these functions."""',
    'def f():\n    """Whether it is enough to look once: a run that waits is told."""',
    'def f():\n    """Itself, if it did not go on."""',
]


def found(folder: Path, text: str) -> list[str]:
    (folder / "module.py").write_text(text + "\n")
    return check(folder)


@pytest.mark.parametrize("text", TOO_SHORT)
def test_what_says_too_little_is_refused(tmp_path: Path, text: str) -> None:
    [line] = found(tmp_path, text)
    assert "fewer than 4 words" in line


@pytest.mark.parametrize("text", SUBJECTLESS)
def test_what_begins_without_a_subject_is_refused(tmp_path: Path, text: str) -> None:
    [line] = found(tmp_path, text)
    assert "does not name its subject" in line


@pytest.mark.parametrize("text", ENOUGH)
def test_what_names_its_subject_is_fine(tmp_path: Path, text: str) -> None:
    assert found(tmp_path, text) == []
