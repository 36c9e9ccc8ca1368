"""What a result means to the remote step that it is of."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from stepfast import Backoff
from stepfast.model import remote_steps as remote
from stepfast.model.remote_steps import MOST_RESENT, Judged, RemoteStep, Result, judge

RUN = "0197a1b2-9401-7a89-847a-d1691b87dc74"
STEP = RemoteStep(
    RUN, 3, "id", "", 0, 1, 1, "echo", "echo", "durable", "1", "sent", 2, 3,
    remote.backoff_text(Backoff(base=2, jitter=False)), 100_000, 105_000,
)  # fmt: skip


def heard(step: RemoteStep = STEP, now: int = 110_000, **columns: Any) -> Judged:
    row = {"status": "failed", "output": None, "error": None, "started_at": 101_000, **columns}
    return judge(step, Result(step.step_id, RUN, 3, created_at=1, **row), now)


def test_what_was_completed_is_completed_whenever_it_began() -> None:
    for state in ("sent", "outbox"):
        for started_at in (None, 1, 99_000, 101_000):
            judged = heard(replace(STEP, state=state), status="completed", output="[1]", started_at=started_at)
            assert judged.outcome == ("completed", "[1]", None)
            after = judged.step
            assert (after.state, after.due_at, after.settled_at, after.input) == ("settled", None, 110_000, None)


@pytest.mark.parametrize(("started_at", "waited"), [(None, None), (101_500, 1_500), (99_000, 0)])
def test_the_wait_for_a_worker_is_never_below_zero(started_at: int | None, waited: int | None) -> None:
    assert heard(status="completed", started_at=started_at).step.queue_ms == waited


@pytest.mark.parametrize("output", [None, "null"])
def test_no_output_is_null(output: str | None) -> None:
    assert heard(status="completed", output=output).outcome == ("completed", "null", None)


@pytest.mark.parametrize("output", ["NaN", "{", "", "[1,", '"\\ud800"', "[" * 100_000])
def test_an_output_that_is_no_json_fails_for_good(output: str) -> None:
    judged = heard(status="completed", output=output or " ")
    assert judged.outcome is not None
    assert judged.outcome.status == "failed"
    assert json.loads(judged.outcome.error or "")["retryable"] is False


def test_a_failure_is_followed_by_the_next_attempt_after_its_backoff() -> None:
    judged = heard(error='{"message": "no", "code": "E"}')
    assert judged.outcome is None
    assert (judged.step.state, judged.step.attempt, judged.step.due_at) == ("outbox", 3, 114_000)
    assert json.loads(judged.failed_try or "")["code"] == "E"


@pytest.mark.parametrize("retryable", [True, None, 0, "false"])
def test_a_worker_has_to_say_false_to_end_it(retryable: Any) -> None:
    assert heard(error=json.dumps({"message": "no", "retryable": retryable})).outcome is None
    assert heard(error=json.dumps({"message": "no", "retryable": False})).outcome is not None


def test_after_the_last_retry_it_fails() -> None:
    judged = heard(replace(STEP, attempt=4), error='{"message": "no", "code": "E", "stack": "at …"}')
    assert judged.outcome is not None
    expected = {"type": "RemoteStepError", "message": "no", "code": "E", "retryable": True, "traceback": "at …"}
    assert json.loads(judged.outcome.error or "") == expected


@pytest.mark.parametrize("error", [None, "not JSON", "[]", "{}", '{"message": 7, "code": 8, "stack": 9}'])
def test_an_error_that_says_nothing_is_an_error(error: str | None) -> None:
    text, again = remote.read_error(error)
    assert again
    assert json.loads(text)["message"].startswith("the worker ")


def test_an_error_with_half_a_character_still_says_that_no_retry_will_help() -> None:
    """JavaScript cuts texts in the middle of an emoji, and writes the half that is left as an escape."""
    text, again = remote.read_error(r'{"message":"no \ud83d","stack":"at \ud83d","retryable":false}')
    assert not again
    assert '"message":"no \\\\ud83d"' in text


def test_what_is_kept_of_an_error_is_bounded() -> None:
    text, _ = remote.read_error(json.dumps({"message": "m" * 10**6, "code": "c" * 10**6, "stack": "s" * 10**6}))
    assert len(text) < 100_000


def test_an_old_failure_is_no_answer() -> None:
    judged = heard(started_at=94_999)
    assert (judged.step.state, judged.step.attempt, judged.step.resent) == ("outbox", 2, 1)
    assert (judged.outcome, judged.failed_try) == (None, None)
    assert heard(started_at=95_000).step.attempt == 3, "within the tolerance of clocks"
    assert heard(started_at=None).step.attempt == 3, "nobody knows when it began"
    assert heard(replace(STEP, attempt=1), started_at=1).step.attempt == 2, "the first has nothing before it"


def test_a_failure_that_says_of_which_attempt_it_is_is_taken_at_its_word() -> None:
    assert heard(attempt=1, started_at=1) == Judged(STEP), "nothing was lost by it, so nothing is sent again"
    assert heard(attempt=2, started_at=1).step.attempt == 3, "whatever the clock of the worker says"
    assert heard(attempt=1, status="completed", output="1").step.state == "settled"


def test_it_is_not_sent_again_without_end() -> None:
    judged = heard(replace(STEP, resent=MOST_RESENT), started_at=1)
    assert judged.step.state == "settled"
    assert judged.outcome is not None
    assert f"sent out {MOST_RESENT + 1} times" in (judged.outcome.error or "")


def test_what_is_over_stays_over() -> None:
    for state in ("settled", "withdrawn"):
        step = replace(STEP, state=state)
        assert heard(step, status="completed") == Judged(step)
        assert heard(step) == Judged(step)
        assert remote.withdrawn(step, 1) == step
    waiting = replace(STEP, state="outbox")
    assert heard(waiting) == Judged(waiting), "a second word on the attempt before"


def test_looks_for_a_task_become_rare() -> None:
    due = [remote.looked_for(STEP, 100_000 + age, 5_000).due_at for age in (0, 60_000, 86_400_000)]
    assert due == [105_000, 190_000, 86_800_000]


@pytest.mark.parametrize(
    ("step_id", "key"),
    [
        (f"{RUN}:0", (RUN, 0)), (f"{RUN}:-2", (RUN, -2)), (f"{RUN}:123456789", (RUN, 123456789)), (f"{RUN}:", None),
        (f"{RUN}:x", None), ("run:0", None), (f"{RUN}:٣", None), (f"{RUN}:{10**12}", None), (f"{RUN}:1234567890", None),
        (f"{RUN}:--1", None), (f"{RUN}:00", None), (f"{RUN}:-0", None), (f"{RUN}:1\n", None), (RUN, None), ("", None),
        (f"{RUN.upper()}:0", None), *((each * 36 + ":0", None) for each in "z é"),
    ],
)  # fmt: skip
def test_only_ids_as_we_write_them_are_ours(step_id: str, key: tuple[str, int] | None) -> None:
    assert remote.key_of(step_id) == key
