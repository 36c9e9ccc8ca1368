"""The tutorial on graphs shows the example as it is, and what the verbs print about it."""

from __future__ import annotations

import asyncio
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from stepfast.cli import cli
from tests.docs.pages import ROOT, blocks

pytestmark = pytest.mark.empty

PAGE = ROOT / "docs" / "tutorial-saga.md"
EXAMPLE = ROOT / "examples" / "order_fulfillment.py"
PYTHON = [block.text for block in blocks(PAGE) if block.language == "python"]
DRAWN, STANDING = (block.text for block in blocks(PAGE) if block.text.startswith("step "))


def test_the_tutorial_shows_the_example_piece_by_piece() -> None:
    text = EXAMPLE.read_text()
    for piece in PYTHON:
        assert piece in text
    assert re.sub(r"\s+", "", "".join(PYTHON)) == re.sub(r"\s+", "", text.split('"""', 2)[2])


def test_the_graph_is_drawn_as_the_tutorial_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLE.parent)
    drawn = CliRunner().invoke(cli, ["graph", "order_fulfillment:app", "order-fulfillment"]).stdout
    assert untimed(drawn) == untimed(DRAWN)  # how wide the gaps are is rich's to say


def test_a_failed_order_is_shown_as_the_tutorial_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/orders.db"
    monkeypatch.setenv("STEPFAST_URL", url)
    run_id = asyncio.run(moon(loaded()))
    shown = CliRunner().invoke(cli, ["show", run_id, "--url", url]).stdout
    steps = shown.partition("\nSteps\n")[2].partition("\n\n")[0]
    assert untimed(steps) == untimed(STANDING)


def loaded() -> ModuleType:
    """The example, read anew: it looks into the environment when it is imported."""
    spec = importlib.util.spec_from_file_location("order_fulfillment_again", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def moon(example: ModuleType) -> str:
    """The second order, to its end."""
    async with example.app as app, app.worker():
        run = await app.start(example.fulfil, example.order(2, "samovar", 19900, "the moon"))
        await example.tell(run)
        return str(run.id)


def untimed(text: str) -> list[list[str]]:
    """The cells of a table, line by line, without times and gaps."""
    lines = re.sub(r"\d+(\.\d+)? m?s\b", "a while", text).strip().splitlines()
    return [re.split(r" {2,}", line) for line in lines]
