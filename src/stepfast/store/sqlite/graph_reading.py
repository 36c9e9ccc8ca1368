"""Reading dag runs on SQLite: what their steps have put out."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from ...model.rows import DagOutputs
from .wide import fetch_wide


def dag_outputs(
    database: sqlite3.Connection, sql: dict[str, str], wanted: Sequence[tuple[str, int]]
) -> dict[str, DagOutputs]:
    """What the steps of dag runs see; two questions for all of them, and one for each large payload."""
    which, found = _json(list(wanted)), dict[str, DagOutputs]()
    for dag_id, text, format_ in fetch_wide(database, sql["dag_inputs"], (which,)):
        if text is None:
            (text,) = database.execute(sql["dag_input"], (dag_id,)).fetchone()
        found[dag_id] = DagOutputs(text, format_, [])
    for dag_id, dag_step, output, format_, completed_at, there in fetch_wide(database, sql["dag_outputs"], (which,)):
        if dag_id in found:
            if output is None and there:
                (output,) = database.execute(sql["dag_output"], (dag_id, dag_step)).fetchone()
            found[dag_id].outputs.append((dag_step, output, format_, completed_at))
    return found


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
