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


def test_start_prints_the_id_and_nothing_else(stepfast: Verbs, shop: Shop) -> None:
    answer = stepfast("start", "double", ORDER, "--app", "shop:app")
    run_id = answer.stdout.strip()
    assert answer.stdout == f"{run_id}\n"
    assert answer.stderr == ""
    assert info(shop, run_id).input == {"id": "o-1", "cents": 21}


def test_start_for_scripts(stepfast: Verbs, shop: Shop) -> None:
    started = stepfast.json("start", "nothing", "--app", "shop:app")
    assert info(shop, started["id"]).workflow == "nothing"


def test_a_start_can_count_for_the_limits_of_a_key(stepfast: Verbs, shop: Shop) -> None:
    run_id = stepfast("start", "nothing", "--concurrency-key", "customer-7", "--app", "shop:app").stdout.strip()
    assert info(shop, run_id).concurrency_key == "customer-7"


def test_start_without_the_code_is_checked_against_what_the_database_knows(stepfast: Verbs, shop: Shop) -> None:
    shop.drain()  # a worker was there, so the definitions are
    run_id = stepfast("start", "double", ORDER).stdout.strip()
    shop.drain()
    assert stepfast.json("result", run_id)["output"] == 42


def test_input_from_stdin(stepfast: Verbs, shop: Shop) -> None:
    run_id = stepfast("start", "double", "-", "--app", "shop:app", input=ORDER).stdout.strip()
    assert info(shop, run_id).input["cents"] == 21


def test_every_option_reaches_the_run(stepfast: Verbs, shop: Shop) -> None:
    answer = stepfast(
        "start", "double", ORDER, "--app", "shop:app", "--key", "k-1", "--queue", "vip", "--priority", "7",
        "--delay", "2h", "--expires-in", "30m", "--deadline", "1d", "--max-attempts", "9", "--timeout", "1m30s",
        "--tag", "red", "--tag", "large",
    )  # fmt: skip
    run = info(shop, answer.stdout.strip())
    assert (run.key, run.queue, run.priority, run.max_attempts, run.tags) == ("k-1", "vip", 7, 9, ["red", "large"])
    assert run.due_at == run.created_at + timedelta(hours=2)
    assert run.expires_at == run.due_at + timedelta(minutes=30)
    assert run.deadline == run.created_at + timedelta(days=1)


def test_a_moment_to_start_at(stepfast: Verbs, shop: Shop) -> None:
    answer = stepfast("start", "nothing", "--app", "shop:app", "--at", "2099-01-31T09:30+01:00")
    assert info(shop, answer.stdout.strip()).due_at == datetime(2099, 1, 31, 8, 30, tzinfo=UTC)


def test_the_same_key_is_the_same_run(stepfast: Verbs, shop: Shop) -> None:
    first = stepfast("start", "nothing", "--app", "shop:app", "--key", "once").stdout
    assert stepfast("start", "nothing", "--app", "shop:app", "--key", "once").stdout == first


def test_start_and_wait_for_the_result(stepfast: Verbs, shop: Shop) -> None:
    shop.start("double", {"id": "o-1", "cents": 21}, key="k")
    shop.drain()
    answer = stepfast("start", "double", ORDER, "--key", "k", "--wait")
    assert answer.stdout == "42\n"
    assert answer.stderr.startswith("run ")


def test_start_and_wait_for_a_failure(stepfast: Verbs, shop: Shop) -> None:
    shop.start("refuse", "no luck", key="k")
    shop.drain()
    answer = stepfast("start", "refuse", '"no luck"', "--key", "k", "--wait", code=1)
    assert answer.stdout == ""
    assert "ValueError: no luck" in answer.stderr


# -- bad input


def test_an_unknown_workflow_is_refused_with_the_names_that_exist(stepfast: Verbs, shop: Shop) -> None:
    shop.drain()
    sentence = stepfast.error("start", "dubble", code=2)
    assert sentence.startswith("error: there is no workflow named 'dubble'; known workflows: checkout, double, hold")


def test_an_input_that_does_not_fit_is_refused_with_the_path(stepfast: Verbs, shop: Shop) -> None:
    wrong = '{"id": "o-1", "cents": "many"}'
    assert "$.cents" in stepfast.error("start", "double", wrong, "--app", "shop:app", code=2)
    shop.drain()
    assert "$.cents" in stepfast.error("start", "double", wrong, code=2)
    assert shop.call(lambda app: app.runs()) == []


def test_a_missing_input_is_refused(stepfast: Verbs, shop: Shop) -> None:
    assert "the input of 'double'" in stepfast.error("start", "double", "--app", "shop:app", code=2)


def test_an_input_that_is_not_json_is_refused(stepfast: Verbs, shop: Shop) -> None:
    sentence = stepfast.error("start", "refuse", "text", "--app", "shop:app", code=2)
    assert "the input is not JSON" in sentence
    assert "a string needs its quotes" in sentence
    assert "stdin is not JSON" in stepfast("start", "refuse", "-", input="{", code=2).stderr


def test_times_that_make_no_sense_are_refused(stepfast: Verbs, shop: Shop) -> None:
    assert "'soon' is not a time" in stepfast.error("start", "nothing", "--delay", "soon", code=2)
    assert "'tomorrow' is not a time" in stepfast.error("start", "nothing", "--at", "tomorrow", code=2)
    both = ("--delay", "5", "--at", "2099-01-01T00:00")
    assert "delay or at, not both" in stepfast.error("start", "nothing", "--app", "shop:app", *both, code=2)


# -- result


def test_result_prints_json(stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.start("checkout", {"id": "o-1", "cents": 99})
    shop.drain()
    assert json.loads(stepfast("result", run_id).stdout) == {"charged": 100}
    assert stepfast.json("result", run_id) == {
        "id": run_id,
        "status": "completed",
        "reason": None,
        "output": {"charged": 100},
        "error": None,
    }


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
