"""The counter of modules sees the functions of the package in all threads, and leaves out what happens by chance."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
from tools.crossings import Recorder, usual

MODULE = """
x = [number for number in range(3)]

def work():
    return 1
"""


def test_modules_are_noted_in_the_order_of_first_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "till"
    package.mkdir()
    for name in ("__init__", "first", "second"):
        (package / f"{name}.py").write_text(MODULE)
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


def test_a_module_counts_if_most_takes_have_it() -> None:
    takes = [dict.fromkeys(names.split()) for names in ("a b", "a c b", "a b d")]
    assert usual(takes) == ["a", "b"]
