"""`check`, `export` and `replay`: today's code against what is recorded, in the scenes that a deploy brings about."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from stepfast import Stepfast
from stepfast.cli import check as cli_check
from stepfast.compatibility import Checker
from tests.cli.conftest import HARBOUR, Shop, Verbs
from tests.cli.processes import Processes
from tests.store.scene import Scene

pytestmark = pytest.mark.enough_on("sqlite")


Deploy = Callable[..., str]
ORDER = {"id": "o-1", "cents": 99}

QUAY = """
from datetime import timedelta
from pathlib import Path
from stepfast import Context, Stepfast, Settings

app = Stepfast(settings=Settings(inline_wait=0))

@app.workflow(max_attempts=1)
async def landing(ctx: Context, ship: str) -> str:
    await ctx.step("moor", moor, ship)
    await ctx.gather(ctx.branch(unload), ctx.branch(refuel))
    await ctx.sleep(timedelta(hours=1))
    return await ctx.step("cast off", moor, ship)

async def unload(ctx: Context) -> None:
    await ctx.step("hold 1", moor, "1")

async def refuel(ctx: Context) -> None:
    await ctx.step("oil", moor, "2")

def moor(ship: str) -> str:
    with Path("moored").open("a") as log:
        log.write(ship)
    return ship
"""


@pytest.fixture
def deploy(shop: Shop) -> Deploy:
    """Write today's code: what ran, with something changed. Its name, for the command line."""

    def write(*changes: tuple[str, str], before: str = QUAY) -> str:
        text = before
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        shop.write("today.py", text)
        return "today:app"

    return write


@pytest.fixture
def landing(shop: Shop) -> str:
    """A run of `quay.py` that sleeps."""
    shop.write("quay.py", QUAY)
    return shop.started("landing", "Argo", module="quay")


async def tables(scene: Scene) -> dict[str, list[tuple[Any, ...]]]:
    names = ("workers", "definitions")
    others = {name: sorted(await scene.rows.fetch(f"SELECT * FROM [{name}]"), key=repr) for name in names}
    return others | await scene.rows.dump()


def verdicts(found: list[dict[str, Any]]) -> dict[str, str]:
    return {checked["id"]: checked["verdict"] for checked in found}


# -- code that fits


def test_code_that_did_not_change_fits_whatever_a_run_waits_for(stepfast: Verbs, shop: Shop) -> None:
    names = ("approval", "nap", "tide", "convoy", "race", "sync_nap")
    runs = [shop.started(name) for name in names] + [shop.started("saga", "wait")]
    stepfast("pause", runs[0])
    found = stepfast.json("check", "harbour:app")
    assert set(runs) < set(verdicts(found))  # the children of the convoy among them
    assert {checked["verdict"] for checked in found} == {"fits"}
    assert {checked["status"] for checked in found} == {"waiting", "paused"}


def test_a_step_added_behind_what_is_recorded_fits(stepfast: Verbs, landing: str, deploy: Deploy) -> None:
    code = deploy(("hours=1))\n", 'hours=1))\n    await ctx.step("wave", moor, "wave")\n'))
    [found] = stepfast.json("check", code)
    assert found == {
        "id": landing, "workflow": "landing", "status": "waiting", "verdict": "fits",
        "detail": "the code goes on with sleep 'sleep' (at today.py:12)",
    }  # fmt: skip


def test_a_change_behind_a_patch_fits(stepfast: Verbs, landing: str, deploy: Deploy) -> None:
    new = '    if ctx.patched("pilot"):\n        await ctx.step("take a pilot", moor, ship)\n    await ctx.step("moor"'
    assert verdicts(stepfast.json("check", deploy(('    await ctx.step("moor"', new)))) == {landing: "fits"}


def test_for_people_what_fits_is_only_counted(stepfast: Verbs, landing: str) -> None:
    answer = stepfast("check", "quay:app")
    assert answer.stdout.strip() == "1 unfinished run: 1 fit and 0 would diverge"
    assert landing in stepfast("check", "quay:app", "--all").stdout


RACE = """
from stepfast import Context, Stepfast, Settings

app = Stepfast(settings=Settings(inline_wait=0))

@app.workflow
async def race(ctx: Context) -> str:
    winner, _ = await ctx.first(word=ctx.wait_signal("word"), laps=ctx.branch(laps))
    return winner

async def laps(ctx: Context) -> None:
    for number in range(5):
        await ctx.branch(lap, number)
    await ctx.wait_signal("never")

async def lap(ctx: Context, number: int) -> None:
    await ctx.step("lap", abs, number)
"""


