"""`move`: a namespace to another database, and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Shop, Verbs

pytestmark = pytest.mark.enough_on("sqlite")


def test_a_namespace_is_moved_and_taken_back(stepfast: Verbs, shop: Shop, tmp_path: Path) -> None:
    new = f"sqlite:///{tmp_path}/new.db"
    run_id = shop.start("nothing")
    planned = stepfast.json("move", "--to", new, "--dry-run")
    assert planned["rows"] > 0
    assert not (tmp_path / "new.db").exists()
    assert "There is no terminal to ask at" in stepfast.error("move", "--to", new, code=2)
    moved = stepfast.json("move", "--to", new, "--yes")
    assert moved["rows"] == planned["rows"]
    assert {table["rows"] for table in moved["tables"] if table["table"] == "runs"} == {1}
    assert "this namespace was moved to" in stepfast.error("runs", code=2)
    assert "this namespace was moved to" in stepfast("doctor", code=1).stdout
    assert run_id in stepfast("runs", "--url", new).stdout
    assert "was moved to" in stepfast.error("move", "--to", new, "--yes", code=2)
    assert "is open again" in stepfast("move", "--to", new, "--back", "--yes").stderr
    assert run_id in stepfast("runs").stdout
    assert "empty it with `stepfast reset`" in stepfast.error("move", "--to", new, "--yes", code=1)
    stepfast("reset", "--yes", "--url", new)
    assert "are refused from now on" in stepfast("move", "--to", new, "--yes", "--to-namespace", "other").stderr
    assert run_id in stepfast("runs", "--url", new, "--namespace", "other").stdout


def test_options_that_contradict_each_other_are_refused(stepfast: Verbs, shop: Shop) -> None:
    stepfast("migrate")
    new = "sqlite:///elsewhere.db"
    assert "--force goes with --back" in stepfast("move", "--to", new, "--force", code=2).output
    assert "exclude each other" in stepfast("move", "--to", new, "--back", "--dry-run", code=2).output
    assert "is the same namespace" in stepfast.error("move", "--to", shop.url, code=2)
    assert "was not moved" in stepfast.error("move", "--to", new, "--back", "--yes", code=1)
