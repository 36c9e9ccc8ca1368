"""`export` and `replay`: a run as a file, and what today's code makes of it."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Shop, Verbs
from tests.cli.test_checking import QUAY

pytestmark = pytest.mark.enough_on("sqlite")


def test_a_run_is_written_to_a_file_and_replayed_without_its_database(shop: Shop, stepfast: Verbs) -> None:
    shop.write("quay.py", QUAY)
    shop.write("other.py", QUAY.replace('"moor", moor, ship', '"anchor", moor, ship'))
    run_id = shop.started("landing", "Argo", module="quay")
    stepfast("export", run_id, "--output", "run.json")
    assert json.loads((shop.folder / "run.json").read_text())["run"]["id"] == run_id
    assert json.loads(stepfast("export", run_id[:-2]).stdout)["run"]["id"] == run_id
    assert "fits" in stepfast("replay", run_id, "--app", "quay:app").stdout
    elsewhere = ("--url", "sqlite:///nowhere.db")
    assert "landing" in stepfast("replay", "run.json", "--app", "quay:app", *elsewhere).stdout
    found = stepfast.json("replay", "run.json", "--app", "other:app", *elsewhere, code=1)
    assert found["verdict"] == "diverges"
    assert not (shop.folder / "nowhere.db").exists()


def test_what_cannot_be_replayed_is_said(shop: Shop, stepfast: Verbs) -> None:
    shop.write("quay.py", QUAY)
    shop.write("wrong.json", "[]")
    assert "--app module:app" in stepfast.error("replay", "wrong.json", code=2)
    assert "no export of a run" in stepfast.error("replay", "wrong.json", "--app", "quay:app", code=2)
