"""What the steps of dag runs see of each other. Read by workers alone, and apart from the flows that end steps."""

from __future__ import annotations

from collections.abc import Sequence

from ...model.rows import DagOutputs
from .base import Flow, Rows, ask


def dag_outputs(wanted: Sequence[tuple[str, int]]) -> Flow[dict[str, DagOutputs]]:
    """The inputs of dag runs, and the outputs of their steps that were completed at a time or after."""
    since: dict[str, int] = {}
    for dag_id, time in wanted:
        since[dag_id] = min(time, since.get(dag_id, time))
    if not since:
        return {}
    rows = yield from ask("dag_inputs", list(since))
    found = {str(row[0]): DagOutputs(row[1], row[2], []) for row in rows}
    for row in (yield from ask("dag_outputs", Rows(since.items()))):
        if str(row[0]) in found:
            found[str(row[0])].outputs.append((row[1], row[2], row[3], row[4]))
    return found
