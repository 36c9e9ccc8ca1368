"""Each example runs by itself and tells the story it promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

PROMISED = {
    "demo.py": [
        r"worker 1 is killed \(SIGKILL\), in the middle of pack_parcel",
        r"worker 2 calls pack_parcel",
        r"charge_card +. completed . receipt-o-42 +. 1 +. - ",
        r"Attempts of the code: 1\.",
    ],
    "order_checkout.py": [
        r"one run for one key: True",
        r"charge +try 3 completed",
        r"charged: 1 time",
        r"card was declined",
    ],
    "data_pipeline.py": [r"2026-01-10: 12 readings", r"10 runs, 9 steps each"],
    "fastapi_app.py": [r"the same run again: True", r"'status': 'completed'"],
    "agent_loop.py": [r"it ended with SIGKILL", r"answer: Rome has", r"7 records: think, tool weather, think"],
}


def test_every_example_has_its_promise() -> None:
    assert {path.name for path in ROOT.glob("examples/*.py")} == set(PROMISED)


@pytest.mark.parametrize("name", PROMISED)
def test_the_example_runs(name: str, tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / name],
        cwd=tmp_path, env={**environment, "PYTHONWARNINGS": "error"}, capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for words in PROMISED[name]:
        assert re.search(words, done.stdout), f"{words!r} is not in:\n{done.stdout}"
    assert list(tmp_path.iterdir()) == [], "an example leaves nothing behind"


def test_the_agent_asks_its_model_once_per_turn(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "examples" / "agent_loop.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=90)
    assert re.findall(r"model: turn (\d)", done.stdout) == ["1", "3", "5", "7"]
    assert re.findall(r"weather in (\w+)", done.stdout) == ["Rome", "Oslo", "Oslo", "Lima"]
