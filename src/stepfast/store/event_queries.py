"""Queries about events, streams, questions and callbacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..model.ids import is_id
from ..model.records import (
    Answer,
    CallbackOutcome,
    Mail,
    QuestionAnswer,
)
from ..model.rows import (
    CallbackRow,
    DueEventStart,
    EventRow,
    EventUse,
    NextEvents,
    ShownEvent,
)
from .answers import (
    AskedRow,
    CallbackAnswer,
    QuestionRow,
    StreamEnd,
    StreamRow,
)
from .flows import (
    callbacks,
    events,
    questions,
)
from .flows.base import Rows
from .flows.events import EventStart, Matched, NewEvent, Reached
from .store_requests import StoreRequests


class EventQueries(StoreRequests):
    """What is sent to runs beside signals, and what they send themselves."""

    # -- streams -------------------------------------------------------------------------------------------------

    async def stream_names(self, run_id: str) -> list[str]:
        """The names of the streams of a run, and of those that it continued as."""
        return [row[0] for row in await self._fetch("streams_of_chain", run_id)]

    async def link_of_chain(self, run_id: str, link: int) -> tuple[str, int] | None:
        """The run of a chain that has a number, counted from that of a run; or the next, if it was removed."""
        rows = await self._fetch("link_of_chain", run_id, link)
        return (str(rows[0][0]), int(rows[0][1])) if rows else None

    async def stream_sizes(self, run_id: str) -> dict[str, int]:
        """The streams of a run, and the numbers of their last items."""
        return {row[0]: row[1] for row in await self._fetch("streams", run_id)}

    async def stream_counts(self, run_id: str, name: str) -> dict[str, int]:
        """How many items the branches of a workflow have sent to a stream."""
        return {row[0]: row[1] for row in await self._fetch("stream_counts", run_id, name)}

    async def stream_pages(self, places: Sequence[tuple[str, str, int, int]]) -> dict[tuple[str, str], list[StreamRow]]:
        """The items of streams (run, name) between two numbers."""
        found: dict[tuple[str, str], list[StreamRow]] = {}
        for row in await self._fetch("stream_pages", Rows(places)):
            found.setdefault((row[0], row[1]), []).append(StreamRow(*row[2:]))
        return found

    async def stream_ends(self, run_ids: Sequence[str]) -> dict[str, StreamEnd]:
        """Of those runs that are there: whether they have ended, and as what they continued."""
        rows = await self._fetch("stream_ends", list(run_ids))
        return {row[0]: StreamEnd(bool(row[1]), row[2] and str(row[2]), row[3] or 0) for row in rows}

    # -- questions and callbacks ---------------------------------------------------------------------------------

    async def questions(self, ids: Sequence[str]) -> list[QuestionRow]:
        """What has become of questions; of those that are not there nothing."""
        return [QuestionRow._make((*row[:-1], bool(row[-1]))) for row in await self._fetch("questions", list(ids))]

    async def questions_of(self, run_id: str, limit: int = 50) -> list[AskedRow]:
        """The questions to a run, the newest first."""
        return [AskedRow(*row) for row in await self._fetch("questions_of", run_id, limit)]

    async def end_callback(self, id_: str, outcome: CallbackOutcome, check: bool = False) -> CallbackAnswer | None:
        """Give a callback its outcome. Safe to repeat: the answer has the outcome that it has then. None: there is none
        of that id. ``check``: if it names a type, nothing is done, and the answer says that the value is to be
        checked."""
        return await self._drive(callbacks.end, id_, outcome, check)

    async def beat_callback(self, id_: str) -> CallbackAnswer | None:
        """Note a heartbeat of a callback."""
        return await self._drive(callbacks.beat, id_)

    async def look_at_callback(self, id_: str, claim: int, attempt: int) -> CallbackRow | None:
        """The state of a callback for its run, which waits for it: one whose time is up is ended, one that an earlier
        attempt had no value of is open again."""
        return await self._drive(callbacks.look, id_, claim, attempt)

    async def reject_callback(self, worker: str, claim: int, id_: str, value: str | None) -> bool | None:
        """Open a callback again whose value does not fit; False if its run has taken the value, None if the worker does
        not hold the run under this claim any more."""
        return await self._drive(callbacks.reject, worker, claim, id_, value)

    async def callbacks_of(self, run_id: str, limit: int = 50) -> list[CallbackRow]:
        """The callbacks of a run, the newest first."""
        return [CallbackRow(*row) for row in await self._fetch("callbacks_of", run_id, limit)]

    async def callbacks_shown(
        self, name: str | None, state: str | None, opened_at: int | None, last: str | None, limit: int
    ) -> list[CallbackRow]:
        """Callbacks of all runs, the newest first: of a name and a state (``ended``: its run ended first), opened
        before a time, or then and with a smaller id."""
        if last is not None and not is_id(last):
            return []
        rows = await self._fetch("callbacks_shown", name, state, opened_at, last, limit)
        return [CallbackRow(*row) for row in rows]

    async def ask_question(self, mail: Mail, check: bool = False) -> Answer:
        """Put a question into a run's mailbox; its id is that of the message. Safe to repeat: one that was asked before
        is there already. ``check``: if every open wait for it names a type, nothing is done, and the answer has the
        plans of the waits."""
        return await self._drive(questions.ask_question, mail, self._settings.max_signals, check)

    async def refuse_question(self, worker: str, run_id: str, claim: int, refusal: QuestionAnswer) -> bool:
        """Refuse a question in the mailbox of a run; False if the run is not the worker's under this claim any more."""
        return await self._drive(questions.refuse_question, worker, run_id, claim, refusal)

    # -- events --------------------------------------------------------------------------------------------------

    async def publish(self, rows: Sequence[NewEvent]) -> None:
        """Publish events; one that is there already, by its id, is the same."""
        await self._drive(events.publish, rows)

    async def subscribe(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Store which events (by their names) start which workflows."""
        await self._drive(events.subscribe, pairs)

    async def match_events(self, limit: int, reached: Reached | None, new_id: Callable[[], str]) -> Matched:
        """Number new events, wake runs that wait for them, and note what they start: a batch at a time."""
        return await self._sweep(events.match, limit, reached, new_id)

    async def next_events(
        self, run_id: str, name: str, key: str, low: int, since: int | None, limit: int
    ) -> NextEvents:
        """The next events of a name and a key (empty: any) that a run has not taken, beyond a number and since a time;
        and whether it is to be woken by more."""
        statement = "next_events" if key else "next_events_of_any_key"
        rows = await self._fetch(statement, run_id, name, key, low, since, limit)
        return NextEvents(bool(rows[0][0]), [EventRow(*row[1:]) for row in rows if row[1] is not None])

    async def due_event_starts(self, pairs: Sequence[tuple[str, str]], limit: int) -> list[DueEventStart]:
        """Runs that are to be started now, so many of each of these events (by name) and workflows."""
        rows = await self._fetch("due_event_starts", Rows(pairs), limit)
        return [DueEventStart(row[1], row[2], EventRow(row[0], 0, *row[3:])) for row in rows]

    async def start_by_events(self, starts: Sequence[EventStart]) -> list[EventStart]:
        """Start runs, each once, also if other workers try; those that were started now."""
        return await self._sweep(events.start, starts)

    async def events(
        self, name: str | None = None, key: str | None = None, before: int | None = None, limit: int = 50
    ) -> list[ShownEvent]:
        """A page of events, the newest first; ``before`` is the number of the last of the page before."""
        new = [] if before is not None else list(await self._fetch("events_shown_first", name, key, limit))
        rows = [*new, *await self._fetch("events_shown", name, key, before, limit)]
        return [ShownEvent(*row) for row in rows[:limit]]

    async def event_uses(self, ids: Sequence[str], limit: int = 1000) -> list[EventUse]:
        """What events (by the ids of their rows) have started, and which runs took them, at most so many."""
        starts = [EventUse(row[0], row[2], row[1], row[3]) for row in await self._fetch("starts_of_events", list(ids))]
        return starts + [EventUse(*row) for row in await self._fetch("takers_of_events", list(ids), limit)]

    async def event_waiters(self, names: Sequence[str], limit: int = 200) -> list[tuple[str, str, str]]:
        """Runs that wait for events of these names: (name, key or empty, run)."""
        return [(row[0], row[1], row[2]) for row in await self._fetch("waiters_for_events", list(names), limit)]

    async def remove_events(self, keep_ms: int, limit: int) -> int:
        """Remove events that were published longer ago, at most so many, and subscriptions that no worker has declared
        for as long; how many events."""
        return await self._drive(events.remove, keep_ms, limit)

    async def fail_event_start(self, event_id: str, workflow: str, error: str, wait_ms: int) -> None:
        """Note why a run could not be started, to be tried again later."""
        await self._drive(events.fail_start, event_id, workflow, error, wait_ms)
