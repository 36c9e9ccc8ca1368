"""`runs`, `show` and `retry`."""

from __future__ import annotations

import os
import re
import shutil
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from stepfast import RunInfo
from stepfast.cli import show
from stepfast.info import ErrorInfo
from tests.cli.conftest import Shop, Verbs
from tests.store.scene import Scene

pytestmark = pytest.mark.enough_on("sqlite")


ORDER = {"id": "o-1", "cents": 99}
NOBODY = "0197a1b2-0000-7000-8000-000000000000"


def ids(found: list[dict[str, object]]) -> list[object]:
    return [run["id"] for run in found]


async def bury(scene: Scene) -> str:
    """A dead letter."""
    scene.worker = await scene.add_worker()
    run_id = await scene.start("order")
    for _ in range(5):
        await scene.lose(run_id)
    return run_id


# -- runs


def test_runs_for_people(stepfast: Verbs, shop: Shop) -> None:
    done = shop.start("double", ORDER, key="k-1", tags=["red"])
    bad = shop.start("refuse", "no luck")
    shop.drain()
    lines = stepfast("runs").stdout.splitlines()
    headings = ["id", "workflow", "status", "attempt", "created", "took", "key", "tags", "input", "error"]
    assert lines[0].split() == headings
    assert lines[1].endswith('"no luck"  ValueError: no luck')
    assert lines[1].split()[:4] == [bad, "refuse", "failed", "(code)"]
    assert lines[2].split()[:3] == [done, "double", "completed"]
    assert "k-1" in lines[2] and "red" in lines[2] and "ago" in lines[2]


def test_runs_are_told_apart_by_their_input_and_failed_ones_by_their_error(stepfast: Verbs, shop: Shop) -> None:
    """Ten rows of the same workflow would be of no use to anybody."""
    for text in ("o-1", "o-2", "x" * 500):
        shop.start("refuse", text)
    shop.drain()
    long, two, one = stepfast("runs", "-s", "failed").stdout.splitlines()[1:]
    assert '"o-1"' in one and '"o-2"' in two and "ValueError: o-1" in one
    assert "x" * 58 in long and "…" in long and "x" * 201 not in long


def test_runs_by_their_age(stepfast: Verbs, shop: Shop) -> None:
    old, new = shop.start("nothing", tags=["t"]), shop.start("nothing", tags=["t"])

    async def age(scene: Scene) -> None:
        await scene.rows.fetch("UPDATE [runs] SET created_at = created_at - 7200000 WHERE id = ?", old)

    shop.play(age)
    for more in ([], ["--tag", "t"], ["--workflow", "nothing"]):
        assert ids(stepfast.json("runs", "--since", "1h", *more)) == [new]
        assert ids(stepfast.json("runs", "--older-than", "1h", *more)) == [old]
        assert ids(stepfast.json("runs", "--sort", "oldest", *more)) == [old, new]
        assert ids(stepfast.json("runs", "--sort", "oldest", "--after", old, *more)) == [new]
    assert "newest or oldest" in stepfast.error("runs", "--sort", "size", code=2)


def test_a_run_is_named_by_the_beginning_of_its_id(stepfast: Verbs, shop: Shop) -> None:
    one, two = shop.start("nothing"), shop.start("nothing")
    same = next(n for n in range(36) if one[n] != two[n])
    assert stepfast.json("show", one[: same + 1])["id"] == one
    assert stepfast.json("show", two.replace("-", "").upper())["id"] == two
    assert stepfast.json("cancel", one[: same + 1])[0]["id"] == one
    told = stepfast.error("show", one[:same], code=2)
    assert "is the beginning of several ids" in told and one in told and two in told
    assert "there is no run whose id begins with ffff" in stepfast.error("show", "ffff", code=3)
    assert "is not a run id" in stepfast.error("show", "nobody", code=3)
    assert "is the beginning of several ids" in stepfast.error("cancel", two, one[:same], code=2)
    assert stepfast.json("show", two)["status"] == "queued"


