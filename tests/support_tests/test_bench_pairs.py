"""Pairs of checkouts: what is concluded from the takes, and that a take measures the package it should."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import meter
from bench.checkouts import checkouts
from bench.option_names import options_of
from bench.pairs import Comparison
from bench.runner import ROOT, ChildFailed, measure_in_child

NOISY = [1.0, 1.1, 0.95, 1.05]


@pytest.mark.parametrize(
    ("figure", "factor", "verdict"),
    [
        ("client", 1.05, "within A/A spread"),
        ("client", 1.2, "slower by 20.0 %"),
        ("client", 0.8, "quicker by 20.0 %"),
        ("rate", 1.2, "quicker by 20.0 %"),
        ("rate", 0.8, "slower by 20.0 %"),
    ],
)
def test_a_ratio_outside_of_the_control_is_a_difference(figure: str, factor: float, verdict: str) -> None:
    comparison = Comparison(figure, [1.0] * 4, [factor] * 4, NOISY)
    assert comparison.control == pytest.approx((1 / 1.1, 1.1))
    assert comparison.verdict == verdict


def test_two_pairs_say_nothing() -> None:
    assert Comparison("client", [1.0] * 2, [2.0] * 2, [1.0] * 2).verdict == "too few pairs"


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


def test_what_is_neither_a_commit_nor_a_folder_is_refused() -> None:
    with pytest.raises(SystemExit, match="neither a commit"), checkouts("no-such-thing"):
        pass


def test_the_cpu_of_a_server_is_that_of_its_processes() -> None:
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


def test_a_system_that_does_not_tell_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(meter, "PROC", tmp_path)
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    assert meter.server_cpu_left_out() == "Darwin has no /proc"
