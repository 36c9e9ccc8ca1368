"""`graph`, and what `show`, `signal` and `retry` do with dag runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stepfast import Stepfast
from tests.cli.conftest import FULFIL, Shop, Verbs
from tests.support.snapshots import Snapshot, steady

pytestmark = pytest.mark.enough_on("sqlite")


def dag(shop: Shop, input: Any = "teapot", name: str = "order") -> str:
    """A dag run, executed until it waits or has ended."""
    return shop.started(name, input, module="fulfil")


def answered(shop: Shop, stepfast: Verbs, input: Any = "teapot", answer: str = "true") -> str:
    """A dag run whose approval was answered."""
    run_id = dag(shop, input)
    stepfast("signal", run_id, "boss_ok", answer)
    shop.drain("fulfil")
    return run_id


def steps_of(text: str) -> list[str]:
    """The lines below `Steps`."""
    return text.partition("\nSteps\n")[2].partition("\n\n")[0].splitlines()[1:]


def small_dag(*lines: str) -> str:
    """A module with a dag; its steps are declared by these lines."""
    return "\n".join(["from stepfast import Stepfast", "app = Stepfast()", "dag = app.dag('small')", *lines])


# -- graph


@pytest.mark.parametrize("arguments", ["order", "line", "wide", "order --mermaid", ""])
def test_a_graph_for_people_and_documents(stepfast: Verbs, shop: Shop, snapshot: Snapshot, arguments: str) -> None:
    answer = stepfast("graph", "fulfil:app", *arguments.split())
    snapshot(answer.stdout + answer.stderr, spans=True)


def test_a_graph_for_scripts(stepfast: Verbs, shop: Shop) -> None:
    found = stepfast.json("graph", "fulfil:app", "order")
    assert (found["name"], len(found["version"])) == ("order", 16)
    steps = {step["name"]: step for step in found["steps"]}
    assert steps["charge"] == {
        "name": "charge", "after": ["reserve", "check"], "at_least": None, "kind": "step", "conditional": False,
        "undo": "refund", "catch": {}, "retries": 2, "timeout": 30, "on_timeout": None, "level": 2,
    }  # fmt: skip
    assert steps["boss_ok"]["kind"] == "approval"
    assert [each["steps"] for each in stepfast.json("graph", "fulfil:app")] == [6, 2, 22]


def test_drawings_of_a_graph_and_of_a_run(stepfast: Verbs, shop: Shop) -> None:
    drawn = stepfast("graph", "fulfil:app", "order", "--svg", "-").stdout
    assert drawn.startswith("<svg ") and "Graph of order: 6 steps" in drawn and "<style>" in drawn
    answer = stepfast("graph", "fulfil:app", "order", "--svg", str(shop.folder / "order.svg"))
    assert answer.stdout == "" and "written to" in answer.stderr
    assert (shop.folder / "order.svg").read_text() == drawn
    run_id = dag(shop)
    drawn = stepfast("graph", "--run", run_id, "--svg", "-").stdout
    assert f"Graph of run {run_id} of order: 6 steps, 3 completed" in drawn and "sf-skipped" in drawn
    drawn = stepfast("show", run_id, "--svg", "-").stdout
    assert drawn.startswith("<svg ") and f"Timeline of run {run_id} of order: waiting, 6 steps" in drawn


BROKEN = small_dag(
    "dag.declare(lambda ctx: 0, name='a', after=['b', 'x'])", "dag.declare(lambda ctx: 0, name='b', after=['y'])"
)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("fulfil:app order --mermaid --json", "give one of them"),
        ("fulfil:app order --svg no/such/x.svg", "cannot be written"),
        ("fulfil:app --svg -", "name the dag"),
        ("--svg -", "--run RUN"),
        ("fulfil:app --run DAG --svg -", "give --run without"),
        ("--run DAG", "`stepfast show DAG`"),
        ("--run PLAIN --svg -", "`stepfast show PLAIN --svg FILE`"),
        ("fulfil:app oder", "error: fulfil:app has no dag 'oder'; it has line, order, wide"),
        ("shop:app x", "nor any other"),
        ("broken:app small", "'x'"),
        ("broken:app small", "'y'"),
    ],
)
def test_what_cannot_be_drawn_is_refused(stepfast: Verbs, shop: Shop, arguments: str, why: str) -> None:
    shop.write("broken.py", BROKEN)
    if "DAG" in arguments:
        run_id = shop.start("order", module="fulfil")
        arguments, why = arguments.replace("DAG", run_id), why.replace("DAG", run_id)
    if "PLAIN" in arguments:
        run_id = shop.start("nap", module="harbour")
        arguments, why = arguments.replace("PLAIN", run_id), why.replace("PLAIN", run_id)
    assert why in stepfast.error("graph", *arguments.split(), code=2)


def test_an_application_without_dags(stepfast: Verbs, shop: Shop) -> None:
    none = stepfast("graph", "shop:app")
    assert (none.stdout, none.stderr) == ("", "shop:app has no dags\n")
    run_id = shop.start("nothing")
    assert "give one of them" in stepfast.error("show", run_id, "--svg", "-", "--json", code=2)


# -- show

SHOWN: dict[str, Callable[[Shop, Verbs], str]] = {
    "completed": answered,
    "an approval waits": lambda shop, _: dag(shop),
    "an approval was refused": lambda shop, stepfast: answered(shop, stepfast, answer="false"),
    "a step failed": lambda shop, stepfast: answered(shop, stepfast, "piano"),
    "a step is to be retried": lambda shop, _: dag(shop, None, "line"),
    "an error was caught": lambda shop, _: dag(shop, "key", "line"),
    "many steps": lambda shop, _: dag(shop, None, "wide"),
    "not begun": lambda shop, _: shop.start("line", module="fulfil"),
}


@pytest.mark.parametrize("case", SHOWN)
def test_show(stepfast: Verbs, shop: Shop, snapshot: Snapshot, case: str) -> None:
    """The graph of the run, with states, tries and times of its steps, and what it waits for."""
    text = stepfast("show", SHOWN[case](shop, stepfast)).stdout
    snapshot(text.replace(str(shop.folder), "FOLDER"))


def test_show_for_scripts(stepfast: Verbs, shop: Shop) -> None:
    run = stepfast.json("show", answered(shop, stepfast, "piano"))
    assert (run["status"], run["reason"], run["children"]) == ("compensated", "code", [])
    kinds = [(step["name"], step["kind"], step["status"]) for step in run["steps"]]
    assert ("ship", "dag_step", "failed") in kinds
    assert kinds[-2:] == [("refund", "undo", "compensated"), ("free", "undo", "compensated")]
    assert [step["undo"] for step in run["steps"]][:3] == ["free", None, "refund"]


def test_many_steps_that_could_be_executed_are_counted(stepfast: Verbs, shop: Shop) -> None:
    shop.write("many.py", small_dag("for n in range(9): dag.declare(lambda ctx: 0, name=f's{n}')"))
    sentence = stepfast.json("show", shop.start("small", module="many"))["why"]
    assert sentence.startswith("0 of 9 steps have ended. 's0': it is ready")
    assert sentence.endswith("6 more steps can be executed.")


def test_a_run_keeps_the_graph_it_was_started_with(stepfast: Verbs, shop: Shop) -> None:
    """Also when newer code has finished it."""
    run_id = dag(shop)
    old = stepfast.json("show", run_id)["version"]
    before = steps_of(steady(stepfast("show", run_id).stdout))
    shop.write("newer.py", f"{FULFIL}\norder.declare(lambda ctx: 0, name='thank', after=[ship])\n")
    assert stepfast.json("show", shop.start("order", module="newer"))["version"] != old
    assert steps_of(steady(stepfast("show", run_id).stdout)) == before
    stepfast("signal", run_id, "boss_ok", "true")
    shop.drain("newer")
    run = stepfast.json("show", run_id)
    assert (run["status"], run["version"]) == ("completed", old)
    assert "thank" not in run["output"] and len(steps_of(stepfast("show", run_id).stdout)) == 6


def test_a_step_can_be_shown_by_its_own_id_and_is_operated_by_its_run_alone(stepfast: Verbs, shop: Shop) -> None:
    run_id = dag(shop)
    steps = {step["name"]: step["child"] for step in stepfast.json("show", run_id)["steps"]}
    assert stepfast.json("show", steps["reserve"])["workflow"] == "order/reserve"
    assert [run["id"] for run in stepfast.json("runs")] == [run_id]
    for verb in ("pause", "resume", "cancel", "retry"):
        assert f"is a step of dag run {run_id}" in stepfast.error(verb, steps["boss_ok"], code=1)


# -- operating


def test_a_signal_that_no_step_waits_for(stepfast: Verbs, shop: Shop) -> None:
    run_id = dag(shop)
    assert "has no unfinished step 'bos_ok'" in stepfast.error("signal", run_id, "bos_ok", "true", code=1)
    assert stepfast("signal", run_id, "boss_ok", "true").stdout.strip() == run_id
    shop.drain("fulfil")
    assert stepfast.json("result", run_id)["output"]["ship"] == "shipped"


def test_a_cancelled_dag_run_is_undone_and_retried_from_its_start_only(stepfast: Verbs, shop: Shop) -> None:
    run_id = dag(shop)
    stepfast("cancel", run_id)
    shop.drain("fulfil")
    run = stepfast.json("show", run_id)
    assert (run["status"], run["reason"]) == ("compensated", "cancelled")
    assert [step["status"] for step in run["steps"] if step["name"] == "boss_ok"] == ["cancelled"]
    assert "cannot continue from its records" in stepfast.error("retry", run_id, code=1)
    again = stepfast("retry", run_id, "--from-start").stdout.strip()
    shop.drain("fulfil")
    stepfast("signal", again, "boss_ok", "true")
    shop.drain("fulfil")
    run = stepfast.json("show", again)
    assert (run["status"], run["origin"], run["output"]["ship"]) == ("completed", run_id, "shipped")


def test_a_dag_run_is_started_by_name_without_the_code(stepfast: Verbs, shop: Shop) -> None:
    dag(shop)
    run_id = stepfast("start", "order", '"teapot"').stdout.strip()
    shop.drain("fulfil")

    async def answer(app: Stepfast) -> Any:
        await app.get(run_id).signal("boss_ok", {"by": "Grace"})
        await app.drain()
        return await app.get(run_id).result(timeout=10)

    assert shop.call(answer, "fulfil")["boss_ok"] == {"by": "Grace"}


def test_a_failed_dag_run_continues_where_it_was(stepfast: Verbs, shop: Shop) -> None:
    shop.write(
        "sewing.py",
        small_dag(
            "from pathlib import Path",
            "from stepfast import NonRetryableError",
            "dag.declare(lambda ctx: 'plan', name='plan')",
            "@dag.step(after=['plan'])",
            "def sew(ctx):",
            "    if not Path('needle').exists(): raise NonRetryableError('no needle')",
            "    return 'sewn'",
            "dag.declare(lambda ctx: 'worn', name='wear', after=['sew'])",
        ),
    )
    run_id = shop.started("small", module="sewing")
    sentence = stepfast.json("show", run_id)["why"]
    assert f"`stepfast retry {run_id}` continues it with the steps that did not complete." in sentence
    shop.write("needle", "")
    assert stepfast("retry", run_id).stdout.split() == [run_id]
    plan, sew, wear = steps_of(stepfast("show", run_id).stdout)
    assert "completed" in plan and "waiting (queued)" in sew and "waiting (steps)" in wear
    shop.drain("sewing")
    assert stepfast.json("result", run_id)["output"] == {"plan": "plan", "sew": "sewn", "wear": "worn"}


def test_a_dag_run_is_paused_and_resumed(stepfast: Verbs, shop: Shop) -> None:
    run_id = dag(shop)
    assert stepfast("pause", run_id).stdout.split() == [run_id]
    stepfast("signal", run_id, "boss_ok", "true")
    shop.drain("fulfil")
    text = stepfast("show", run_id).stdout
    assert [line.split()[2:4] for line in steps_of(text) if "boss_ok" in line] == [["boss_ok", "paused"]]
    assert f"An operator paused it; `stepfast resume {run_id}` resumes it." in text
    assert [run["id"] for run in stepfast.json("runs", "--status", "paused")] == [run_id]
    [told] = stepfast.json("resume", run_id)
    assert (told["resumed"], told["status"]) == (True, "running")
    shop.drain("fulfil")
    assert stepfast.json("result", run_id)["output"]["ship"] == "shipped"