def test_the_beginning_of_an_id_means_the_parent_rather_than_its_children(stepfast: Verbs, shop: Shop) -> None:
    """The id of a child begins as its parent's does, so a short one would never name a run that has children."""
    parent = shop.started("convoy")
    [child] = stepfast.json("show", parent)["children"]
    same = next(n for n in range(36) if parent[n] != child[n])
    assert stepfast.json("show", parent[:same])["id"] == parent
    assert stepfast.json("show", child[: same + 1])["id"] == child


def test_runs_for_scripts(stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.start("double", ORDER, key="k-1")
    shop.drain()
    [run] = stepfast.json("runs")
    expected = {"id": run_id, "workflow": "double", "status": "completed", "input": ORDER, "output": 198, "key": "k-1"}
    assert run.items() >= expected.items()


def test_each_filter(stepfast: Verbs, shop: Shop) -> None:
    one = shop.start("double", ORDER, key="k-1", tags=["red"], queue="vip")
    bad = shop.start("refuse", "no luck")
    shop.drain()
    ready = shop.start("nothing")
    assert ids(stepfast.json("runs")) == [ready, bad, one]
    assert ids(stepfast.json("runs", "--workflow", "double")) == [one]
    assert ids(stepfast.json("runs", "--status", "queued")) == [ready]
    assert ids(stepfast.json("runs", "--queue", "vip")) == [one]
    assert ids(stepfast.json("runs", "--tag", "red")) == [one]
    assert ids(stepfast.json("runs", "--reason", "code")) == [bad]
    assert ids(stepfast.json("runs", "--key", "k-1")) == [one]
    assert stepfast.json("runs", "--tag", "blue") == []
    assert stepfast("runs", "--tag", "blue").stdout == ""


def test_pages(stepfast: Verbs, shop: Shop) -> None:
    first, second, third = (shop.start("nothing") for _ in range(3))
    answer = stepfast("runs", "--limit", "2")
    assert f"--after {second}" in answer.stderr
    assert ids(stepfast.json("runs", "-n", "2")) == [third, second]
    assert ids(stepfast.json("runs", "-n", "2", "--after", second)) == [first]


def test_dead_letters(stepfast: Verbs, shop: Shop) -> None:
    shop.start("refuse", "no luck")
    shop.drain()
    letter = shop.play(bury)
    assert ids(stepfast.json("runs", "--dead")) == [letter]
    assert "--dead means" in stepfast.error("runs", "--dead", "--status", "queued", code=2)


def test_filters_that_make_no_sense(stepfast: Verbs, shop: Shop) -> None:
    shop.drain()
    assert "there is no status 'lost'; there are queued" in stepfast.error("runs", "--status", "lost", code=2)
    assert "limit must be from 1" in stepfast.error("runs", "--limit", "0", code=2)
    assert "there is no run '7'" in stepfast.error("runs", "--after", "7", code=3)


def test_what_users_wrote_is_shown_as_they_wrote_it(stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.start("refuse", "[red]bold[/red] \x1b[2J", tags=["[link=x]", "\x1b]0;title\x07"])
    shop.drain()
    for answer in (stepfast("runs"), stepfast("show", run_id)):
        assert "[link=x], \\x1b]0;title\\x07" in answer.stdout
        assert "\x1b" not in answer.stdout
    assert "[red]bold[/red] \\x1b[2J" in stepfast("show", run_id).stdout
    assert "\x1b" not in stepfast("result", run_id, code=1).stderr


# -- show


def test_show_a_completed_run(stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.start("checkout", ORDER, key="k-1", tags=["red"], priority=3)
    shop.drain()
    text = stepfast("show", run_id).stdout
    for part in (run_id, "checkout", "completed", "k-1", "red", "priority 3", '{"charged":100}', "add tax", "charge"):
        assert part in text
    assert "Activity" not in text
    assert "Activity" in stepfast("show", run_id, "--activity").stdout


def test_show_for_scripts(stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.start("checkout", ORDER)
    shop.drain()
    run = stepfast.json("show", run_id)
    assert (run["id"], run["status"], run["output"]) == (run_id, "completed", {"charged": 100})
    assert run["why"].startswith("It completed ")
    assert [(s["name"], s["status"], s["output"]) for s in run["steps"]] == [
        ("add tax", "completed", 100),
        ("charge", "completed", 100),
    ]
    assert "activity" not in run
    calls = stepfast.json("show", run_id, "--activity")["activity"]
    assert [call["name"] for call in calls] == ["add tax", "charge"]
    assert all(isinstance(call["duration"], float) for call in calls)


def test_show_a_failed_run_with_its_traceback(stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.start("refuse", "no luck")
    shop.drain()
    text = stepfast("show", run_id).stdout
    assert "ValueError: no luck" in text
    assert f"stepfast retry {run_id}" in text
    assert "raise ValueError(text)" in text
    assert "failed (code: its code raised an error)" in text
    assert "attempt.py" not in text
    assert "attempt.py" in stepfast("show", run_id, "--traceback").stdout
    assert "attempt.py" in stepfast.json("show", run_id)["error"]["traceback"]


def test_show_a_run_that_does_not_exist(stepfast: Verbs, shop: Shop) -> None:
    shop.drain()
    assert stepfast.error("show", NOBODY, code=3) == f"error: there is no run {NOBODY} (it may have been pruned)"
    assert "is not a run id" in stepfast.error("show", "x", code=3)


def test_a_long_payload_is_cut_for_people_only(stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.start("refuse", "x" * 5000)
    assert "(5002 characters; --json shows all)" in stepfast("show", run_id).stdout
    assert stepfast.json("show", run_id)["input"] == "x" * 5000


def test_show_children_and_their_parent(stepfast: Verbs, shop: Shop) -> None:
    parent = shop.started("convoy")
    [child] = stepfast.json("show", parent)["children"]
    stepfast("signal", child, "approved", "true")
    shop.drain("harbour")
    started, called = stepfast.json("show", parent)["children"]
    lines = [line.split() for line in stepfast("show", parent).stdout.splitlines()]
    assert ["approval", "start", "completed"] in [line[:3] for line in lines]
    assert [line[0] for line in lines if line[1:2] == ["approval"]] == [started, called] == [child, called]
    assert ["approval", "call", "waiting"] in [line[:3] for line in lines]
    assert f"parent    {parent}" in stepfast("show", called).stdout
    stepfast("signal", called, "approved", "false")
    shop.drain("harbour")
    assert f'child {called}: "no"' in stepfast("show", parent).stdout


def test_show_waits_races_and_branches(stepfast: Verbs, shop: Shop) -> None:
    text = stepfast("show", shop.started("race")).stdout
    assert 'won by "dock"' in text
    steps = [line.split() for line in text.splitlines()]
    assert ["tie", "up", "0", "completed"] in [line[:4] for line in steps]
    assert ["sleep", "sleep", "waiting"] in [line[:3] for line in steps]
    assert re.search(r"sleep .* until \d{4}-.* \(in ", text)
    assert "waiting (signal 'approved')" in stepfast("show", shop.started("approval")).stdout
    assert " at the latest (in " in stepfast("show", shop.started("approval")).stdout


def test_show_what_a_race_waits_for_and_what_lost_it(stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.started("pledge")
    text = stepfast("show", run_id).stdout
    assert "waiting (signal 'paid' and time)" in text
    assert "It waits for signal 'paid' and a time; the first time is due in " in text
    assert f"`stepfast signal {run_id} paid JSON` sends it." in text
    assert stepfast.json("show", run_id)["waiting_for"] == "signal:paid, time"
    stepfast("signal", run_id, "paid")
    shop.drain("harbour")
    steps = {(step["kind"], step["position"]): step for step in stepfast.json("show", run_id)["steps"]}
    lost = steps["sleep", 1]
    assert (lost["status"], lost["lost_to"]) == ("cancelled", "paid")
    assert (steps["signal", 0]["lost_to"], steps["first", 2]["lost_to"]) == (None, None)
    lines = [line.split() for line in stepfast("show", run_id).stdout.splitlines()]
    assert ["sleep", "sleep", "cancelled"] in [line[:3] for line in lines]
    assert "lost the race to 'paid'" in stepfast("show", run_id).stdout


def test_show_signals_that_nobody_has_read(stepfast: Verbs, shop: Shop) -> None:
    """A misspelt name is kept for ever, and somebody wonders why nothing happens."""
    run_id = shop.started("approval")
    assert "unread" not in stepfast("show", run_id).stdout
    stepfast("signal", run_id, "aproved")
    stepfast("signal", run_id, "aproved")
    shop.drain("harbour")  # it looks at them, and goes on waiting
    text = stepfast("show", run_id).stdout
    assert "2 unread signals: 'aproved' (2 of them, nothing waits for it)" in text
    assert stepfast.json("show", run_id)["unread"] == {"aproved": 2}


def test_show_undos(stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.started("saga", "fail")
    lines = [line.split() for line in stepfast("show", run_id).stdout.splitlines()]
    assert ["free", "undo", "compensated"] in [line[:3] for line in lines]
    assert all("free" in line for line in lines if line[:1] == ["reserve"])
    steps = stepfast.json("show", run_id)["steps"]
    assert [(step["kind"], step["undo"]) for step in steps] == [("step", "free")] * 2 + [("undo", None)] * 2


def test_show_what_a_run_has_set_and_what_it_goes_on_as(stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.started("voyage", 1)
    text = stepfast("show", run_id).stdout
    found = stepfast.json("show", run_id)
    assert found["values"] == {"left": 1}
    assert "Values\nleft  1" in text
    assert f"goes on as  {found['output']}" in text
    assert f"origin    {run_id}" in stepfast("show", found["output"]).stdout


def test_show_what_was_asked_of_a_run_in_hand(stepfast: Verbs, shop: Shop) -> None:
    async def ask(scene: Scene) -> str:
        scene.worker = await scene.add_worker()
        run = await scene.running()
        await scene.store.pause(run.id)
        return run.id

    assert "asked     to pause" in stepfast("show", shop.play(ask)).stdout


# -- payloads behind a codec

CODEC = """
from stepfast import Stepfast

class Mirror:
    def encode(self, data): return data[::-1]
    def decode(self, data): return data[::-1]

app = Stepfast(codec=Mirror())

@app.task
async def secret(text: str) -> str:
    return text

@app.task(max_attempts=1)
async def broken(text: str) -> str:
    raise ValueError(text)
"""


def test_sealed_payloads_are_shown_with_the_code_only(stepfast: Verbs, shop: Shop) -> None:
    shop.write("vault.py", CODEC)
    run_id = stepfast("start", "secret", '"gold"', "--app", "vault:app").stdout.strip()
    bad = stepfast("start", "broken", '"gold"', "--app", "vault:app").stdout.strip()
    shop.drain("vault")
    assert stepfast.json("show", run_id, "--app", "vault:app")["output"] == "gold"
    assert stepfast.json("result", run_id, "--app", "vault:app")["output"] == "gold"
    assert "gold" not in stepfast("show", run_id).stdout
    assert "stored through a codec" in stepfast("show", run_id).stdout
    assert "stored through a codec" in stepfast("show", bad).stdout
    stepfast("runs")
    assert "--app module:app" in stepfast.error("result", run_id, code=2)


OTHER_KEY = CODEC.replace("def decode(self, data): return data[::-1]", "def decode(self, data): raise ValueError(data)")
NO_KEY = CODEC.replace("def encode(self, data): return data[::-1]", "def encode(self, data): raise ValueError(data)")


def test_a_codec_that_cannot_read_what_is_stored_is_told_in_a_sentence(stepfast: Verbs, shop: Shop) -> None:
    shop.write("vault.py", CODEC)
    shop.write("other.py", OTHER_KEY)
    shop.write("none.py", NO_KEY)
    run_id = stepfast("start", "secret", '"gold"', "--app", "vault:app").stdout.strip()
    shop.drain("vault")
    shown = stepfast("show", run_id, "--app", "other:app").stdout
    assert "completed" in shown and "cannot read what is stored (ValueError)" in shown and "dlog" not in shown
    stepfast("runs", "--app", "other:app")
    told = stepfast.error("result", run_id, "--app", "other:app", code=2)
    assert "cannot read what is stored (ValueError); is its key" in told and "dlog" not in told
    told = stepfast.error("start", "secret", '"gold"', "--app", "none:app", code=2)
    assert "codec cannot encode a payload (ValueError)" in told and "gold" not in told


# -- retry


def test_retry_queues_failed_runs_again(stepfast: Verbs, shop: Shop) -> None:
    runs = [shop.start("refuse", "no luck") for _ in range(2)]
    shop.drain()
    assert stepfast("retry", *runs).stdout.split() == runs
    assert ids(stepfast.json("runs", "--status", "queued")) == runs[::-1]


def test_retry_goes_on_with_the_others_when_one_is_refused(stepfast: Verbs, shop: Shop) -> None:
    bad = shop.start("refuse", "no luck")
    shop.drain()
    ready = shop.start("nothing")
    answer = stepfast("retry", ready, bad, code=1)
    assert answer.stdout.split() == [bad]
    assert f"run {ready} is queued; only failed or cancelled runs can be retried" in answer.stderr
    assert stepfast("retry", NOBODY, ready, code=3).stdout == ""
    told = stepfast.json("retry", bad, code=1)
    assert told == [{"id": bad, "retried": False, "error": told[0]["error"]}]


def test_retry_a_dead_letter(stepfast: Verbs, shop: Shop) -> None:
    letter = shop.play(bury)
    stepfast("retry", letter)
    run = stepfast.json("show", letter)
    assert (run["status"], run["losses"]) == ("queued", 0)


def test_a_run_is_named_by_its_workflow_and_key(stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.start("nothing", key="o-1")
    assert stepfast.json("show", "nothing", "--key", "o-1")["id"] == run_id
    said = stepfast.error("show", "nothing", "--key", "o-2", code=3)
    assert "there is no run of workflow 'nothing' with the key 'o-2'" in said
    assert stepfast.json("cancel", "--workflow", "nothing", "--key", "o-1", "--yes")["cancelled"] == 1
    assert stepfast.json("result", "nothing", "--key", "o-1", code=1)["status"] == "cancelled"


# -- the table of runs on a terminal


NOW = datetime(2026, 5, 1, tzinfo=UTC)


def run(**changes: Any) -> RunInfo:
    """A run as it is listed."""
    fields: dict[str, Any] = dict.fromkeys(RunInfo.__dataclass_fields__) | {
        "id": "0197a1b2-0000-7000-8000-000000000000", "workflow": "ship", "queue": "ship", "status": "completed",
        "attempt": 1, "tags": [], "left_out": (), "created_at": NOW, "read_at": NOW,
    }  # fmt: skip
    return RunInfo(**fields | changes)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The rows of the table, in place of the terminal."""
    rows: list[list[str]] = []
    monkeypatch.setattr(show, "write_table", lambda columns, found: rows.extend(found))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    return rows


@pytest.mark.parametrize(("width", "fits"), [(200, True), (70, False)])
def test_inputs_are_shown_where_there_is_room(
    shown: list[list[str]], monkeypatch: pytest.MonkeyPatch, width: int, fits: bool
) -> None:
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((width, 24)))
    show.write_runs([run(input={"order": "o-1"}), run(input={"order": "o-2"}, key="k")])
    assert [row[9] for row in shown] == (['{"order":"o-1"}', ""] if fits else ["", ""])


def test_an_input_too_large_for_a_list_is_said_to_be(shown: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((200, 24)))
    show.write_runs([run(left_out=("input",)), run(left_out=("output",))])
    assert [row[9] for row in shown] == ["(large)", ""]


def test_a_sealed_input_and_an_error_that_is_not_final_are_left_out(
    shown: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((200, 24)))
    error = ErrorInfo("ValueError", "no\nstock")
    sealed = {"type": "Sealed", "message": "stored through a codec; --app module:app shows it"}
    show.write_runs([run(input=sealed, status="failed", error=error), run(status="queued", error=error)])
    assert [row[9:] for row in shown] == [["", "ValueError: no stock"], ["", ""]]
