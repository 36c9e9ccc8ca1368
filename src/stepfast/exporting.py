"""A run as JSON: all that its code was answered, so that it can be replayed without the database it came from.

Payloads are written as they are stored: what went through a codec stays so. The secret that the run's random values are
made from is among it, because a replay must draw the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from .errors import ConfigurationError, RunNotFound
from .model.records import StepRecord
from .model.rows import DagStepRow, RunRow
from .store import Store

MARK = "stepfast_export"
VERSION = 1
_PAGE = 1000


class Exported(msgspec.Struct):
    """What is in an export."""

    run: RunRow
    steps: list[StepRecord]
    seed: str | None = None
    graph: str | None = None
    """Of a dag run: the graph it goes by."""
    dag_steps: list[DagStepRow] = []
    """Of a dag run: its steps, and how they have ended."""
    stepfast_export: int = VERSION


async def export_run(store: Store, run_id: str) -> dict[str, Any]:
    """Everything that a replay needs of a run, as plain values that JSON can hold."""
    row = await store.run(run_id)
    if row is None:
        raise RunNotFound(run_id)
    if row.dag_id is not None:
        raise ConfigurationError(f"run {run_id} is a step of dag run {row.dag_id}: export that")
    steps: list[StepRecord] = []
    after = ("", -1)
    while page := await store.steps(run_id, after, _PAGE):
        steps += page
        after = (page[-1].branch, page[-1].position)
    steps.sort(key=lambda step: (step.branch, step.position))  # pages are in the order of the database
    exported = Exported(row, steps, await store.seed(run_id))
    if row.graph is not None:
        exported.graph = await store.graph(row.workflow, row.graph, run_id)
        exported.dag_steps = await store.dag_steps(run_id)
    made: dict[str, Any] = msgspec.to_builtins(exported)
    return made


def read_export(given: object) -> Exported:
    """An export again: the values themselves, or their JSON."""
    try:
        if isinstance(given, (str, bytes, bytearray)):
            given = msgspec.json.decode(given)
        if not isinstance(given, Mapping) or MARK not in given:
            raise ConfigurationError(
                "this is no export of a run: make one by `await run.export()` or `stepfast export`"
            )
        if given[MARK] != VERSION:
            raise ConfigurationError(f"this export has the form {given[MARK]!r}; this version reads form {VERSION}")
        return msgspec.convert(given, Exported)
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"this is no export of a run: {error}") from None