def test_a_race_that_nobody_has_won_yet_fits(stepfast: Verbs, shop: Shop) -> None:
    """Also where one of the runners has come further than the others."""
    shop.write("race.py", RACE)
    run_id = shop.started("race", module="race")
    steps = stepfast.json("show", run_id)["steps"]
    assert [step["name"] for step in steps if step["status"] == "completed"] == ["lap"] * 5
    assert {step["name"] for step in steps if step["status"] == "waiting"} == {"first", "word", "never"}
    assert verdicts(stepfast.json("check", "race:app")) == {run_id: "fits"}


def test_a_change_in_a_branch_that_lost_its_race_fits(stepfast: Verbs, shop: Shop, deploy: Deploy) -> None:
    """What lost is not compared: a worker does not call its code again."""
    shop.write("race.py", RACE.replace("    return winner", '    return await ctx.wait_signal("on")'))
    run_id = shop.started("race", module="race")
    stepfast("signal", run_id, "word")
    shop.drain("race")
    code = deploy(('"lap"', '"round"'), ("    return winner", '    return await ctx.wait_signal("on")'), before=RACE)
    assert verdicts(stepfast.json("check", code)) == {run_id: "fits"}
    stepfast("signal", run_id, "on", '"and on"')
    shop.drain("today")
    assert stepfast.json("result", run_id)["output"] == "and on"


def test_an_error_where_nothing_more_is_recorded_fits_and_is_told(stepfast: Verbs, shop: Shop, deploy: Deploy) -> None:
    fog = ("    await ctx.sleep(", '    raise ValueError("fog")\n    await ctx.sleep(')
    code = deploy(fog, ("max_attempts=1", "backoff=Backoff(600)"), ("import Context", "import Backoff, Context"))
    run_id = shop.started("landing", "Argo", module="today")
    [found] = stepfast.json("check", code)
    assert (found["id"], found["status"], found["verdict"]) == (run_id, "queued", "fits")
    assert found["detail"] == "the code raises ValueError: fog (at today.py:12)"


# -- code that does not


def test_runs_that_diverge_alike_are_told_of_together(
    stepfast: Verbs, shop: Shop, landing: str, deploy: Deploy
) -> None:
    """One change of the code meets a thousand runs at the same place."""
    ids = [landing, *(shop.started("landing", "Argo", module="quay") for _ in range(4))]
    answer = stepfast("check", deploy(('"moor"', '"dock"')), code=1)
    heading, line, summary = answer.stdout.splitlines()
    assert heading.split() == ["runs", "workflow", "verdict", "where", "ids"]
    assert line.split()[:2] == ["5", "landing"] and "2 more (--json lists all)" in line and ids[-1] in line
    assert summary == "5 unfinished runs: 0 fit and 5 would diverge"


def test_a_renamed_step_diverges_and_both_lines_are_named(stepfast: Verbs, landing: str, deploy: Deploy) -> None:
    answer = stepfast("check", deploy(('"moor"', '"dock"')), code=1)
    assert landing in answer.stdout
    assert (
        "position 0 is recorded as step 'moor' (called at quay.py:10), but the code now calls step 'dock' "
        "(at today.py:10)"
    ) in answer.stdout
    assert "1 would diverge" in answer.stdout


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("    await ctx.step(", "    await ctx.sleep(1)\n    await ctx.step(", "now calls sleep 'sleep' (at today.py"),
        ("    await ctx.sleep(", "    return ship\n    await ctx.sleep(", "the code returned without calling it"),
        (
            ", ctx.branch(refuel)",
            "",
            "position 2 is recorded as a branch (something within it is recorded), but the code",
        ),
        ('    await ctx.step("oil", moor, "2")', "    pass", "position 0 of branch '2' is recorded as step 'oil'"),
        ('    await ctx.step("moor"', '    int(ship)\n    await ctx.step("moor"', "the code raises ValueError"),
        ("ship: str) -> str:\n    await", "ship: int) -> str:\n    await", "the input of 'landing'"),
        ("def moor(ship: str) -> str", "def moor(ship: str) -> int", "the recorded result of step 'moor'"),
    ],
    ids=["put in", "cut off", "a branch gone", "a branch emptied", "raises", "another input", "another result"],
)
def test_each_way_to_diverge(stepfast: Verbs, landing: str, deploy: Deploy, old: str, new: str, told: str) -> None:
    [found] = stepfast.json("check", deploy((old, new)), code=1)
    assert (found["id"], found["verdict"]) == (landing, "diverges")
    assert told in found["detail"]


