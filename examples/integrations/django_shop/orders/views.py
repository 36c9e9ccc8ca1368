"""Pages that place, show and approve orders."""

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_POST

from stepfast.django import get_app

from .models import Order
from .tasks import fulfil


@require_POST
def place(request: HttpRequest) -> JsonResponse:
    """The order and its task are committed together, or neither is."""
    with transaction.atomic():
        order = Order.objects.create(item=request.POST["item"], cents=int(request.POST["cents"]))
        order.task = fulfil.enqueue(order.pk).id
        order.save(update_fields=["task"])
        if request.POST["item"] == "sold out":
            transaction.set_rollback(True)
            return JsonResponse({"error": "sold out", "task": order.task}, status=409)
    return JsonResponse({"order": order.pk, "task": order.task}, status=201)


def show(request: HttpRequest, pk: int) -> JsonResponse:
    order = get_object_or_404(Order, pk=pk)
    result = fulfil.get_result(order.task)
    told = {"state": order.state, "task": result.status, "attempts": result.attempts, "receipts": order.receipts}
    return JsonResponse(told | ({"result": result.return_value} if result.status == "SUCCESSFUL" else {}))


@require_POST
def approve(request: HttpRequest, pk: int) -> JsonResponse:
    order = get_object_or_404(Order, pk=pk)
    get_app().sync.signal(order.task, "approved", True)
    return JsonResponse({"approved": pk})
