"""Tasks that tests enqueue."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from django.contrib.auth.models import Group
from django.db import connection, transaction

import stepfast
from stepfast import RetryLater
from stepfast.django import context
from stepfast.django.interface import TaskContext

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

CALLS: Counter[str] = Counter()


@task
def add(x: int, y: int = 1) -> int:
    return x + y


@task(takes_context=True, max_attempts=3, backoff=stepfast.Backoff(base=0.01))
def fails(context: TaskContext, times: int) -> int:
    """`context` here is that of Django."""
    if context.attempt <= times:
        raise LookupError(f"attempt {context.attempt}")
    return context.attempt


@task(takes_context=True)
def fails_once(context: TaskContext) -> None:
    if context.attempt == 1:
        raise LookupError("attempt 1")


@task(takes_context=True)
def about(context: TaskContext) -> dict[str, Any]:
    result = context.task_result
    return {
        "id": result.id,
        "status": result.status,
        "priority": result.task.priority,
        "queue": result.task.queue_name,
        "workers": result.worker_ids,
        "attempts": result.attempts,
        "enqueued_at": result.enqueued_at is not None,
    }


@task
def makes_a_group(name: str) -> int:
    with transaction.atomic():
        return int(Group.objects.create(name=name).pk)


@task
async def counts_groups() -> int:
    await context.step(awaited)
    return await Group.objects.acount()


async def awaited() -> None:
    CALLS["awaited"] += 1


@task
def durable(name: str) -> list[Any]:
    CALLS["body"] += 1
    first = context.step(create_group, name)
    context.sleep(0.05)
    second = context.options(name="again", retries=2).step(flaky_step)
    label = context.step("labelled", create_group, f"{name}-2")
    return [first, second, label, context.attempt]


@stepfast.step(retries=3)
def create_group(name: str) -> str:
    CALLS["create"] += 1
    Group.objects.create(name=name)
    return name


def flaky_step() -> str:
    CALLS["flaky"] += 1
    if CALLS["flaky"] < 2:
        raise RetryLater(0.01)
    return "in the end"


@task
def enqueues(count: int) -> list[str]:
    with transaction.atomic():
        return [add.enqueue(number).id for number in range(count)]


@task
def breaks_connection() -> int:
    """What is left broken in its thread is not found by the next task there."""
    connection.ensure_connection()
    connection.connection.close()
    connection.errors_occurred = True
    return threading.get_ident()


@task
def dies_between_steps(notes: str) -> str:
    """Killed in its second step, if the environment says so."""
    context.step(note, notes, "first")
    context.step(note, notes, "second")
    return "done"


def note(notes: str, line: str) -> None:
    if line == "second" and "TASK_DIES" in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
    with Path(notes).open("a") as file:
        file.write(f"{line}\n")


@task
def slow(seconds: float, notes: str) -> None:
    with Path(notes).open("a") as file:
        file.write("began\n")
    time.sleep(seconds)
    with Path(notes).open("a") as file:
        file.write("ended\n")


@task
def dawdles(seconds: float) -> None:
    time.sleep(seconds)
    CALLS["dawdled"] += 1


@task
def tells(value: Any) -> str:
    return json.dumps(value)
