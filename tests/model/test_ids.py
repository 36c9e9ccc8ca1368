"""Ids: ordered within a process, distinct over threads and forks."""

from __future__ import annotations

import multiprocessing
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.queues import SimpleQueue

import pytest

from stepfast.model.ids import is_id, new_id


def test_ids_are_uuids_of_version_seven() -> None:
    for _ in range(100):
        text = new_id()
        value = uuid.UUID(text)
        assert (str(value), value.version, value.variant) == (text, 7, uuid.RFC_4122)
        assert abs((value.int >> 80) / 1000 - time.time()) < 60


def test_later_ids_sort_after_earlier_ones() -> None:
    made = [new_id() for _ in range(20_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_ids_never_go_back_with_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    before = new_id()
    past = time.time_ns() - 3_600_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: past)
    after = [new_id() for _ in range(10)]
    assert [before, *after] == sorted([before, *after])


def test_threads_make_distinct_ids() -> None:
    with ThreadPoolExecutor(8) as pool:
        made = [i for batch in pool.map(lambda _: [new_id() for _ in range(2000)], range(8)) for i in batch]
    assert len(set(made)) == len(made)


def _make(queue: SimpleQueue[list[str]]) -> None:
    queue.put([new_id() for _ in range(200)])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking with threads about: that is the point
def test_forked_children_make_distinct_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if all make them at the same instant."""
    frozen = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: frozen)
    context = multiprocessing.get_context("fork")
    queue: SimpleQueue[list[str]] = context.SimpleQueue()
    children = [context.Process(target=_make, args=(queue,)) for _ in range(3)]
    for child in children:
        child.start()
    made = [i for _ in children for i in queue.get()] + [new_id() for _ in range(200)]
    for child in children:
        child.join()
    assert len(set(made)) == 800


@pytest.mark.parametrize(
    ("text", "ok"),
    [
        ("0197a1b2-0000-7000-8000-000000000000", True),
        ("0197A1B2-0000-7000-8000-000000000000", False),
        ("0197a1b2000070008000000000000000", False),
        ("0197a1b2-0000-7000-8000-00000000000", False),
        ("0197a1b2-0000-7000-8000-000000000000\n", False),
        ("", False),
    ],
    ids=repr,
)
def test_only_our_own_spelling_is_an_id(text: str, ok: bool) -> None:
    assert is_id(text) is ok
