"""`queues`, `queue` and `schedules`, `schedule`."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from stepfast.monitoring.text import times_in_words
from stepfast.schedules import ScheduleInfo
from tests.cli.conftest import Shop, Verbs
from tests.store.scene import Scene

pytestmark = pytest.mark.enough_on("sqlite")


async def scenery(scene: Scene) -> None:
    await scene.add_worker(host="harbour", pid=1, queues=["order"])
    await scene.start_many(3)
    await scene.start("mail", delay_ms=60_000)
    await scene.start("mail")


def test_queues_for_people(stepfast: Verbs, shop: Shop) -> None:
    shop.play(scenery)
    answer = stepfast("queues")
    header, mail, order = answer.stdout.splitlines()
    assert header.split()[:6] == ["queue", "state", "ready", "running", "waiting", "delayed"]
    assert mail.split()[:6] == ["mail", "open", "1", "0", "0", "1"] and "NO WORKER" in mail
    assert order.split()[:6] == ["order", "open", "3", "0", "0", "0"] and "harbour:1" in order
    assert "queue 'mail' has 1 ready, and no live worker serves it" in answer.stderr
    assert "'order'" not in answer.stderr


def test_queues_for_scripts(stepfast: Verbs, shop: Shop) -> None:
    shop.play(scenery)
    mail, order = stepfast.json("queues")
    assert mail.items() >= {"queue": "mail", "ready": 1, "delayed": 1, "workers": 0, "served_by": []}.items()
    assert order.items() >= {"queue": "order", "ready": 3, "paused": False, "served_by": ["harbour:1"]}.items()
    assert order["oldest"] >= 0


def test_no_queues(stepfast: Verbs, shop: Shop) -> None:
    stepfast("migrate")
    assert "no queues" in stepfast("queues").stderr
    assert stepfast.json("queues") == []


def test_a_queue_is_held_and_goes_on(stepfast: Verbs, shop: Shop) -> None:
    shop.play(scenery)
    assert stepfast("queue", "pause", "order").stdout == "order\n"
    assert [(each["queue"], each["paused"]) for each in stepfast.json("queues")] == [("mail", False), ("order", True)]
    assert "paused" in stepfast("queues").stdout
    assert stepfast.json("queue", "resume", "order") == {"queue": "order", "paused": False}
    assert "was not paused" in stepfast("queue", "resume", "order").stderr


def test_a_queue_that_nothing_has_named_is_held_with_a_word(stepfast: Verbs, shop: Shop) -> None:
    stepfast("migrate")
    assert "names queue 'odrer' so far; it is paused nevertheless" in stepfast("queue", "pause", "odrer").stderr


# -- limits


def test_limits_are_shown_and_set(stepfast: Verbs, shop: Shop) -> None:
    shop.play(scenery)
    assert stepfast("queue", "limits", "order").stdout == "no limits\n"
    stepfast("queue", "limits", "order", "--concurrency", "5", "--rate", "100/60s", "--key-rate", "10/s")
    shown = "5 at once (set), 100 per 1 min (set); of a key 10 per 1 s (set)"
    assert stepfast("queue", "limits", "order").stdout == shown + "\n"
    assert shown in stepfast("queues").stdout
    told = stepfast.json("queue", "limits", "order", "--rate", "none", "--max-ready", "9")
    assert (
        told.items() >= {"concurrency": 5, "rate": None, "max_ready": 9, "key_rate": {"count": 10, "per": 1.0}}.items()
    )
    lifted = "5 at once (set), no rate (set), 9 ready (set); of a key 10 per 1 s (set)"
    assert stepfast("queue", "limits", "order").stdout == lifted + "\n"
    assert stepfast.json("queue", "limits", "order", "--reset")["set"] == []


@pytest.mark.parametrize(
    ("option", "value", "what"),
    [
        ("--concurrency", "0", "at least 1"),
        ("--concurrency", "-1", "whole number or none"),
        ("--rate", "100", "is not a rate"),
        ("--rate", "0/s", "at least 1"),
        ("--rate", "5/fortnight", "is not a time"),
        ("--key-rate", "x/s", "is not a rate"),
    ],
)
def test_bad_limits_are_refused(stepfast: Verbs, shop: Shop, option: str, value: str, what: str) -> None:
    stepfast("migrate")
    assert what in stepfast.error("queue", "limits", "order", f"{option}={value}", code=2)


def test_limits_that_live_workers_declare_differently_are_told(stepfast: Verbs, shop: Shop) -> None:
    async def crew(scene: Scene) -> None:
        await scene.add_worker(host="a", limits={"mail": '{"concurrency":3}'})
        await scene.add_worker(host="b", limits={"mail": '{"concurrency":4}'})

    shop.play(crew)
    stepfast("queue", "pause", "order")
    checks = {check["check"]: check for check in stepfast.json("doctor", code=1)}
    assert not checks["limits"]["ok"]
    assert "'mail' as concurrency=3 and as concurrency=4" in checks["limits"]["found"]
    assert checks["paused_queues"]["found"] == "paused: 'order'"


# -- purge


def test_a_queue_is_emptied_after_counting_and_asking(stepfast: Verbs, shop: Shop) -> None:
    shop.play(scenery)
    assert "There is no terminal" in stepfast.error("queue", "purge", "order", code=2)
    assert "would cancel 2 runs" in stepfast("queue", "purge", "mail", "--dry-run").stderr
    assert stepfast.json("queue", "purge", "order", "--yes") == {"found": 3, "cancelled": 3, "refused": []}
    assert {each["queue"]: each["ready"] for each in stepfast.json("queues")} == {"mail": 1, "order": 0}
    assert "no run matches" in stepfast("queue", "purge", "order", "--yes").stderr


def why(stepfast: Verbs, run_id: str) -> str:
    return str(stepfast.json("show", run_id)["why"])


def test_why_a_ready_run_is_not_taken(stepfast: Verbs, shop: Shop) -> None:
    async def act(scene: Scene) -> str:
        scene.worker = await scene.add_worker()
        running = await scene.running(concurrency_key="c-7")
        await scene.rows.set(running.id, "counted_attempt", 1)
        return await scene.start(concurrency_key="c-7")

    run_id = shop.play(act)
    stepfast("queue", "limits", "order", "--concurrency", "1")
    assert "It is ready, but its queue 'order' is at its limit of 1 (1 running)." in why(stepfast, run_id)
    stepfast("queue", "limits", "order", "--concurrency", "9", "--key-concurrency", "1")
    assert "its key 'c-7' has 1 running, and queue 'order' allows 1 of a key" in why(stepfast, run_id)
    stepfast("queue", "limits", "order", "--key-concurrency", "none", "--rate", "1/1h")

    async def log(scene: Scene) -> None:
        row = await scene.info(run_id)
        await scene.rows.fetch("INSERT INTO [queue_starts] VALUES ('order', '', ?, 1)", row.now_ms - 60_000)

    shop.play(log)
    assert "has started 1 in the last 1 h, which is its rate; the next may start in 5" in why(stepfast, run_id)
    stepfast("queue", "pause", "order")
    assert "its queue 'order' is paused: `stepfast queue resume order` resumes it" in why(stepfast, run_id)


# -- schedules


SCHEDULED_ORDER = '{"id": "o-1", "cents": 4}'


@pytest.fixture
def made(stepfast: Verbs, shop: Shop) -> Verbs:
    shop.started("nothing", module="shop")  # so that the definitions are there
    stepfast("schedule", "put", "nightly", "nothing", "--cron", "0 3 * * *", "--tz", "Europe/Berlin")
    return stepfast


def info(**changes: object) -> ScheduleInfo:
    now = datetime(2026, 11, 16, 12, tzinfo=UTC)
    fields: dict[str, object] = dict.fromkeys(ScheduleInfo.__dataclass_fields__)
    plain = {"name": "x", "tz": "Europe/Berlin", "created_at": now, "read_at": now}
    return ScheduleInfo(**(fields | plain | changes))  # type: ignore[arg-type]


def test_the_next_five_ticks_in_words() -> None:
    said = times_in_words(info(cron="0 3,15 * * *"))
    assert said == "in 2 h: Mon 16 Nov 15:00, Tue 17 Nov 03:00, 15:00, Wed 18 Nov 03:00, 15:00 (Europe/Berlin)"
    assert times_in_words(info(every=90.0)).startswith("in 1 min 30 s: Mon 16 Nov 13:01:30, 13:03:00")


def test_schedules_are_listed_with_what_comes_next(made: Verbs) -> None:
    made("schedule", "put", "feed", "double", "--every", "5m", "--input", SCHEDULED_ORDER, "--missed", "all")
    table = made("schedules").stdout
    assert "every 5 min" in table and "0 3 * * * Europe/Berlin" in table and "awake" in table
    [feed, nightly] = made.json("schedules")
    assert (feed["name"], feed["every"], feed["missed"], feed["input"]["id"]) == ("feed", 300.0, "all", "o-1")
    assert (nightly["cron"], nightly["tz"], nightly["declared"], len(nightly["times"])) == (
        "0 3 * * *", "Europe/Berlin", False, 5,
    )  # fmt: skip


def test_without_schedules_it_says_how_to_make_one(stepfast: Verbs, shop: Shop) -> None:
    shop.start("nothing")
    assert "stepfast schedule put" in stepfast("schedules").stderr


def test_what_code_declares_is_shown_and_nothing_is_written_for_it(stepfast: Verbs, shop: Shop) -> None:
    shop.start("nothing")
    shop.write("clockwork.py", "from shop import app, nothing\n\napp.schedule('hourly', nothing, every=3600)\n")
    shown = stepfast("schedules", "--app", "clockwork:app").stdout
    assert "hourly" in shown and "asleep" in shown
    assert stepfast.json("schedules") == []


def test_pause_and_resume_and_delete(made: Verbs) -> None:
    assert made("schedule", "pause", "nightly").stdout.split() == ["nightly"]
    assert made.json("schedules")[0]["paused"] is True
    assert "paused" in made("schedules").stdout
    assert made.json("schedule", "resume", "nightly") == {"name": "nightly", "paused": False}
    assert made.json("schedules")[0]["paused"] is False
    assert made.json("schedule", "delete", "nightly") == {"name": "nightly", "deleted": True}
    assert made.json("schedules") == []


def test_trigger_starts_a_run_that_tells_its_schedule(made: Verbs, shop: Shop) -> None:
    run_id = made("schedule", "trigger", "nightly").stdout.strip()
    shop.drain()
    assert made.json("show", run_id)["status"] == "completed"
    assert "nightly, triggered by hand" in made("show", run_id).stdout


def test_backfill_prints_the_runs_and_may_be_repeated(made: Verbs) -> None:
    span = ("nightly", "--since", "2026-01-01T00:00Z", "--until", "2026-01-04T00:00Z")
    first = made("schedule", "backfill", *span)
    ids = first.stdout.split()
    assert len(ids) == 3 and "each of 3 ticks has a run" in first.stderr
    assert made.json("schedule", "backfill", *span) == {"name": "nightly", "ids": ids}
    assert "nightly, for its tick of 202" in made("show", ids[0]).stdout
    none = made("schedule", "backfill", "nightly", "--since", "2026-01-04T00:00Z", "--until", "2026-01-04T00:00Z")
    assert none.stdout == "" and "no tick in this span" in none.stderr


def test_what_is_wrong_is_said(made: Verbs) -> None:
    assert "did you mean 'nightly'" in made.error("schedule", "trigger", "nightyl", code=3)
    put = ("schedule", "put", "x")
    assert "either `--cron` or `--every`" in made.error(*put, "nothing", code=2)
    assert "no time zone 'Mars'" in made.error(
        "schedule", "put", "x", "nothing", "--cron", "0 3 * * *", "--tz", "Mars", code=2
    )
    assert "no workflow named 'gone'" in made.error(*put, "gone", "--every", "5", code=2)
    assert "does not fit" in made.error(*put, "double", "--every", "5", "--input", "3", code=2)


def test_the_doctor_names_schedules_that_cannot_be_started(made: Verbs, shop: Shop) -> None:
    def found(code: int) -> dict[str, str]:
        return {check["check"]: check["found"] for check in made.json("doctor", code=code)}

    well = 0 if shop.url.startswith("sqlite") else 1
    assert found(well)["schedules"] == "1 known"
    shop.play(lambda scene: scene.rows.fetch("UPDATE [schedules] SET error = 'it is gone', declared = ?", True))
    assert found(1)["schedules"] == "cannot be started: 'nightly' (it is gone)"
    shop.play(lambda scene: scene.rows.fetch("UPDATE [schedules] SET error = NULL"))
    assert found(well)["schedules"] == "1 known; no live worker declares 'nightly'"
