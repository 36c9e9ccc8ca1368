"""`start` and `result`."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from stepfast import RunInfo, results
from tests.cli.conftest import Shop, Verbs

pytestmark = pytest.mark.enough_on("sqlite")

ORDER = '{"id": "o-1", "cents": 21}'


def info(shop: Shop, run_id: str) -> RunInfo:
    found: RunInfo = shop.call(lambda app: app.get(run_id).info())
    return found


def started(stepfast: Verbs, *arguments: str, input: str | None = None) -> str:
    """Start a run by the code; its id."""
    answer = stepfast("start", *arguments, "--app", "shop:app", input=input)
    run_id = answer.stdout.strip()
    assert (answer.stdout, answer.stderr) == (f"{run_id}\n", "")
    return run_id


def test_start_prints_the_id_and_nothing_else(stepfast: Verbs, shop: Shop) -> None:
    assert info(shop, started(stepfast, "double", ORDER)).input == {"id": "o-1", "cents": 21}
    assert info(shop, started(stepfast, "double", "-", input=ORDER)).input["cents"] == 21
    assert info(shop, stepfast.json("start", "nothing", "--app", "shop:app")["id"]).workflow == "nothing"


def test_start_without_the_code_is_checked_against_what_the_database_knows(stepfast: Verbs, shop: Shop) -> None:
    shop.drain()  # a worker was there, so the definitions are
    run_id = stepfast("start", "double", ORDER).stdout.strip()
    shop.drain()
    assert stepfast.json("result", run_id)["output"] == 42


def test_every_option_reaches_the_run(stepfast: Verbs, shop: Shop) -> None:
    run_id = started(
        stepfast, "double", ORDER, "--key", "k-1", "--queue", "vip", "--priority", "7", "--delay", "2h",
        "--expires-in", "30m", "--deadline", "1d", "--max-attempts", "9", "--timeout", "1m30s", "--tag", "red",
        "--tag", "large", "--concurrency-key", "customer-7",
    )  # fmt: skip
    run = info(shop, run_id)
    assert (run.key, run.queue, run.priority, run.max_attempts, run.tags) == ("k-1", "vip", 7, 9, ["red", "large"])
    assert run.due_at == run.created_at + timedelta(hours=2)
    assert run.expires_at == run.due_at + timedelta(minutes=30)
    assert (run.deadline, run.concurrency_key) == (run.created_at + timedelta(days=1), "customer-7")
    late = info(shop, started(stepfast, "nothing", "--at", "2099-01-31T09:30+01:00"))
    assert late.due_at == datetime(2099, 1, 31, 8, 30, tzinfo=UTC)


def test_the_same_key_is_the_same_run(stepfast: Verbs, shop: Shop) -> None:
    assert started(stepfast, "nothing", "--key", "once") == started(stepfast, "nothing", "--key", "once")


def test_start_and_wait_for_the_result_or_the_failure(stepfast: Verbs, shop: Shop) -> None:
    shop.start("double", {"id": "o-1", "cents": 21}, key="k")
    shop.start("refuse", "no luck", key="k")
    shop.drain()
    answer = stepfast("start", "double", ORDER, "--key", "k", "--wait")
    assert answer.stdout == "42\n" and answer.stderr.startswith("run ")
    answer = stepfast("start", "refuse", '"no luck"', "--key", "k", "--wait", code=1)
    assert answer.stdout == "" and "ValueError: no luck" in answer.stderr


WRONG = '{"id": "o-1", "cents": "many"}'


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["dubble"], "error: there is no workflow named 'dubble'; known workflows: checkout, double, hold"),
        (["double", WRONG], "$.cents"),
        (["double", WRONG, "--app", "shop:app"], "$.cents"),
        (["double", "--app", "shop:app"], "the input of 'double'"),
        (["refuse", "text", "--app", "shop:app"], "the input is not JSON"),
        (["refuse", "text", "--app", "shop:app"], "a string needs its quotes"),
        (["refuse", "-"], "stdin is not JSON"),
        (["nothing", "--delay", "soon"], "'soon' is not a time"),
        (["nothing", "--at", "tomorrow"], "'tomorrow' is not a time"),
        (["nothing", "--app", "shop:app", "--delay", "5", "--at", "2099-01-01T00:00"], "delay or at, not both"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_a_start_that_cannot_work_is_refused(stepfast: Verbs, shop: Shop, arguments: list[str], why: str) -> None:
    shop.drain()
    refused = stepfast("start", *arguments, code=2, input="{")
    assert why in refused.stderr and refused.stdout == ""
    assert shop.call(lambda app: app.runs()) == []


# -- result


def test_result_prints_json(stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.start("checkout", {"id": "o-1", "cents": 99})
    shop.drain()
    assert json.loads(stepfast("result", run_id).stdout) == {"charged": 100}
    expected = {"id": run_id, "status": "completed", "reason": None, "output": {"charged": 100}, "error": None}
    assert stepfast.json("result", run_id) == expected


def test_result_of_a_failed_run(stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.start("refuse", "no luck")
    shop.drain()
    assert stepfast.error("result", run_id, code=1) == f"error: run {run_id} failed (code): ValueError: no luck"
    outcome = stepfast.json("result", run_id, code=1)
    assert (outcome["status"], outcome["reason"]) == ("failed", "code")
    assert outcome["error"]["message"] == "no luck"


def test_result_gives_up_after_the_timeout(stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.start("nothing")
    told = stepfast.error("result", run_id, "-t", "10ms", code=4)
    assert f"run {run_id} has not ended within 0.01 s; it is queued; there is no live worker" in told


def test_result_says_that_nobody_will_take_the_run(
    stepfast: Verbs, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a timeout, too, a person is not left waiting without a word."""
    monkeypatch.setattr(results, "SOON", 0.01)
    run_id = shop.start("nothing")
    first, last = stepfast.error("result", run_id, "-t", "100ms", code=4).splitlines()
    assert first.startswith(f"run {run_id}: it is queued; there is no live worker")
    assert last.startswith("error: ")


def test_result_of_a_run_that_does_not_exist(stepfast: Verbs, shop: Shop) -> None:
    shop.drain()
    nobody = "0197a1b2-0000-7000-8000-000000000000"
    assert stepfast.error("result", nobody, code=3) == f"error: there is no run {nobody} (it may have been pruned)"
    assert "there is no run '7': that is not a run id" in stepfast.error("result", "7", code=3)
