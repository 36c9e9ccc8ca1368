"""What happens to an order after its page was answered."""

import os
import signal
from pathlib import Path

from django.db import transaction
from django.db.models import F

from stepfast.django import context

from .models import Order

try:
    from django.tasks import task  # Django 6
except ImportError:
    from django_tasks import task


@task(max_attempts=3, timeout=3600)
def fulfil(order_id: int) -> str:
    """Charge an order, wait for approval if it is dear, and send its receipt. Each step is done once."""
    order = Order.objects.get(pk=order_id)
    charge = context.options(retries=3).step(charge_card, order.cents)
    if order.cents >= 100_000:
        context.wait_signal("approved", type=bool)
    with transaction.atomic():
        Order.objects.filter(pk=order_id).update(state="paid")
        send_receipt.using(key=f"receipt-{order_id}").enqueue(order_id)  # in this transaction, and once for the order
    return charge


def charge_card(cents: int) -> str:
    note(f"charged {cents}")
    return f"charge of {cents}"


@task(queue_name="mail", priority=10)
def send_receipt(order_id: int) -> None:
    if os.environ.get("SHOP_DIES"):
        os.kill(os.getpid(), signal.SIGKILL)
    Order.objects.filter(pk=order_id).update(receipts=F("receipts") + 1)


@task
async def count_orders(state: str) -> int:
    return await Order.objects.filter(state=state).acount()


def note(line: str) -> None:
    """What a card company would know of it."""
    if "SHOP_NOTES" in os.environ:
        with Path(os.environ["SHOP_NOTES"]).open("a") as file:
            file.write(f"{line}\n")
