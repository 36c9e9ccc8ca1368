"""Texts that tests compare with files beside them: `snapshots/show.txt` has a section for each test of `test_show.py`.

`STEPFAST_SNAPSHOTS=write`, with `-n 0`, writes what the tests got: to be read as a diff before it is committed. What
differs from run to run (ids, times, measured spans) is replaced, and the gap between two columns is two blanks.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

_ID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_VARYING = (
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?: UTC|Z)?"), "<time>"),
    (re.compile(r"\bversion [0-9a-f]{12,16}\b"), "version <version>"),
    (re.compile(rf"\b{re.escape(socket.gethostname())}:\d+"), "HOST:PID"),
)
_SPAN = re.compile(r"(?<!lease of )(?<!lease, )\b(\d+(?:\.\d+)?) (ms|s|min|h|d)\b(?: (\d+) (s|min|h)\b)?")
_UNITS = {"ms": 0.001, "s": 1, "min": 60, "h": 3600, "d": 86400}
_SECTION = re.compile(r"^== (.+)\n", re.MULTILINE)


def _rough(span: re.Match[str]) -> str:
    """A measured span without what depends on the machine: 59 min 58 s is about 1 h."""
    seconds = float(span[1]) * _UNITS[span[2]] + float(span[3] or 0) * _UNITS[span[4] or "s"]
    unit = next((unit for unit in ("d", "h", "min") if seconds >= 0.95 * _UNITS[unit]), "")
    return f"about {round(seconds / _UNITS[unit])} {unit}" if unit else "<span>"


def steady(text: str, *, spans: bool = False) -> str:
    """The same text in every run; spans are kept if they are declared, not measured."""
    numbers: dict[str, int] = {}
    text = _ID.sub(lambda found: f"<id {numbers.setdefault(found[0], len(numbers) + 1)}>", text)
    for pattern, word in _VARYING:
        text = pattern.sub(word, text)
    text = text if spans else _SPAN.sub(_rough, text)
    return "".join(re.sub(r"(?<=\S) {2,}", "  ", line).rstrip() + "\n" for line in text.strip("\n").splitlines())


def sections(file: Path) -> dict[str, str]:
    """The texts that a file keeps, by test."""
    parts = _SECTION.split(file.read_text())[1:] if file.exists() else []
    return {name: text.strip("\n") + "\n" for name, text in zip(parts[::2], parts[1::2], strict=True)}


Snapshot = Callable[..., None]


@pytest.fixture
def snapshot(request: pytest.FixtureRequest) -> Snapshot:
    """Compare texts with those that were written for this test. The database makes no difference."""
    path = request.path
    file = path.parent / "snapshots" / f"{path.stem.removeprefix('test_')}.txt"
    name = re.sub(r"(?<=[\[-])(?:sqlite|postgres)(?:-|(?=\]))", "", request.node.name).replace("[]", "")

    def compare(*texts: str, spans: bool = False) -> None:
        got = "\n".join(steady(text, spans=spans) for text in texts)
        if os.environ.get("STEPFAST_SNAPSHOTS") == "write":
            found = sections(file) | {name: got}
            file.parent.mkdir(exist_ok=True)
            file.write_text("\n".join(f"== {test}\n{found[test]}" for test in sorted(found)))
        assert got == sections(file).get(name), f"{name} is not in {file.name}: STEPFAST_SNAPSHOTS=write writes it"

    return compare
