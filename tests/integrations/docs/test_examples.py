"""Every example that needs a framework runs, and prints what its page or this table says."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Program, programs
from tests.docs.test_blocks import run_program
from tests.support import nursery

pytestmark = pytest.mark.empty

PROMISED = {
    "langgraph_agent.py": [
        r"killed in the middle of a node",
        r"Oslo 4, Rome 21: sent",
        r"planned 1 time, Oslo 1, Rome 2",
    ],
    "pydantic_agent.py": [r"killed in the middle of a tool call", r"asked the model 2 times", r"Oslo 4, Rome 21"],
}
"""Program → patterns that its output contains."""


@pytest.mark.parametrize("program", programs(frameworks=True), ids=lambda program: program.where)
def test_the_example_of_a_page_runs(program: Program, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    run_program(program, tmp_path, request)


def test_every_program_has_its_promise() -> None:
    assert {path.name for path in ROOT.glob("examples/integrations/*.py")} == set(PROMISED)


@pytest.mark.parametrize("name", PROMISED)
def test_the_program_runs(name: str, tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("STEPFAST_")}
    program = ROOT / "examples" / "integrations" / name
    done = nursery.run([program], folder=tmp_path, environment=environment, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    for words in PROMISED[name]:
        assert re.search(words, done.stdout), f"{words!r} is not in:\n{done.stdout}"
