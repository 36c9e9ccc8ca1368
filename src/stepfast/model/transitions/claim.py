"""A worker takes a run. Claims are made in SQL, hundreds in one statement; this is what they do to a row, and how much
of a history they bring along."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from .. import status
from ..records import StepRecord
from ..run_state import RunState
from ..stored import next_claim


def claim(run: RunState, worker: str, version: str, now: int) -> RunState:
    """A run out of its queue, under a new claim number."""
    return replace(
        run,
        status=status.COMPENSATING if run.undoing else status.RUNNING,
        worker=worker,
        version=version,
        claim=next_claim(run.claim),
        place=None,
        visible_at=None,
        waiting_for=None,
        attempt=max(run.attempt, run.first_attempt),
        started_at=now if run.started_at is None else run.started_at,
    )


def first_records(history: Iterable[StepRecord], most: int, most_bytes: int) -> tuple[list[StepRecord], bool]:
    """Take the records that a claim brings along: as many as this, and none after outputs of more bytes than this. And
    whether they are the whole history: of a longer one, one record more is looked at, by its presence alone."""
    records, size = list[StepRecord](), 0
    for record in history:
        if len(records) >= most or size > most_bytes:
            return records, False
        records.append(record)
        size += _bytes(record.output or "")
    return records, True


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
