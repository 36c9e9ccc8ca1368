"""`stats`: what has happened lately, for people and for scripts."""

from __future__ import annotations

import pytest

from stepfast.cli.admin import written
from tests.cli.conftest import Shop, Verbs

pytestmark = pytest.mark.enough_on("sqlite")


def test_what_has_happened(stepfast: Verbs, shop: Shop) -> None:
    stepfast("migrate")
    assert "nothing is under way" in stepfast("stats").stderr
    for _ in range(2):
        shop.start("refuse", "s3cret")
        shop.start("checkout", {"id": "o", "cents": 1})
    shop.start("hold", queue="vip")
    shop.call(lambda app: app.drain(queues=["refuse", "checkout"]))
    found = stepfast.json("stats", "--since", "2h")
    assert [(row["workflow"], row["queue"], row["status"], row["count"]) for row in found["runs"]] == [
        ("checkout", "checkout", "completed", 2), ("hold", "vip", "queued", 1), ("refuse", "refuse", "failed", 2),
    ]  # fmt: skip
    [failure] = found["failures"]
    assert (failure["error_type"], failure["count"], failure["per_hour"]) == ("ValueError", 2, 1.0)
    assert {row["step"] for row in found["steps"]} == {"add tax", "charge"}
    assert found["complete"] is True and found["since"] == 7200
    text = stepfast("stats").stdout
    assert "s3cret" not in text
    for word in ("vip", "queued", "failed within 1 h", "ValueError", "slowest steps", "add tax"):
        assert word in text, text
    assert "since must be more than 0 seconds" in stepfast.error("stats", "--since", "0", code=2)


def test_numbers_are_written_out() -> None:
    assert [written(number) for number in (0.25, 1.0, 12.345, 120.0, 1500.4, 2_000_000.0)] == [
        "0.25", "1", "12.3", "120", "1500", "2000000",
    ]  # fmt: skip