def test_an_undo_that_the_code_no_longer_names_diverges(stepfast: Verbs, shop: Shop, deploy: Deploy) -> None:
    Path("jammed").touch()
    run_id = shop.started("saga", "fail")
    assert verdicts(stepfast.json("check", "harbour:app")) == {run_id: "fits"}
    code = deploy(("ctx.options(compensate=free).step", "ctx.step"), before=HARBOUR)
    [found] = stepfast.json("check", code, code=1)
    assert found["status"] == "compensating"
    assert (
        "undo 'free' of step 'reserve' was not called: the code as it is now does not call that step" in found["detail"]
    )


# -- code that is not here, or too slow


def test_runs_whose_code_is_not_here_are_a_finding(stepfast: Verbs, shop: Shop, landing: str) -> None:
    """No worker with this code executes them: a workflow was renamed or removed."""
    other = shop.started("nap")
    answer = stepfast("check", "quay:app", code=1)
    assert "2 unfinished runs: 1 fit, 0 would diverge and 1 of workflows whose code is not here (nap)" in answer.stdout
    assert "say --partial" in answer.stdout
    assert other in answer.stdout
    assert verdicts(stepfast.json("check", "quay:app", code=1)) == {other: "unknown", landing: "fits"}


def test_a_service_of_a_part_checks_its_own_runs(stepfast: Verbs, shop: Shop, landing: str) -> None:
    shop.started("nap")
    assert verdicts(stepfast.json("check", "quay:app", "--partial")) == {landing: "fits"}
    assert "1 unfinished run: 1 fit and 0 would diverge" in stepfast("check", "quay:app", "--partial").stdout


def test_a_renamed_workflow_is_found_by_runs_that_have_not_begun(stepfast: Verbs, shop: Shop, deploy: Deploy) -> None:
    """Nothing is recorded of them that the code could diverge from, but they would stay in their queue for good."""
    shop.write("quay.py", QUAY)
    run = shop.start("landing", "Adventure", module="quay")
    renamed = deploy(("async def landing(", "async def arrival("))
    assert verdicts(stepfast.json("check", renamed, code=1)) == {run: "unknown"}
    assert verdicts(stepfast.json("check", "quay:app")) == {}
    assert stepfast.json("check", renamed, "--partial") == []


@pytest.mark.parametrize(
    ("wait", "told"),
    [
        ("await __import__('asyncio').sleep(60)", "the code took longer than 1 s"),
        ("__import__('time').sleep(5)", "the code blocked its thread for longer than 1 s"),
    ],
    ids=["waits", "blocks"],
)
def test_code_that_takes_too_long_is_left_behind(
    stepfast: Verbs, shop: Shop, landing: str, deploy: Deploy, wait: str, told: str
) -> None:
    other = shop.started("landing", "Beagle", module="quay")
    slow = ('    await ctx.step("moor"', f'    if ship == "Beagle":\n        {wait}\n    await ctx.step("moor"')
    found = stepfast.json("check", deploy(slow), "--timeout", "1s", code=4)
    assert verdicts(found) == {other: "too_long", landing: "fits"}
    assert told in found[0]["detail"]


# -- what it must not do


def test_nothing_is_written_and_no_step_is_called(stepfast: Verbs, shop: Shop, landing: str, deploy: Deploy) -> None:
    new = """    ctx.progress("checking")
    await ctx.set("checked", True)
    await ctx.call(landing, "Child")
    return await ctx.step("cast off\""""
    code = deploy(("    await ctx.sleep(timedelta(hours=1))\n", ""), ('    return await ctx.step("cast off"', new))
    before, moored = shop.play(tables), Path("moored").read_text()
    stepfast("check", code, code=1)
    stepfast("check", "quay:app")
    assert shop.play(tables) == before
    assert Path("moored").read_text() == moored


def test_a_task_is_not_executed_only_its_input_is_looked_at(stepfast: Verbs, shop: Shop, deploy: Deploy) -> None:
    run_id = shop.started("later", "no luck", module="shop")
    code = "import stepfast\napp = stepfast.Stepfast()\n@app.task\nasync def later(text: str) -> None:\n    1 / 0\n"
    assert verdicts(stepfast.json("check", deploy(before=code))) == {run_id: "fits"}
    shop.write("other.py", code.replace("str", "int"))
    [found] = stepfast.json("check", "other:app", code=1)
    assert "the input of 'later'" in found["detail"]


