"""Rules of the product taken out, one at a time: a simulation that does not notice is worth nothing.

Each is a context manager. What it changes is changed in this process alone, and only while a world is played.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from stepfast.engine import compensation, step, waits
from stepfast.engine import history as engine_history
from stepfast.engine.execution import Execution
from stepfast.model.status import TIMED_OUT
from stepfast.model.transitions import dag, finish
from stepfast.store.flows import callbacks as flows_callbacks
from stepfast.store.flows import claims as flows_claims
from stepfast.store.flows import events as flows_events
from stepfast.store.flows import flush as flow
from stepfast.store.flows import limits as flows_limits
from stepfast.store.flows import questions as flows_questions
from stepfast.store.flows import streams as flows_streams
from stepfast.store.flows import sweep
from stepfast.store.sqlite import flush
from stepfast.store.sqlite.store import SqliteStore
from stepfast.worker import reaper
from stepfast.worker import worker as worker_worker

Mutation = Callable[[], contextlib.AbstractContextManager[Any]]


def swapped(owner: Any, name: str, value: Any, create: bool = False) -> Any:
    """Something else under a name, for a while."""
    return mock.patch.object(owner, name, value, create=create)


@contextlib.contextmanager
def fence() -> Iterator[None]:
    """Whoever writes is believed: by the short way of the usual freight, and by the flow."""
    with (
        swapped(flush, "_passing", lambda batch, claims, answer: batch),
        rewritten("fence", "r.worker IS ?1 AND r.claim = f.claim", "?1 IS NOT NULL"),
        rewritten("fence", "r.claim,", "f.claim,"),
    ):
        yield


def wakes() -> Any:
    """A run says that it waits, and is believed, whatever has come in meanwhile."""
    return swapped(finish, "_woken", lambda run, move: False)


def token() -> Any:
    """A claim whose reply was lost is not asked for again."""
    return swapped(flows_claims.LastTokens, "is_repeated", lambda self, worker, token: False)


@contextlib.contextmanager
def lease() -> Iterator[None]:
    """Workers bury each other by the rows alone: nobody has to have looked on for a lease."""
    silent = swapped(reaper.SilenceTracker, "silent", lambda self, now: list(self._seen))
    with silent, swapped(worker_worker.WorkerRuntime, "may_reap", lambda self: True):
        yield


def own_lease() -> Any:
    """A worker that nothing was heard of for a lease claims before it has beaten."""
    return swapped(worker_worker.WorkerRuntime, "is_unheard", lambda self: False)


def retries() -> Any:
    """A step has one retry more than it was given."""
    delay = vars(step)["retry_delay"]
    return swapped(
        step, "retry_delay", lambda error, failures, allowed, *rest: delay(error, failures, allowed + 1, *rest)
    )


def rewritten(name: str, old: str, new: str) -> Any:
    """Another text in a statement, by its name."""
    make = SqliteStore.__init__

    def made(self: Any, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        assert old in self._sql[name], f"statement {name} has no {old!r}"
        self._sql[name] = self._sql[name].replace(old, new)

    return swapped(SqliteStore, "__init__", made)


def take() -> Any:
    """A signal stays in the mailbox when it was taken."""
    return rewritten("take_mail", "WHERE", "WHERE false AND")


@contextlib.contextmanager
def parents() -> Iterator[None]:
    """Nobody tells a parent how its child ended."""
    tell = vars(flush)["tell"]

    def told(moves: Any, answer: Any) -> Any:
        yield from tell([move for move in moves if not move.child], answer)

    with swapped(flush, "tell", told), swapped(flow, "tell", told):
        yield


def release() -> Any:
    """Who waits for a dag step is not told that it was completed."""
    summed = vars(dag)["summed"]

    def fewer(settled: Any) -> Any:
        return summed([end for end in settled if end.outcome != "completed"])

    return swapped(dag, "summed", fewer)


def forgotten_release() -> Any:
    """Who waits for a dag step is not told that it was skipped."""
    summed = vars(dag)["summed"]

    def fewer(settled: Any) -> Any:
        return summed([end for end in settled if end.outcome != "skipped"])

    return swapped(dag, "summed", fewer)


def reverse() -> Any:
    """What was done first is undone first."""
    return swapped(compensation, "sorted", lambda items, key, reverse: sorted(items, key=key), create=True)


def history() -> Any:
    """A claim leaves out the last record of a run."""
    bring = flows_claims.with_history

    def fewer(worker: Any, runs: Any, *rest: Any) -> Any:
        for run in (found := (yield from bring(worker, runs, *rest))):
            if run.records:
                run.records.pop()
        return found

    return swapped(flows_claims, "with_history", fewer)


def limits() -> Any:
    """What workers hold does not count for the limit of a queue."""
    usage = vars(flows_limits)["_usage"]

    def generous(*given: Any) -> Any:
        found = yield from usage(*given)
        found.whole = found.whole._replace(running=0)
        return found

    return swapped(flows_limits, "_usage", generous)


@contextlib.contextmanager
def due() -> Iterator[None]:
    """A sleeper is woken a second before its time."""
    was = vars(sweep)["due"]
    early = swapped(sweep, "due", lambda run, now: was(run, now + 1000))
    with early, rewritten("lock_due", "<= stepfast_now()", "<= stepfast_now() + 1000"):
        yield


def past() -> Any:
    """A run whose time has come is released once more."""
    release = waits.Waits.release

    def released(self: Any) -> None:
        with swapped(Execution, "database_now", lambda _: -1):
            release(self)

    return swapped(waits.Waits, "release", released)


def new_input() -> Any:
    """A start that puts a debounced run off leaves it its first input."""
    return rewritten("change_input", "WHERE r.id = u.id", "WHERE false")


@contextlib.contextmanager
def held() -> Iterator[None]:
    """A call that is held back until its run has been replayed is let go only if the run is at rest at that moment."""
    check = waits.Waits.release_if_at_rest

    def unless_holding(self: Any) -> None:
        if not self._execution.holding:
            check(self)

    def never(self: Any, call: Any) -> bool:
        return self._over and engine_history.behind(self._execution, call.cursor) is None

    with swapped(waits.Waits, "release_if_at_rest", unless_holding), swapped(engine_history.Holds, "_goes", never):
        yield


def open_records() -> Any:
    """A worker remembers of a call that has ended that it was begun."""
    return swapped(engine_history, "_replaces", lambda new, old: False)


@contextlib.contextmanager
def callback_time() -> Iterator[None]:
    """A run is told that the time of its callback is up, and the callback goes on taking an outcome."""
    refusal = vars(flows_callbacks)["_refusal"]

    def never_late(row: Any, run: Any, now: int) -> Any:
        return (yield from refusal(row._replace(timeout_ms=None, heartbeat_ms=None), run, now))

    def only_told(row: Any, now: int) -> Any:
        yield from ()
        return row._replace(state=TIMED_OUT)

    with swapped(flows_callbacks, "_refusal", never_late), swapped(flows_callbacks, "_time_out", only_told):
        yield


def items() -> Any:
    """A flush forgets what it has stored of streams: an item that is sent once more is stored once more."""

    def none(keys: Any) -> Any:
        yield from ()
        return {}

    return swapped(flows_streams, "_sources", none)


def takes() -> Any:
    """An event that a run has taken is there for its next wait, too."""

    def nothing(taken: Any) -> Any:
        yield from ()

    return swapped(flows_events, "take", nothing)


def answers() -> Any:
    """A question is taken, and nothing comes of its answer."""

    def nothing(answers: Any, now: int) -> Any:
        yield from ()

    return swapped(flows_questions, "answer", nothing)


ALL: dict[str, Mutation] = {
    "fence": fence, "wakes": wakes, "token": token, "lease": lease, "own lease": own_lease, "retries": retries,
    "take": take, "parents": parents, "release": release, "skips": forgotten_release, "reverse": reverse,
    "history": history, "limits": limits, "due": due, "past": past, "new input": new_input, "held": held,
    "opened": open_records, "callback time": callback_time, "items": items, "takes": takes, "answers": answers,
}  # fmt: skip
"""By the name of the rule that is taken out."""


def what(name: str) -> str:
    """What is so without the rule, in a sentence."""
    return (ALL[name].__doc__ or "").strip().replace("\n    ", " ")
