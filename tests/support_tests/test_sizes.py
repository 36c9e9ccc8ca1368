"""The check that files, functions and constructors stay small."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.sizes import check

SEVEN = "class A:\n    def __init__(self, a, b, c, *, d, e, f, g): ...\n"
FIELDS = "@dataclass(frozen=True)\nclass A:\n" + "".join(f"    {name}: int\n" for name in "abcdefg")
LONG = "async def f():\n" + "    x = 1\n" * 60


def found(folder: Path, name: str, text: str) -> list[str]:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return check(folder)


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("long.py", "x = 1\n" * 501, "501 lines"),
        ("long.sql", "SELECT 1;\n" * 501, "501 lines"),
        ("long.py", LONG, "f has 61 lines"),
        ("worker/many.py", SEVEN, "A is made of 7 things"),
        ("worker/fields.py", FIELDS, "A is made of 7 things"),
    ],
)
def test_what_is_too_large_is_refused(tmp_path: Path, name: str, text: str, word: str) -> None:
    [line] = found(tmp_path, name, text)
    assert word in line


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("long.py", "x = 1\n" * 500),
        ("long.py", LONG.removesuffix("    x = 1\n")),
        ("worker/many.py", SEVEN.replace(", g", "")),
        ("worker/fields.py", FIELDS.removesuffix("    g: int\n")),
        ("worker/row.py", FIELDS.replace("@dataclass(frozen=True)\n", "").replace("A:", "A(NamedTuple):")),
        ("face.py", SEVEN),
        ("remote/worker.py", SEVEN.replace("A:", "RemoteWorker:")),
    ],
)
def test_what_is_small_or_promised_is_fine(tmp_path: Path, name: str, text: str) -> None:
    assert found(tmp_path, name, text) == []
