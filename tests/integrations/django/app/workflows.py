"""Workflows on the application of the backend."""

from __future__ import annotations

from typing import Any

from stepfast import SyncContext
from stepfast.django import context, get_app

from .tasks import add, create_group

app = get_app()
app.queue("mail", concurrency=5)


@app.workflow
def onboarding(ctx: SyncContext, name: str) -> list[Any]:
    """A workflow that does steps with the ORM, and has a task of Django's as its child."""
    group = context.step(create_group, name)
    total = ctx.call(add.module_path, {"args": [1], "kwargs": {"y": 2}})
    return [group, total]
