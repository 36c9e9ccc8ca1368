"""`queues`, `queue pause` and `queue resume`."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Shop, Verbs
from tests.store.scene import Scene

pytestmark = pytest.mark.empty


async def scenery(scene: Scene) -> None:
    await scene.add_worker(host="harbour", pid=1, queues=["order"])
    await scene.start_many(3)
    await scene.start("mail", delay_ms=60_000)
    await scene.start("mail")


def test_queues_for_people(stepfast: Verbs, shop: Shop) -> None:
    shop.play(scenery)
    answer = stepfast("queues")
    header, mail, order = answer.stdout.splitlines()
    assert header.split()[:6] == ["queue", "state", "ready", "running", "waiting", "delayed"]
    assert mail.split()[:6] == ["mail", "open", "1", "0", "0", "1"] and "NOBODY SERVES IT" in mail
    assert order.split()[:6] == ["order", "open", "3", "0", "0", "0"] and "harbour:1" in order
    assert "queue 'mail' has 1 ready, and nobody serves it" in answer.stderr
    assert "'order'" not in answer.stderr


def test_queues_for_scripts(stepfast: Verbs, shop: Shop) -> None:
    shop.play(scenery)
    mail, order = stepfast.json("queues")
    assert mail.items() >= {"queue": "mail", "ready": 1, "delayed": 1, "workers": 0, "served_by": []}.items()
    assert order.items() >= {"queue": "order", "ready": 3, "paused": False, "served_by": ["harbour:1"]}.items()
    assert order["oldest"] >= 0


def test_no_queues(stepfast: Verbs, shop: Shop) -> None:
    stepfast("migrate")
    assert "no queues" in stepfast("queues").stderr
    assert stepfast.json("queues") == []


def test_a_queue_is_held_and_goes_on(stepfast: Verbs, shop: Shop) -> None:
    shop.play(scenery)
    assert stepfast("queue", "pause", "order").stdout == "order\n"
    assert [(each["queue"], each["paused"]) for each in stepfast.json("queues")] == [("mail", False), ("order", True)]
    assert "paused" in stepfast("queues").stdout
    assert stepfast.json("queue", "resume", "order") == {"queue": "order", "paused": False}
    assert "was not paused" in stepfast("queue", "resume", "order").stderr


def test_a_queue_that_nothing_has_named_is_held_with_a_word(stepfast: Verbs, shop: Shop) -> None:
    stepfast("migrate")
    assert "nothing has named a queue 'odrer'" in stepfast("queue", "pause", "odrer").stderr
