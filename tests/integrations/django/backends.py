"""Backends that stand in for Django's own where its tests name those."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.db import connections

from stepfast.django import StepfastBackend
from stepfast.django.interface import AnyResult
from stepfast.django.testing import run_tasks


class QueuedBackend(StepfastBackend):
    """In place of DummyBackend, which knows what was enqueued."""

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self._ids: list[str] = []

    @property
    def results(self) -> list[AnyResult]:
        if asyncio._get_running_loop() is None:
            return [self.get_result(result_id) for result_id in self._ids]
        with ThreadPoolExecutor(1) as thread:  # tests that are coroutines ask for them too
            return list(thread.map(self.get_result, self._ids))

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        result = super().enqueue(task, args, kwargs)
        self._ids.append(result.id)
        return result

    def clear(self) -> None:
        self.remove_all()
        self._ids.clear()


class DrainedBackend(StepfastBackend):
    """In place of ImmediateBackend: a worker has executed the task when `enqueue` returns."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        result = super().enqueue(task, args, kwargs)
        if connections[self.database].in_atomic_block:
            return result  # no worker sees it before it is committed
        run_tasks(backend=self.alias)
        return self.get_result(result.id)


class EagerBackend(StepfastBackend):
    """In place of ImmediateBackend: `OPTIONS` stay empty, as its tests have them."""

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.eager = True