def test_it_works_while_a_worker_does(stepfast: Verbs, shop: Shop, spawn: Processes) -> None:
    run_id = shop.start("hold")
    worker = spawn("worker", "shop:app")
    worker.hear("holding")
    [found] = stepfast.json("check", "shop:app")
    assert (found["id"], found["status"], found["verdict"]) == (run_id, "running", "fits")
    Path("release").touch()
    assert stepfast.json("result", run_id)["output"] == "released"


def test_what_the_code_prints_stays_out_of_the_data(stepfast: Verbs, landing: str, deploy: Deploy) -> None:
    code = deploy(('    await ctx.step("moor"', '    print("ahoy")\n    await ctx.step("moor"'))
    assert verdicts(stepfast.json("check", code)) == {landing: "fits"}


def test_records_of_two_moments_are_read_again(stepfast: Verbs, shop: Shop, landing: str) -> None:
    """A worker may be at a run while it is read: a record may be missing that the next ones came after."""

    async def check(app: Stepfast) -> list[str]:
        store = await app.store()

        class Torn:
            """The store, whose first answer is without the first record."""

            torn = False

            def __getattr__(self, name: str) -> Any:
                return getattr(store, name)

            async def steps(self, *args: Any) -> Any:
                page = await store.steps(*args)
                page, self.torn = page[0 if self.torn else 1 :], True
                return page

        found = Checker(app, cast(Any, Torn()), 10)
        return [checked.verdict async for checked in found.each(None, None)]

    assert shop.call(check, "quay") == ["fits"]


# -- which runs


def test_filters(stepfast: Verbs, shop: Shop) -> None:
    naps = [shop.started("nap") for _ in range(3)]
    other = shop.started("approval")
    assert list(verdicts(stepfast.json("check", "harbour:app"))) == [other, *naps[::-1]]
    assert list(verdicts(stepfast.json("check", "harbour:app", "--workflow", "nap"))) == naps[::-1]
    assert list(verdicts(stepfast.json("check", "harbour:app", "--limit", "2"))) == [other, naps[2]]
    assert "there is no workflow named 'nape'" in stepfast.error("check", "harbour:app", "-w", "nape", code=2)


def test_runs_that_have_ended_or_never_begun_are_not_looked_at(stepfast: Verbs, shop: Shop) -> None:
    shop.started("nothing", module="shop")
    shop.start("checkout", ORDER)
    answer = stepfast("check", "shop:app")
    assert answer.stdout.strip() == "nothing is recorded of unfinished runs: any code fits"
    assert stepfast.json("check", "shop:app") == []


def test_long_lists_tell_how_far_they_are(stepfast: Verbs, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_check, "_NEWS_EVERY", 0.0)
    for _ in range(2):
        shop.started("nap")
    answer = stepfast("check", "harbour:app")
    assert "1 run so far, 0 would diverge …\n2 runs so far, 0 would diverge …" in answer.stderr


# -- export and replay


def test_a_run_is_written_to_a_file_and_replayed_without_its_database(shop: Shop, stepfast: Verbs) -> None:
    shop.write("quay.py", QUAY)
    shop.write("other.py", QUAY.replace('"moor", moor, ship', '"anchor", moor, ship'))
    run_id = shop.started("landing", "Argo", module="quay")
    stepfast("export", run_id, "--output", "run.json")
    assert json.loads((shop.folder / "run.json").read_text())["run"]["id"] == run_id
    assert json.loads(stepfast("export", run_id[:-2]).stdout)["run"]["id"] == run_id
    assert "fits" in stepfast("replay", run_id, "--app", "quay:app").stdout
    elsewhere = ("--url", "sqlite:///nowhere.db")
    assert "landing" in stepfast("replay", "run.json", "--app", "quay:app", *elsewhere).stdout
    found = stepfast.json("replay", "run.json", "--app", "other:app", *elsewhere, code=1)
    assert found["verdict"] == "diverges"
    assert not (shop.folder / "nowhere.db").exists()


def test_what_cannot_be_replayed_is_said(shop: Shop, stepfast: Verbs) -> None:
    shop.write("quay.py", QUAY)
    shop.write("wrong.json", "[]")
    assert "--app module:app" in stepfast.error("replay", "wrong.json", code=2)
    assert "no export of a run" in stepfast.error("replay", "wrong.json", "--app", "quay:app", code=2)
