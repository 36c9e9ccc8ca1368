"""`graph`, and what `show`, `signal` and `retry` do with dag runs."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from stepfast import Stepfast
from tests.cli.conftest import FULFIL, Shop, Verbs

pytestmark = pytest.mark.enough_on("sqlite")


def dag(shop: Shop, input: Any = "teapot", name: str = "order") -> str:
    """A dag run, worked at until it waits or has ended."""
    return shop.started(name, input, module="fulfil")


def table(text: str) -> list[list[str]]:
    """The lines below `Steps`, as cells."""
    lines = text.partition("\nSteps\n")[2].partition("\n\n")[0].splitlines()
    return [re.split(r" {2,}", line) for line in lines[1:]]


# -- graph


def test_a_graph_is_drawn(stepfast: Verbs, shop: Shop) -> None:
    answer = stepfast("graph", "fulfil:app", "order")
    assert [re.split(r" {2,}", line)[0] for line in answer.stdout.splitlines()[1:]] == [
        "○",
        "│ ○",
        "○─╯",
        "├─○",
        "○ │",
        "○─╯",
    ]
    assert re.search(r"○ +reserve +3 retries; undone by free\n", answer.stdout)
    assert re.search(r"○─╯ +charge +reserve, check +30 s at most; undone by refund\n", answer.stdout)
    assert re.search(r"wrap +charge +conditional; 1 retry\n", answer.stdout)
    assert re.search(r"boss_ok +charge +an approval; 1 d at most, then fail\n", answer.stdout)
    assert re.search(r"check *\n", answer.stdout)  # two retries go without saying
    assert re.search(r"ship +wrap, boss_ok +no retries\n", answer.stdout)
    assert re.search(r"order, version [0-9a-f]{16}: 6 steps in 4 levels", answer.stderr)


def test_where_errors_lead_is_said(stepfast: Verbs, shop: Shop) -> None:
    text = stepfast("graph", "fulfil:app", "line").stdout
    assert re.search(r"knock +3 retries; on .*NonRetryableError to mend\n", text)
    assert re.search(r"mend +a failed knock\n", text)


def test_a_wide_graph_is_listed_by_levels(stepfast: Verbs, shop: Shop) -> None:
    lines = stepfast("graph", "fulfil:app", "wide").stdout.splitlines()
    assert lines[0].split() == ["level", "step", "after"]
    assert lines[1].split() == ["1", "first"]
    assert re.split(r" {2,}", lines[2]) == ["2", "item 0", "first"]
    assert re.split(r" {2,}", lines[-1]) == ["3", "last", "2 of item 0, item 1, item 2, 17 more"]


def test_a_graph_for_scripts(stepfast: Verbs, shop: Shop) -> None:
    found = stepfast.json("graph", "fulfil:app", "order")
    assert (found["name"], len(found["version"])) == ("order", 16)
    steps = {step["name"]: step for step in found["steps"]}
    assert steps["charge"] == {
        "name": "charge", "after": ["reserve", "check"], "at_least": None, "kind": "step", "conditional": False,
        "undo": "refund", "catch": {}, "retries": 2, "timeout": 30, "on_timeout": None, "level": 2,
    }  # fmt: skip
    assert steps["boss_ok"]["kind"] == "approval"


def test_a_graph_for_documents(stepfast: Verbs, shop: Shop) -> None:
    lines = stepfast("graph", "fulfil:app", "order", "--mermaid").stdout.splitlines()
    assert lines[0] == "flowchart TD"
    assert any('"reserve"' in line for line in lines) and any("-->" in line for line in lines)
    assert "give one of them" in stepfast.error("graph", "fulfil:app", "order", "--mermaid", "--json", code=2)


def test_a_graph_as_a_drawing(stepfast: Verbs, shop: Shop) -> None:
    drawn = stepfast("graph", "fulfil:app", "order", "--svg", "-").stdout
    assert drawn.startswith("<svg ") and "Graph of order: 6 steps" in drawn and "<style>" in drawn
    answer = stepfast("graph", "fulfil:app", "order", "--svg", str(shop.folder / "order.svg"))
    assert answer.stdout == "" and "written to" in answer.stderr
    assert (shop.folder / "order.svg").read_text() == drawn
    assert "cannot be written" in stepfast.error("graph", "fulfil:app", "order", "--svg", "no/such/x.svg", code=2)
    assert "say which dag" in stepfast.error("graph", "fulfil:app", "--svg", "-", code=2)
    assert "--run RUN" in stepfast.error("graph", "--svg", "-", code=2)


def test_the_graph_of_a_run_as_a_drawing(stepfast: Verbs, shop: Shop) -> None:
    run_id = dag(shop)
    drawn = stepfast("graph", "--run", run_id, "--svg", "-").stdout
    assert f"Graph of run {run_id} of order: 6 steps, 3 completed" in drawn and "sf-skipped" in drawn
    assert "give --run without" in stepfast.error("graph", "fulfil:app", "--run", run_id, "--svg", "-", code=2)
    assert f"`stepfast show {run_id}`" in stepfast.error("graph", "--run", run_id, code=2)
    plain = shop.start("nap", module="harbour")
    assert f"`stepfast show {plain} --svg FILE`" in stepfast.error("graph", "--run", plain, "--svg", "-", code=2)


def test_the_timeline_of_a_run_as_a_drawing(stepfast: Verbs, shop: Shop) -> None:
    run_id = dag(shop)
    drawn = stepfast("show", run_id, "--svg", "-").stdout
    assert drawn.startswith("<svg ") and f"Timeline of run {run_id} of order: waiting, 6 steps" in drawn
    assert "give one of them" in stepfast.error("show", run_id, "--svg", "-", "--json", code=2)


def test_the_names_of_all_graphs(stepfast: Verbs, shop: Shop) -> None:
    lines = stepfast("graph", "fulfil:app").stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["order", "6"], ["line", "2"], ["wide", "22"]]
    assert [each["steps"] for each in stepfast.json("graph", "fulfil:app")] == [6, 2, 22]
    none = stepfast("graph", "shop:app")
    assert (none.stdout, none.stderr) == ("", "shop:app has no dags\n")


def test_an_unknown_graph(stepfast: Verbs, shop: Shop) -> None:
    assert stepfast.error("graph", "fulfil:app", "oder", code=2) == (
        "error: fulfil:app has no dag 'oder'; it has line, order, wide"
    )
    assert "nor any other" in stepfast.error("graph", "shop:app", "x", code=2)


def test_a_graph_that_cannot_work(stepfast: Verbs, shop: Shop) -> None:
    shop.write(
        "broken.py",
        "from stepfast import Stepfast\n"
        "app = Stepfast()\n"
        "dag = app.dag('broken')\n"
        "dag.declare(lambda ctx: 0, name='a', after=['b', 'x'])\n"
        "dag.declare(lambda ctx: 0, name='b', after=['y'])\n",
    )
    sentence = stepfast.error("graph", "broken:app", "broken", code=2)
    assert "'x'" in sentence and "'y'" in sentence


# -- show


def test_show_draws_the_graph_with_states_tries_and_times(stepfast: Verbs, shop: Shop) -> None:
    run_id = dag(shop)
    stepfast("signal", run_id, "boss_ok", "true")
    shop.drain("fulfil")
    text = stepfast("show", run_id).stdout
    rows = table(text)
    assert [row[:4] for row in rows] == [
        ["●", "reserve", "completed", "2"],
        ["│ ●", "check", "completed", "1"],
        ["●─╯", "charge", "completed", "1"],
        ["├─·", "wrap", "skipped"],
        ["● │", "boss_ok", "completed", "1"],
        ["●─╯", "ship", "completed", "1"],
    ]
    assert rows[0][-2:] == ["free", '"berth 7"'] and rows[1][-1] == "0" and rows[4][-1] == "true"
    assert re.search(r"\d", rows[0][4])
    assert "It completed" in text and "Children" not in text


def test_an_approval_waits_and_how_to_answer_is_said(stepfast: Verbs, shop: Shop) -> None:
    run_id = dag(shop)
    text = stepfast("show", run_id).stdout
    assert re.search(r"○ │ +boss_ok +waiting \(signal 'boss_ok'\)", text)
    assert re.search(r"○─╯ +ship +waiting \(steps\)", text)
    sentence = stepfast.json("show", run_id)["why"]
    assert sentence.startswith("4 of 6 steps have ended. 'boss_ok' waits for an answer until ")
    assert f"`stepfast signal {run_id} boss_ok true` approves" in sentence
    assert stepfast("signal", run_id, "boss_ok", "true").stdout.strip() == run_id
    shop.drain("fulfil")
    assert stepfast.json("result", run_id)["output"]["ship"] == "shipped"


def test_a_refusal_undoes_what_was_done(stepfast: Verbs, shop: Shop) -> None:
    run_id = dag(shop)
    stepfast("signal", run_id, "boss_ok", "false")
    shop.drain("fulfil")
    text = stepfast("show", run_id).stdout
    assert re.search(r"● +reserve .* free \(compensated\)", text)
    assert re.search(r"✗ │ +boss_ok +failed .*not approved", text)
    assert re.search(r"·─╯ +ship +skipped\n", text)
    assert "and its completed steps were undone" in text
    assert f"`stepfast retry --from-start {run_id}` starts a new run" in text


def test_a_failed_step_is_told_and_the_way_back(stepfast: Verbs, shop: Shop) -> None:
    run_id = dag(shop, "piano")
    stepfast("signal", run_id, "boss_ok", "true")
    shop.drain("fulfil")
    run = stepfast.json("show", run_id)
    assert (run["status"], run["reason"]) == ("compensated", "code")
    kinds = [(step["name"], step["kind"], step["status"]) for step in run["steps"]]
    assert ("ship", "dag_step", "failed") in kinds
    assert kinds[-2:] == [("refund", "undo", "compensated"), ("free", "undo", "compensated")]
    assert [step["undo"] for step in run["steps"]][:3] == ["free", None, "refund"]
    assert run["children"] == []


def test_what_holds_a_step_up_is_told(stepfast: Verbs, shop: Shop) -> None:
    waits = shop.start("line", module="fulfil")
    assert stepfast.json("show", waits)["why"] == (
        "0 of 2 steps have ended. 'knock': it is ready to be claimed, but there is no live worker: "
        "start one with `stepfast worker module:app`."
    )
    shop.drain("fulfil")
    sentence = stepfast.json("show", waits)["why"]
    assert "'knock': it is queued: attempt 1 failed with ConnectionError: nobody opens; attempt 2 is due in" in sentence
    assert re.search(r"knock +waiting \(retry\) +2? .*nobody opens", stepfast("show", waits).stdout)


def test_many_steps_that_could_go_on_are_counted(stepfast: Verbs, shop: Shop) -> None:
    shop.write(
        "many.py",
        "from stepfast import Stepfast\n"
        "app = Stepfast()\n"
        "dag = app.dag('many')\n"
        "for n in range(9): dag.declare(lambda ctx: 0, name=f's{n}')\n",
    )
    sentence = stepfast.json("show", shop.start("many", module="many"))["why"]
    assert sentence.startswith("0 of 9 steps have ended. 's0': it is ready")
    assert sentence.endswith("6 more steps can be executed.")


def test_an_error_that_was_caught_is_told_so(stepfast: Verbs, shop: Shop) -> None:
    run_id = dag(shop, "key", "line")
    text = stepfast("show", run_id).stdout
    assert re.search(r"✗ +knock +failed \(caught by 'mend'\)", text)
    assert re.search(r"● +mend +completed", text)
    assert "It completed" in text


def test_a_run_keeps_the_graph_it_was_started_with(stepfast: Verbs, shop: Shop) -> None:
    run_id = dag(shop)
    shop.write(
        "other.py",
        "from stepfast import Stepfast\napp = Stepfast()\ndag = app.dag('order')\n@dag.step\ndef only(ctx): return 1\n",
    )
    shop.start("order", module="other")
    assert [row[1] for row in table(stepfast("show", run_id).stdout)] == [
        "reserve", "check", "charge", "wrap", "boss_ok", "ship",
    ]  # fmt: skip


def test_a_wide_run_is_listed_by_levels(stepfast: Verbs, shop: Shop) -> None:
    text = stepfast("show", dag(shop, None, "wide")).stdout
    assert re.search(r"Steps\nlevel +step +status +tries +took +outcome\n1 +first +completed", text)
    assert re.search(r"\n3 +last +completed +1 .* 2\n?$", text)


def test_a_step_can_be_shown_by_its_own_id(stepfast: Verbs, shop: Shop) -> None:
    run_id = dag(shop)
    steps = {step["name"]: step for step in stepfast.json("show", run_id)["steps"]}
    assert stepfast.json("show", steps["reserve"]["child"])["workflow"] == "order/reserve"
    assert [run["id"] for run in stepfast.json("runs")] == [run_id]


# -- asking


def test_a_signal_that_no_step_waits_for(stepfast: Verbs, shop: Shop) -> None:
    run_id = dag(shop)
    assert "has no unfinished step 'bos_ok'" in stepfast.error("signal", run_id, "bos_ok", "true", code=1)


def test_a_dag_run_that_was_undone_is_tried_again_from_its_start_only(stepfast: Verbs, shop: Shop) -> None:
    run_id = dag(shop)
    stepfast("cancel", run_id)
    shop.drain("fulfil")
    assert "cannot go on from its records" in stepfast.error("retry", run_id, code=1)
    anew = stepfast("retry", run_id, "--from-start").stdout.strip()
    shop.drain("fulfil")
    stepfast("signal", anew, "boss_ok", "true")
    shop.drain("fulfil")
    run = stepfast.json("show", anew)
    assert (run["status"], run["origin"], run["output"]["ship"]) == ("completed", run_id, "shipped")


def test_a_cancelled_dag_run_is_undone(stepfast: Verbs, shop: Shop) -> None:
    run_id = dag(shop)
    stepfast("cancel", run_id)
    shop.drain("fulfil")
    run = stepfast.json("show", run_id)
    assert (run["status"], run["reason"]) == ("compensated", "cancelled")
    assert [step["status"] for step in run["steps"] if step["name"] == "boss_ok"] == ["cancelled"]


def test_a_dag_run_is_started_by_name_without_the_code(stepfast: Verbs, shop: Shop) -> None:
    dag(shop)
    run_id = stepfast("start", "order", json.dumps("teapot")).stdout.strip()
    shop.drain("fulfil")

    async def answer(app: Stepfast) -> Any:
        await app.get(run_id).signal("boss_ok", {"by": "Grace"})
        await app.drain()
        return await app.get(run_id).result(timeout=10)

    assert shop.call(answer, "fulfil")["boss_ok"] == {"by": "Grace"}


def test_a_run_that_newer_code_finished_shows_the_graph_it_went_by(stepfast: Verbs, shop: Shop) -> None:
    run_id = dag(shop)
    old = stepfast.json("show", run_id)["version"]
    shop.write("newer.py", f"{FULFIL}\norder.declare(lambda ctx: 0, name='thank', after=[ship])\n")
    stepfast("signal", run_id, "boss_ok", "true")
    shop.drain("newer")
    run = stepfast.json("show", run_id)
    assert (run["status"], run["version"]) == ("completed", old)
    assert "thank" not in run["output"] and len(table(stepfast("show", run_id).stdout)) == 6
    assert stepfast.json("show", shop.start("order", module="newer"))["version"] != old


def test_a_failed_dag_run_goes_on_where_it_was(stepfast: Verbs, shop: Shop) -> None:
    shop.write(
        "mending.py",
        "from pathlib import Path\n"
        "from stepfast import Stepfast, NonRetryableError\n"
        "app = Stepfast()\n"
        "dag = app.dag('mending')\n"
        "dag.declare(lambda ctx: 'plan', name='plan')\n"
        "@dag.step(after=['plan'])\n"
        "def sew(ctx):\n"
        "    if not Path('needle').exists(): raise NonRetryableError('no needle')\n"
        "    return 'sewn'\n"
        "dag.declare(lambda ctx: 'worn', name='wear', after=['sew'])\n",
    )
    run_id = shop.start("mending", module="mending")
    shop.drain("mending")
    sentence = stepfast.json("show", run_id)["why"]
    assert f"`stepfast retry {run_id}` lets it go on with the steps that did not complete." in sentence
    shop.write("needle", "")
    assert stepfast("retry", run_id).stdout.split() == [run_id]
    assert [row[2] for row in table(stepfast("show", run_id).stdout)] == [
        "completed",
        "waiting (queued)",
        "waiting (steps)",
    ]
    shop.drain("mending")
    assert stepfast.json("result", run_id)["output"] == {"plan": "plan", "sew": "sewn", "wear": "worn"}


def test_a_dag_run_is_paused_and_resumed(stepfast: Verbs, shop: Shop) -> None:
    run_id = dag(shop)
    assert stepfast("pause", run_id).stdout.split() == [run_id]
    stepfast("signal", run_id, "boss_ok", "true")
    shop.drain("fulfil")
    text = stepfast("show", run_id).stdout
    assert re.search(r"status +paused\n", text) and re.search(r"boss_ok +paused", text)
    assert f"An operator paused it; `stepfast resume {run_id}` lets it go on." in text
    assert [run["id"] for run in stepfast.json("runs", "--status", "paused")] == [run_id]
    [told] = stepfast.json("resume", run_id)
    assert (told["resumed"], told["status"]) == (True, "running")
    shop.drain("fulfil")
    assert stepfast.json("result", run_id)["output"]["ship"] == "shipped"


def test_a_step_is_not_asked_by_itself(stepfast: Verbs, shop: Shop) -> None:
    run_id = dag(shop)
    steps = {step["name"]: step["child"] for step in stepfast.json("show", run_id)["steps"]}
    for verb in ("pause", "resume", "cancel", "retry"):
        assert f"is a step of dag run {run_id}" in stepfast.error(verb, steps["boss_ok"], code=1)
