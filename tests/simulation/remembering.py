"""What a worker remembers of a run that it released is what is stored of it, record for record."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from unittest import mock

import msgspec

from stepfast.model.records import StepRecord
from stepfast.model.status import WAITING
from stepfast.worker.attempt import HistoryCache

_TOLD_TO_READERS = {"claim", "losses"}
"""Fields that no claim brings: a run is replayed without them."""

_FIELDS = [name for name in StepRecord.__struct_fields__ if name not in _TOLD_TO_READERS]
_STORED = f"SELECT {', '.join(_FIELDS)} FROM stepfast_steps WHERE run_id = ?"


@contextlib.contextmanager
def compared(connection: Callable[[], sqlite3.Connection], wrong: list[tuple[str, str]]) -> Iterator[None]:
    """While a world is played: compare whatever is remembered when it is used."""
    take = HistoryCache.take

    def checked(self: HistoryCache, run_id: str, claim: int) -> list[StepRecord] | None:
        records = take(self, run_id, claim)
        row = connection().execute("SELECT claim FROM stepfast_runs WHERE id = ?", (run_id,)).fetchone()
        if records is not None and row == (claim,):  # else another has it already
            rows = connection().execute(_STORED, (run_id,))
            stored = [StepRecord(**dict(zip(_FIELDS, row, strict=True))) for row in rows]
            if set(map(_said, records)) != set(map(_said, stored)) or len(records) != len(stored):
                told = f"at claim {claim} it is remembered as {_told(records, stored)}, and stored as "
                wrong.append((run_id, told + _told(stored, records)))
        return records

    with mock.patch.object(HistoryCache, "take", checked):
        yield


def _said(record: StepRecord) -> str:
    """All that a replay may ask; of one that was left open by a release the times are those of the worker."""
    record = msgspec.structs.replace(record, claim=0, losses=None)
    if record.status == WAITING:
        record = msgspec.structs.replace(record, started_at=0, completed_at=0)
    return repr(record)


def _told(records: list[StepRecord], others: list[StepRecord]) -> str:
    """Those at addresses where the others say something else."""
    known = set(map(_said, others))
    addresses = {(each.branch, each.position) for each in records if _said(each) not in known}
    addresses |= {address for address, count in Counter((each.branch, each.position) for each in records).items()
                  if count > 1}  # fmt: skip
    told = [_said(each) for each in records if (each.branch, each.position) in addresses]
    return "; ".join(told) or "nothing else"
