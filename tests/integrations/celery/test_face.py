"""What applications that move from Celery call: tasks, retries, results and canvases, on every store."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import stepfast.celery as face
from stepfast import ConfigurationError, RunFailed, Stepfast, StepfastError
from stepfast.celery import Celery, GroupResult, MaxRetriesExceededError, Task, chain, chord, group, shared_task

CALLS: Counter[str] = Counter()


@shared_task
def double(x: int) -> int:
    CALLS["double"] += 1
    return 2 * x


@pytest.fixture
def celery(url: str) -> Iterator[Celery]:
    CALLS.clear()
    made = Celery("shop", stepfast=Stepfast(url))
    yield made
    made.stepfast.sync.close()


def drain(celery: Celery) -> None:
    celery.stepfast.sync.drain()


def test_a_task_is_called_here_or_by_a_worker(celery: Celery) -> None:
    @celery.task
    def add(x: int, y: int = 1) -> int:
        CALLS["add"] += 1
        return x + y

    assert add(2, y=5) == 7
    result = add.delay(2, y=3)
    assert (result.state, result.ready(), result.result) == ("PENDING", False, None)
    later = add.apply_async((1,), countdown=3600, priority=3)
    drain(celery)
    assert (result.get(timeout=20), result.state, result.successful()) == (5, "SUCCESS", True)
    assert celery.AsyncResult(result.id).get() == 5 and result.date_done is not None
    assert later.state == "PENDING" and CALLS["add"] == 2
    later.revoke()
    assert later.state == "REVOKED"
    with pytest.raises(face.TaskRevokedError):
        later.get()


def test_tasks_and_event_loops_start_others(celery: Celery) -> None:
    @celery.task
    def parent(x: int) -> str:
        return double.delay(x).id

    result = parent.delay(4)
    drain(celery)
    assert celery.AsyncResult(result.get(timeout=20)).get(timeout=20) == 8

    async def in_a_loop() -> str:
        return str(double.delay(6).id)

    started = asyncio.run(in_a_loop())
    drain(celery)
    assert celery.AsyncResult(started).get(timeout=20) == 12


def test_an_error_fails_the_task_at_once_under_its_own_name(celery: Celery) -> None:
    @celery.task
    def bad() -> None:
        CALLS["bad"] += 1
        raise LookupError("no such order")

    result = bad.delay()
    drain(celery)
    with pytest.raises(RunFailed, match="no such order") as failed:
        result.get(timeout=20)
    assert failed.value.error_type == "LookupError" and "in bad" in (result.traceback or "")
    assert (result.state, CALLS["bad"]) == ("FAILURE", 1)
    assert isinstance(result.get(propagate=False), RunFailed)


def test_a_task_asks_to_be_retried(celery: Celery) -> None:
    @celery.task(bind=True, max_retries=2)
    def flaky(self: Task, until: int) -> list[Any]:
        if self.request.retries < until:
            raise self.retry(exc=ConnectionError("away"), countdown=0)
        return [self.request.id, self.request.retries, self.request.args]

    enough, short = flaky.delay(2), flaky.delay(3)
    drain(celery)
    assert enough.get(timeout=20) == [enough.id, 2, [2]]
    with pytest.raises(RunFailed, match="away") as failed:
        short.get(timeout=20)
    assert failed.value.error_type == "ConnectionError"


def test_retries_that_options_ask_for(celery: Celery) -> None:
    @celery.task(
        autoretry_for=(OSError,), dont_autoretry_for=(FileNotFoundError,), default_retry_delay=0, max_retries=1
    )
    def fetch(kind: str) -> None:
        CALLS[kind] += 1
        raise {"os": OSError, "file": FileNotFoundError, "value": ValueError}[kind](kind)

    @celery.task(bind=True, max_retries=1)
    def tired(self: Task) -> None:
        self.retry(countdown=0)

    results = [fetch.delay(kind) for kind in ("os", "file", "value")]
    none_left = tired.delay()
    drain(celery)
    for result in [*results, none_left]:
        assert result.failed()
    assert CALLS == {"os": 2, "file": 1, "value": 1}
    with pytest.raises(RunFailed) as failed:
        none_left.get()
    assert failed.value.error_type == "MaxRetriesExceededError"

    backing = celery.task(
        autoretry_for=(OSError,), retry_backoff=True, retry_backoff_max=2, max_retries=5, name="backing"
    )(print)
    first = backing._autoretry(OSError())
    assert first is not None and 0 <= first.delay <= 1
    token = face._request.set(face.Request(retries=5))
    try:
        assert backing._autoretry(OSError()) is None
        with pytest.raises(ConfigurationError, match="declare it with the task"):
            backing.retry(max_retries=9)
        with pytest.raises(MaxRetriesExceededError):
            backing.retry()
    finally:
        face._request.reset(token)


def test_a_task_waits_for_its_next_retry(celery: Celery) -> None:
    @celery.task(bind=True)
    def later(self: Task) -> None:
        self.retry(countdown=3600)

    result = later.delay()
    drain(celery)
    assert (result.state, result.ready()) == ("RETRY", False)


def test_chains_groups_and_chords(celery: Celery) -> None:
    @celery.task
    def add(x: int, y: int) -> int:
        return x + y

    @celery.task
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    line = chain(add.s(1, 2), add.s(10), double.si(50)).delay()
    piped = (add.s(1, 2) | double.s() | add.s(4).set(priority=2)).apply_async()
    side = group(add.s(i, i) for i in range(3)).delay()
    chorded = chord([add.s(1, 2), add.s(3, 4)])(total.s())
    nested = (add.s(1, 1) | group(add.s(10), double.s()) | total.s()).delay()
    drain(celery)
    assert (line.get(20), piped.get(20), side.get(20)) == (100, 10, [0, 2, 4])
    assert (chorded.get(20), nested.get(20)) == (10, 16)
    assert isinstance(side, GroupResult) and side.successful() and side.completed_count() == 3


def test_a_chord_with_a_failure_calls_no_body_and_ends_the_others(celery: Celery) -> None:
    @celery.task
    def bad() -> None:
        raise ValueError("broken")

    @celery.task
    def body(results: list[int]) -> None:
        CALLS["body"] += 1

    result = chord([bad.s(), double.s(2), double.s(3)], body.s()).delay()
    drain(celery)
    with pytest.raises(RunFailed, match="broken"):
        result.get(timeout=20)
    assert CALLS == {"double": 2}


def test_a_start_joins_a_transaction(sqlite_url: str) -> None:
    celery = Celery("shop", stepfast=Stepfast(sqlite_url))
    celery.stepfast.sync.migrate()
    connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
    kept = double.apply_async((2,), connection=connection)
    connection.commit()
    lost = double.apply_async((3,), connection=connection)
    connection.rollback()
    connection.close()
    drain(celery)
    assert kept.get(timeout=20) == 4
    with pytest.raises(StepfastError, match=lost.id):
        lost.state
    celery.stepfast.sync.close()


def test_what_has_no_counterpart_is_refused_by_name(celery: Celery) -> None:
    def refused(call: Any, words: str) -> None:
        with pytest.raises((ConfigurationError, AttributeError), match=words):
            call()

    def odd(**options: Any) -> Any:
        return options

    soon = datetime.now(UTC) + timedelta(seconds=5)
    refused(lambda: Celery("shop", broker="redis://"), "takes no broker=.*database of the Stepfast")
    refused(lambda: celery.conf, "no conf: pass Settings")
    refused(lambda: face.crontab, "no crontab: use app.schedule")
    refused(lambda: celery.task(**odd(rate_limit="10/m"))(print), r"takes no rate_limit=: use app.queue")
    refused(lambda: celery.task(**odd(colour="red"))(print), r"takes no colour=$")
    refused(lambda: double.apply_async((1,), **odd(task_id="t")), "takes no task_id=.*key=")
    refused(lambda: double.s(1).set(**odd(link=double.s())), "takes no link=: use a chain")
    refused(lambda: double.apply_async((1,), **odd(serializer="pickle")), "takes no serializer|no serializer=")
    refused(lambda: double.apply_async((1,), countdown=1, eta=soon), "either countdown= or eta=")
    refused(lambda: double.apply_async((1,), countdown=60, expires=soon), "expire before it is due")
    refused(lambda: double.apply_async((1,), expires=datetime(2030, 1, 1)), "needs a time zone")
    refused(lambda: chain(double, double), "takes signatures, as task.s")
    refused(lambda: group([]), "at least one")
    refused(lambda: chord([double.s(1)]).delay(), "needs a body")
    refused(lambda: celery.task(asyncio.sleep), "is an async def")


def test_threads_share_an_application(celery: Celery) -> None:
    results: list[Any] = []
    threads = [threading.Thread(target=lambda n=n: results.append((n, double.delay(n)))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    drain(celery)
    assert sorted((n, result.get(timeout=20)) for n, result in results) == [(n, 2 * n) for n in range(8)]
