"""`prune` and `delete`: counted, asked, archived."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Shop, Verbs

pytestmark = pytest.mark.enough_on("sqlite")


def test_prune_counts_asks_archives_and_removes(stepfast: Verbs, shop: Shop) -> None:
    ended = [shop.started("nothing", module="shop") for _ in range(2)]
    waits = shop.started("approval")
    assert stepfast("prune", "--older-than", "0", "--dry-run").stderr.strip() == (
        "would remove 2 runs that ended longer than 0 ms ago"
    )
    asked = stepfast.error("prune", "--older-than", "0", code=2)
    assert "Remove 2 runs" in asked and "give --yes" in asked
    assert len(stepfast.json("runs")) == 3
    assert stepfast.json("prune", "--older-than", "30d", "--yes") == {"found": 0, "removed": 0, "archive": None}
    told = stepfast.json("prune", "--older-than", "0s", "--archive", "old.jsonl", "--status", "completed")
    assert told == {"found": 2, "removed": 2, "archive": "old.jsonl"}
    assert [json.loads(line)["id"] for line in Path("old.jsonl").read_text().splitlines()] == ended
    assert [run["id"] for run in stepfast.json("runs")] == [waits]
    assert "may have been pruned" in stepfast.error("show", ended[0], code=3)
    assert "there is nothing to remove" in stepfast("prune", "--older-than", "0").stderr


def test_prune_refuses_what_it_cannot_do(stepfast: Verbs, shop: Shop) -> None:
    shop.started("nothing", module="shop")
    assert "cannot be written" in stepfast.error("prune", "--older-than", "0", "--archive", "no/x", "--yes", code=2)
    assert "only runs that have ended" in stepfast.error("prune", "--older-than", "0", "--status", "running", code=2)
    assert "--older-than" in stepfast("prune", code=2).stderr
    assert len(stepfast.json("runs")) == 1


def test_delete_removes_what_has_ended(stepfast: Verbs, shop: Shop) -> None:
    ended, waits = shop.started("nothing", module="shop"), shop.started("approval")
    answer = stepfast("delete", ended[:-2], waits, code=1)
    assert answer.stdout.split() == [ended]
    assert f"run {waits} is waiting; only a run that has ended can be deleted" in answer.stderr
    assert stepfast.json("delete", ended, code=3)[0]["deleted"] is False
