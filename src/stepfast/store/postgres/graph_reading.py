"""Reading dag runs on Postgres: what their steps have put out."""

from __future__ import annotations

from collections.abc import Sequence

from ...model.rows import DagOutputs
from .connections import KeptConnection


class GraphReader:
    """Reads dag runs over a connection that is kept for it."""

    def __init__(self, kept: KeptConnection, statements: dict[str, str]) -> None:
        self._kept = kept
        self._sql = statements

    async def outputs(self, wanted: Sequence[tuple[str, int]]) -> dict[str, DagOutputs]:
        """The inputs of dag runs, and the outputs of their steps that were completed at a time or after."""
        since: dict[str, int] = {}
        for dag_id, time in wanted:
            since[dag_id] = min(time, since.get(dag_id, time))
        found: dict[str, DagOutputs] = {}
        async with self._kept.use() as connection:
            for row in await connection.fetch(self._sql["dag_inputs"], list(since)):
                found[str(row["id"])] = DagOutputs(row["input"], row["format"], [])
            for dag_id, *output in await connection.fetch(self._sql["dag_outputs"], list(since), list(since.values())):
                if str(dag_id) in found:
                    found[str(dag_id)].outputs.append((output[0], output[1], output[2], output[3]))
        return found
