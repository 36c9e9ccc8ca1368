"""Claims on SQLite, and the histories they bring along. One writer: what was looked at is still so when it is taken."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import msgspec

from ...model.rate_limiter import Admission, WantedRuns
from ...model.records import Claimed, Lane, StepRecord, Tries
from ...model.transitions.claim import first_records
from ...settings import SUSPECT_LOSSES, Settings
from ..answers import NOTHING
from ..flows.limits import claim_limited
from .bulk_rows import execute_wide, fetch_wide
from .driver import drive

Pick = tuple[int, int, str, str]
"""(place, row, version that had it last, version that takes it)"""


class Claims:
    """Takes runs; called in the writer's transaction."""

    def __init__(self, statements: dict[str, str], settings: Settings) -> None:
        self._sql = statements
        self._settings = settings

    def claim(
        self,
        database: sqlite3.Connection,
        worker: str,
        token: int,
        lanes: Sequence[tuple[Lane, int]],
        versions: dict[str, str],
        limit: int,
        remembered: Mapping[str, int],
    ) -> list[Claimed]:
        """Ready runs of these lanes, or what the same token took before."""
        taken = self._taken(database, worker, token, {})
        if not taken:
            picked = list(self._first(database, [lane for lane, _ in lanes], versions, limit))
            taken = self._take(database, worker, token, picked)
        return self._with_history(database, taken, remembered)

    def claim_suspects(
        self,
        database: sqlite3.Connection,
        worker: str,
        token: int,
        versions: dict[str, str],
        queues: Sequence[str] | None,
        room: Sequence[int],
    ) -> list[Claimed]:
        """A group of runs that workers have died with."""
        taken = self._taken(database, worker, token, {})
        if not taken:
            group = self._first_suspects(database, versions, queues, room)
            picked = [(place, row, last, versions[workflow]) for place, row, last, workflow in group]
            taken = self._take(database, worker, token, picked)
        return self._with_history(database, taken, NOTHING)

    def claim_limited(
        self, database: sqlite3.Connection, worker: str, token: int, want: WantedRuns, remembered: Mapping[str, int]
    ) -> Admission:
        """What the limits of a queue allow, or what the same token took before."""
        done = drive(database, self._sql, claim_limited(worker, token, want, True, self._settings.claim_bytes))
        self._with_history(database, done.runs, remembered)
        return done

    def has_suspects(
        self, database: sqlite3.Connection, workflows: Sequence[str] | None, queues: Sequence[str] | None
    ) -> bool:
        """Whether one of these workflows has, in one of these queues, a run that workers have died with."""
        return bool(self._first_suspects(database, workflows, queues, (1,)))

    # -- choosing -------------------------------------------------------------------------------------------

    def _first(
        self, database: sqlite3.Connection, lanes: list[Lane], versions: dict[str, str], limit: int
    ) -> Iterator[Pick]:
        """(place, row, last version, new version) of the first runs over all lanes: by priority, then by age. No more
        of them than their inputs are worth taking at once; one is always taken."""
        size = 0
        for _, level in groupby(sorted(lanes, key=lambda lane: -lane.priority), key=lambda lane: lane.priority):
            found = [
                (place, row, last, versions[lane.workflow], bytes_)
                for lane in level
                for place, row, last, bytes_ in fetch_wide(database, self._sql["ready"], (*lane, limit))
            ]
            found.sort()
            for place, row, last, new, bytes_ in found[:limit]:
                if size >= self._settings.claim_bytes:
                    return
                size += bytes_
                yield place, row, last, new
            limit -= len(found)
            if limit <= 0:
                return

    def _first_suspects(
        self,
        database: sqlite3.Connection,
        workflows: Sequence[str] | dict[str, str] | None,
        queues: Sequence[str] | None,
        room: Sequence[int],
    ) -> list[tuple[int, int, str, str]]:
        """(place, row, last version, workflow) of those with the fewest losses, as many as there is room for."""
        found: list[tuple[int, int, str, str]] = []
        fewest = limit = size = 0
        cursor = database.execute(self._sql["suspects"])
        for losses, place, row, last, workflow, queue, bytes_ in cursor:
            if (workflows is None or workflow in workflows) and (queues is None or queue in queues):
                if not found:
                    fewest, limit = losses, room[min(losses - SUSPECT_LOSSES, len(room) - 1)]
                if losses > fewest or len(found) == limit or size >= self._settings.claim_bytes:
                    break
                size += bytes_
                found.append((place, row, last, workflow))
        cursor.close()
        return found

    # -- taking ---------------------------------------------------------------------------------------------

    def _take(self, database: sqlite3.Connection, worker: str, token: int, picked: list[Pick]) -> list[Claimed]:
        if not picked:
            return []
        database.execute(
            self._sql["log_claims_of"], (msgspec.json.encode([row for _, row, _, _ in picked]).decode(), worker)
        )
        execute_wide(database, self._sql["take"], [(row, worker, token, version) for _, row, _, version in picked])
        return self._taken(database, worker, token, {row: (place, last) for place, row, last, _ in picked})

    def _taken(
        self, database: sqlite3.Connection, worker: str, token: int, known: dict[int, tuple[int, str]]
    ) -> list[Claimed]:
        """What a token took, in the order it was to be taken in; ``known`` tells what the rows said before."""
        taken = []
        for row, *columns in fetch_wide(database, self._sql["taken"], (worker, token)):
            run = Claimed(*columns)
            run.undoing, run.failing = bool(run.undoing), bool(run.failing)
            if row in known:
                run.place, run.last_version = known[row]
            taken.append(run)
        taken.sort(key=lambda run: (-run.priority, run.place))
        return taken

    # -- history --------------------------------------------------------------------------------------------

    def _with_history(
        self, database: sqlite3.Connection, runs: list[Claimed], remembered: Mapping[str, int]
    ) -> list[Claimed]:
        """A run claimed for the first time has none."""
        for run in runs:
            if run.claim > 1:
                if remembered.get(run.id) == run.claim - 1:
                    run.complete = False
                else:
                    self._bring_records(database, run)
                for branch, position, *tries in database.execute(self._sql["history_tries"], (run.id, run.attempt)):
                    run.tries[branch, position] = Tries(*tries)
        return runs

    def _bring_records(self, database: sqlite3.Connection, run: Claimed) -> None:
        """Read until there are enough; the cursor is lazy, so that only one more is read than is brought along."""
        settings = self._settings
        cursor = database.execute(self._sql["history"], (run.id,))
        history = (StepRecord(*row) for row in cursor)
        run.records, run.complete = first_records(history, settings.history_records, settings.history_bytes)
        cursor.close()
