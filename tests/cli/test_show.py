"""`runs`, `show` and `retry`."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from stepfast import RunInfo
from stepfast.cli import show
from stepfast.info import ErrorInfo
from tests.cli.conftest import Shop, Verbs
from tests.store.scene import Scene
from tests.support.snapshots import Snapshot

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


def test_runs_for_people_and_for_scripts(stepfast: Verbs, shop: Shop, snapshot: Snapshot) -> None:
    """They are told apart by their input, and failed ones by their error; both are cut for people only."""
    done = shop.start("double", ORDER, key="k-1", tags=["red"])
    for text in ("o-1", "o-2", "x" * 500):
        shop.start("refuse", text)
    shop.drain()
    snapshot(stepfast("runs").stdout)
    *_, run = stepfast.json("runs")
    expected = {"id": done, "workflow": "double", "status": "completed", "input": ORDER, "output": 198, "key": "k-1"}
    assert run.items() >= expected.items()
    assert stepfast.json("runs", "--limit", "1")[0]["input"] == "x" * 500


def test_runs_by_their_age(stepfast: Verbs, shop: Shop) -> None:
    old, new = shop.start("nothing", tags=["t"]), shop.start("nothing", tags=["t"])
    age = "UPDATE [runs] SET created_at = created_at - 7200000 WHERE id = ?"
    shop.play(lambda scene: scene.rows.fetch(age, old))
    for more in ([], ["--tag", "t"], ["--workflow", "nothing"]):
        assert ids(stepfast.json("runs", "--since", "1h", *more)) == [new]
        assert ids(stepfast.json("runs", "--older-than", "1h", *more)) == [old]
        assert ids(stepfast.json("runs", "--sort", "oldest", *more)) == [old, new]
        assert ids(stepfast.json("runs", "--sort", "oldest", "--after", old, *more)) == [new]


def test_each_filter(stepfast: Verbs, shop: Shop) -> None:
    one = shop.start("double", ORDER, key="k-1", tags=["red"], queue="vip")
    bad = shop.started("refuse", "no luck", module="shop")
    ready = shop.start("nothing")
    letter = shop.play(bury)
    for filters, found in (
        ("", [letter, ready, bad, one]), ("--workflow double", [one]), ("--status queued", [ready]),
        ("--queue vip", [one]), ("--tag red", [one]), ("--reason code", [bad]), ("--key k-1", [one]),
        ("--dead", [letter]), ("--tag blue", []),
    ):  # fmt: skip
        assert ids(stepfast.json("runs", *filters.split())) == found, filters
        assert stepfast("runs", "--count", *filters.split()).stdout == f"{len(found)}\n"
    assert stepfast("runs", "--tag", "blue").stdout == ""


def test_pages(stepfast: Verbs, shop: Shop) -> None:
    first, second, third = (shop.start("nothing") for _ in range(3))
    assert f"--after {second}" in stepfast("runs", "--limit", "2").stderr
    assert ids(stepfast.json("runs", "-n", "2")) == [third, second]
    assert ids(stepfast.json("runs", "-n", "2", "--after", second)) == [first]


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        ("--status lost", 2, "there is no status 'lost'; there are queued"),
        ("--limit 0", 2, "limit must be from 1"),
        ("--after 7", 3, "there is no run '7'"),
        ("--sort size", 2, "newest or oldest"),
        ("--dead --status queued", 2, "--dead means"),
    ],
)
def test_filters_that_make_no_sense(stepfast: Verbs, shop: Shop, arguments: str, code: int, why: str) -> None:
    shop.drain()
    assert why in stepfast.error("runs", *arguments.split(), code=code)


def test_what_users_wrote_is_shown_as_they_wrote_it(stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.start("refuse", "[red]bold[/red] \x1b[2J", tags=["[link=x]", "\x1b]0;title\x07"])
    shop.drain()
    for answer in (stepfast("runs"), stepfast("show", run_id)):
        assert "[link=x], \\x1b]0;title\\x07" in answer.stdout
        assert "\x1b" not in answer.stdout
    assert "[red]bold[/red] \\x1b[2J" in stepfast("show", run_id).stdout
    assert "\x1b" not in stepfast("result", run_id, code=1).stderr


# -- which run


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


def test_a_run_is_named_by_its_workflow_and_key(stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.start("nothing", key="o-1")
    assert stepfast.json("show", "nothing", "--key", "o-1")["id"] == run_id
    said = stepfast.error("show", "nothing", "--key", "o-2", code=3)
    assert "there is no run of workflow 'nothing' with the key 'o-2'" in said
    assert stepfast.json("cancel", "--workflow", "nothing", "--key", "o-1", "--yes")["cancelled"] == 1
    assert stepfast.json("result", "nothing", "--key", "o-1", code=1)["status"] == "cancelled"


def test_a_run_that_does_not_exist(stepfast: Verbs, shop: Shop) -> None:
    shop.drain()
    assert stepfast.error("show", NOBODY, code=3) == f"error: there is no run {NOBODY} (it may have been pruned)"
    assert "is not a run id" in stepfast.error("show", "x", code=3)


# -- show


def children(shop: Shop, stepfast: Verbs) -> str:
    """One started, which has ended, and one called, which waits."""
    parent = shop.started("convoy")
    [child] = stepfast.json("show", parent)["children"]
    stepfast("signal", child, "approved", "true")
    shop.drain("harbour")
    return parent


def lost_race(shop: Shop, stepfast: Verbs) -> str:
    run_id = shop.started("pledge")
    stepfast("signal", run_id, "paid")
    shop.drain("harbour")
    return run_id


def unread_signals(shop: Shop, stepfast: Verbs) -> str:
    """A misspelt name is kept for ever."""
    run_id = shop.started("approval")
    for _ in range(2):
        stepfast("signal", run_id, "aproved")
    shop.drain("harbour")  # it polls them, and continues to wait
    return run_id


async def asked_to_pause(scene: Scene) -> str:
    scene.worker = await scene.add_worker()
    run = await scene.running()
    await scene.store.pause(run.id)
    return run.id


OPTIONS = {"key": "k-1", "tags": ["red"], "priority": 3}
SHOWN: dict[str, Callable[[Shop, Verbs], str]] = {
    "completed": lambda shop, _: shop.started("checkout", ORDER, "shop", **OPTIONS),
    "failed": lambda shop, _: shop.started("refuse", "no luck", "shop"),
    "children": children,
    "race": lambda shop, _: shop.started("race"),
    "race of a signal": lambda shop, _: shop.started("pledge"),
    "lost race": lost_race,
    "signal": lambda shop, _: shop.started("approval"),
    "unread signals": unread_signals,
    "undos": lambda shop, _: shop.started("saga", "fail"),
    "continued": lambda shop, _: shop.started("voyage", 1),
    "one link of a chain": lambda shop, _: f"{shop.started('voyage', 1)} --this",
    "long payload": lambda shop, _: shop.start("refuse", "x" * 5000),
    "asked to pause": lambda shop, _: str(shop.play(asked_to_pause)),
}


@pytest.mark.parametrize("case", SHOWN)
def test_show(stepfast: Verbs, shop: Shop, snapshot: Snapshot, case: str) -> None:
    run_id = SHOWN[case](shop, stepfast)
    snapshot(stepfast("show", *run_id.split()).stdout.replace(str(shop.folder), "FOLDER"))


def test_show_for_scripts(stepfast: Verbs, shop: Shop) -> None:
    run = stepfast.json("show", shop.started("checkout", ORDER, "shop"))
    assert (run["status"], run["output"], "activity" in run) == ("completed", {"charged": 100}, False)
    assert run["why"].startswith("It completed ")
    assert [(s["name"], s["status"], s["output"]) for s in run["steps"]] == [
        ("add tax", "completed", 100), ("charge", "completed", 100),
    ]  # fmt: skip
    assert "Activity" in stepfast("show", run["id"], "--activity").stdout
    calls = stepfast.json("show", run["id"], "--activity")["activity"]
    assert [call["name"] for call in calls] == ["add tax", "charge"]
    assert all(isinstance(call["duration"], float) for call in calls)
    assert stepfast.json("show", shop.start("refuse", "x" * 5000))["input"] == "x" * 5000
    assert stepfast.json("show", unread_signals(shop, stepfast))["unread"] == {"aproved": 2}
    pledge = shop.started("pledge")
    assert stepfast.json("show", pledge)["waiting_for"] == "signal:paid, time"


def test_the_frames_of_the_library_are_shown_on_request(stepfast: Verbs, shop: Shop) -> None:
    run_id = shop.started("refuse", "no luck", "shop")
    assert "attempt.py" in stepfast("show", run_id, "--traceback").stdout
    assert "attempt.py" in stepfast.json("show", run_id)["error"]["traceback"]


def test_children_know_their_parent_and_their_results_are_shown(stepfast: Verbs, shop: Shop) -> None:
    parent = children(shop, stepfast)
    _, called = stepfast.json("show", parent)["children"]
    assert f"parent    {parent}" in stepfast("show", called).stdout
    stepfast("signal", called, "approved", "false")
    shop.drain("harbour")
    assert f'child {called}: "no"' in stepfast("show", parent).stdout


def test_what_lost_a_race_names_the_winner(stepfast: Verbs, shop: Shop) -> None:
    found = stepfast.json("show", lost_race(shop, stepfast))["steps"]
    steps = {(step["kind"], step["position"]): (step["status"], step["lost_to"]) for step in found}
    assert steps["sleep", 1] == ("cancelled", "paid")
    assert (steps["signal", 0][1], steps["first", 2][1]) == (None, None)


def test_undos_and_values_and_continuations_for_scripts(stepfast: Verbs, shop: Shop) -> None:
    steps = stepfast.json("show", shop.started("saga", "fail"))["steps"]
    assert [(step["kind"], step["undo"]) for step in steps] == [("step", "free")] * 2 + [("undo", None)] * 2
    run_id = shop.started("voyage", 1)
    first = stepfast.json("show", run_id, "--this")
    assert (first["id"], first["values"]) == (run_id, {"left": 1})
    assert f"origin    {first['id']}" in stepfast("show", first["output"]).stdout
    last = stepfast.json("show", run_id)
    assert (last["id"], last["origin"], last["values"]) == (first["output"], run_id, {"left": 0})


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
FAILING = "raise ValueError(data)"


def test_sealed_payloads_are_shown_with_the_code_only(stepfast: Verbs, shop: Shop) -> None:
    shop.write("vault.py", CODEC)
    run_id = stepfast("start", "secret", '"gold"', "--app", "vault:app").stdout.strip()
    bad = stepfast("start", "broken", '"gold"', "--app", "vault:app").stdout.strip()
    shop.drain("vault")
    assert stepfast.json("show", run_id, "--app", "vault:app")["output"] == "gold"
    assert stepfast.json("result", run_id, "--app", "vault:app")["output"] == "gold"
    assert "gold" not in stepfast("show", run_id).stdout
    for sealed in (run_id, bad):
        assert "stored through a codec" in stepfast("show", sealed).stdout
    stepfast("runs")
    assert "--app module:app" in stepfast.error("result", run_id, code=2)


def test_a_codec_that_cannot_read_what_is_stored_is_reported_in_a_sentence(stepfast: Verbs, shop: Shop) -> None:
    shop.write("vault.py", CODEC)
    for name, method in (("other.py", "decode"), ("none.py", "encode")):
        shop.write(name, CODEC.replace(f"{method}(self, data): return data[::-1]", f"{method}(self, data): {FAILING}"))
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


def test_retry_queues_failed_runs_again_and_reports_each_that_is_refused(stepfast: Verbs, shop: Shop) -> None:
    runs = [shop.start("refuse", "no luck") for _ in range(2)]
    shop.drain()
    ready = shop.start("nothing")
    answer = stepfast("retry", ready, *runs, code=1)
    assert answer.stdout.split() == runs
    assert f"run {ready} is queued; only failed or cancelled runs can be retried" in answer.stderr
    assert ids(stepfast.json("runs", "--status", "queued")) == [ready, *runs[::-1]]
    assert stepfast("retry", NOBODY, ready, code=3).stdout == ""
    told = stepfast.json("retry", runs[0], code=1)
    assert told == [{"id": runs[0], "retried": False, "error": told[0]["error"]}]


def test_retry_a_dead_letter(stepfast: Verbs, shop: Shop) -> None:
    letter = shop.play(bury)
    assert stepfast("retry", letter).stdout.split() == [letter]
    run = stepfast.json("show", letter)
    assert (run["status"], run["losses"]) == ("queued", 0)


# -- the table of runs on a terminal


def a_run(**changes: Any) -> RunInfo:
    now = datetime(2026, 5, 1, tzinfo=UTC)
    fields: dict[str, Any] = dict.fromkeys(RunInfo.__dataclass_fields__) | {
        "id": NOBODY, "workflow": "ship", "queue": "ship", "status": "completed", "attempt": 1, "tags": [],
        "left_out": (), "created_at": now, "read_at": now,
    }  # fmt: skip
    return RunInfo(**fields | changes)


ERROR = ErrorInfo("ValueError", "no\nstock")
SEALED = {"type": "Sealed", "message": "stored through a codec; --app module:app shows it"}


@pytest.mark.parametrize(
    ("width", "runs", "rows"),
    [
        (200, [{"input": {"order": "o-1"}}, {"input": {"order": "o-2"}, "key": "k"}], [['{"order":"o-1"}'], [""]]),
        (70, [{"input": {"order": "o-1"}}, {"input": {"order": "o-2"}, "key": "k"}], [[""], [""]]),
        (200, [{"left_out": ("input",)}, {"left_out": ("output",)}], [["(large)"], [""]]),
        (
            200, [{"input": SEALED, "status": "failed", "error": ERROR}, {"status": "queued", "error": ERROR}],
            [["", "ValueError: no stock"], ["", ""]],
        ),
    ],
    ids=["where there is room", "where there is none", "too large for a list", "sealed, and an error not final"],
)  # fmt: skip
def test_which_inputs_and_errors_a_table_shows(
    monkeypatch: pytest.MonkeyPatch, width: int, runs: list[dict[str, Any]], rows: list[list[str]]
) -> None:
    shown: list[list[str]] = []
    monkeypatch.setattr(show, "write_table", lambda columns, found: shown.extend(found))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((width, 24)))
    show.write_runs([a_run(**changes) for changes in runs])
    assert [row[9:][: len(cells)] for row, cells in zip(shown, rows, strict=True)] == rows


# -- streams


def test_a_stream_is_printed(stepfast: Verbs, shop: Shop) -> None:
    shop.write(
        "talk.py",
        "import os\nfrom stepfast import Context, Stepfast\napp = Stepfast()\n"
        "@app.workflow\nasync def talk(ctx: Context) -> None:\n"
        "    out = ctx.stream('tokens')\n    out.send('a')\n    out.send({'b': 1})\n    ctx.stream('log').send(0)\n",
    )
    run = shop.start("talk", module="talk")
    shop.drain(module="talk")
    assert stepfast("stream", run).stdout == "log\ntokens\n"
    assert stepfast("stream", run, "tokens", "--follow").stdout == '"a"\n{"b":1}\n'
    first = json.loads(stepfast("stream", run, "tokens", "--json").stdout.splitlines()[0])
    assert first["value"] == "a" and not first["restarted"] and first["attempt"] == 1
    assert stepfast("stream", run, "tokens", "-f", "--after", first["offset"]).stdout == '{"b":1}\n'
    assert stepfast("stream", run, "tokens", "--after", "7", code=2).stdout == ""
    assert stepfast("stream", NOBODY, "tokens", code=3).stdout == ""


# -- logs


def test_what_a_run_logged_is_printed(stepfast: Verbs, shop: Shop) -> None:
    shop.write(
        "logging_shop.py",
        "from stepfast import Context, Stepfast\napp = Stepfast(run_logs='INFO')\n"
        "@app.workflow\nasync def talk(ctx: Context) -> None:\n"
        "    ctx.log.info('one\\ntwo \\x1b[0m')\n    await ctx.step('work', lambda: ctx.log.warning('three'))\n",
    )
    run = shop.start("talk", module="logging_shop")
    shop.drain(module="logging_shop")
    one, two, three = stepfast("logs", run).stdout.splitlines()
    assert one.endswith(" INFO    stepfast.run one") and two == "two \\x1b[0m"
    assert three.endswith(" WARNING stepfast.run [work] three")
    assert stepfast("logs", run, "--follow", "--level", "warning").stdout.splitlines() == [three]
    first = json.loads(stepfast("logs", run, "--json").stdout.splitlines()[0])
    assert first["message"] == "one\ntwo \x1b[0m" and first["step"] is None and "at" in first
    assert "there is no level" in stepfast.error("logs", run, "--level", "loud", code=2)
    assert stepfast("logs", NOBODY, code=3).stdout == ""


# -- watch


def test_a_run_is_watched_to_its_end(stepfast: Verbs, shop: Shop) -> None:
    shop.write(
        "watched.py",
        "from stepfast import Context, Stepfast\napp = Stepfast()\n"
        "@app.workflow\nasync def talk(ctx: Context) -> None:\n"
        "    ctx.progress('half', {'done': 1, 'of': 2})\n    await ctx.wait_signal('go')\n",
    )
    run = shop.start("talk", module="watched")
    shop.drain(module="watched")
    stepfast("signal", run, "go")
    shop.drain(module="watched")
    assert stepfast("watch", run).stdout == "completed\n"
    assert stepfast.json("watch", run) == {"status": "completed", "waiting_for": None, "progress": None, "data": None}
    failed = shop.start("refuse", "no luck")
    shop.drain()
    assert stepfast("watch", failed, "--every", "100ms", code=1).stdout.startswith("failed (code")
    assert stepfast("watch", NOBODY, code=3).stdout == ""
