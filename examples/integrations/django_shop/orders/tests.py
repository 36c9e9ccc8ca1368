"""How tasks are tested: with a worker in a TransactionTestCase, or eagerly in any test."""

from django.conf import settings
from django.test import TestCase, TransactionTestCase, override_settings

from stepfast.django import get_app
from stepfast.django.testing import run_tasks

from .models import Order
from .tasks import fulfil

EAGER = {"default": settings.TASKS["default"] | {"OPTIONS": {"eager": True}}}


class WithAWorker(TransactionTestCase):
    def test_an_order_is_fulfilled(self) -> None:
        placed = self.client.post("/orders/", {"item": "book", "cents": 1200})
        assert self.client.get(f"/orders/{placed.json()['order']}/").json()["task"] == "READY"
        run_tasks()
        assert self.client.get(f"/orders/{placed.json()['order']}/").json() == {
            "state": "paid",
            "task": "SUCCESSFUL",
            "attempts": 1,
            "receipts": 1,
            "result": "charge of 1200",
        }

    def test_a_dear_order_waits(self) -> None:
        order = Order.objects.create(item="piano", cents=500_000)
        result = fulfil.enqueue(order.pk)
        run_tasks()
        result.refresh()
        assert result.status == "RUNNING"
        get_app().sync.signal(result.id, "approved", True)
        run_tasks()
        result.refresh()
        assert result.status == "SUCCESSFUL"


@override_settings(TASKS=EAGER)
class Eagerly(TestCase):
    def test_an_order_is_fulfilled(self) -> None:
        placed = self.client.post("/orders/", {"item": "book", "cents": 1200})
        assert self.client.get(f"/orders/{placed.json()['order']}/").json()["state"] == "paid"
