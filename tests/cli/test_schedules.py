"""`schedules`, and `schedule put`, `delete`, `pause`, `resume`, `trigger`, `backfill`."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from stepfast.monitoring.text import times_in_words
from stepfast.schedules import ScheduleInfo
from tests.cli.conftest import Shop, Verbs

pytestmark = pytest.mark.enough_on("sqlite")

ORDER = '{"id": "o-1", "cents": 4}'


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
    made("schedule", "put", "feed", "double", "--every", "5m", "--input", ORDER, "--missed", "all")
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
    assert "nightly, triggered by somebody" in made("show", run_id).stdout


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
