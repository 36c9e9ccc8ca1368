"""The rules for dags: each finds its violation in a story made up by hand, and nothing in one without."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from stepfast.model.graph import APPROVAL, DagStep, Graph
from tests.faults.evidence import CHANGED, INSERTED, TRIED, Evidence, Move, Run, Seen, Start, Step, Wish, Write
from tests.faults.evidence import UNDO as UNDO_BRANCH
from tests.faults.graph_rules import BREAKS, INNER, STEP, STRAYS, UNDO, WHEN, DagStepRow, GraphAct, Scene, check, tell

MS = 1000
DAG = "trip"


def graph(**changes: Any) -> Graph:
    """top → (left, right) → end; ``changes``: other options of a step."""
    dag_steps = [
        DagStep("top", undo="undo"),
        DagStep("left", ("top",), undo="undo"),
        DagStep("right", ("top",), undo="undo", conditional=True),
        DagStep("end", ("left", "right"), undo="undo"),
    ]
    return Graph(
        DagStep(**{**{f: getattr(dag_step, f) for f in DagStep.__struct_fields__}, **changes.get(dag_step.name, {})})
        for dag_step in dag_steps
    )


class Tale:
    """A dag run, told by hand. Every act takes the claim 1 unless told."""

    def __init__(self, shape: Graph | None = None, **fate: Any) -> None:
        self.graph = shape or graph()
        self.input = json.dumps({"breaks": [], "strays": [], "unwanted": [], "stuck": [], **fate})
        self.evidence = Evidence(workers={"w": 100})
        self.acts: list[GraphAct] = []
        self.dag_steps: list[DagStepRow] = []
        self.answers: list[tuple[str, str, Any]] = []
        self.outputs: dict[str, Any] = {}
        self.undone: list[str] = []
        self.evidence.moves.append(Move(0, "r", 0, 0, "running", "", None, None, 0, 0))

    def step(self, name: str, at: int, status: str = "completed", does: str = "returns", **columns: Any) -> None:
        """A step that is claimed at a time (in ms), acts, and ends 5 ms later."""
        row, nonce = f"r/{name}", f"n-{name}"
        output = columns.pop("output", nonce if status == "completed" else None)
        if status == "completed":
            self.outputs[name] = output
        text = None if output is None else json.dumps(output)
        error = json.dumps({"message": nonce}) if status == "failed" else None
        self.dag_steps.append(DagStepRow(row, "r", name))
        self.evidence.runs.append(Run(row, f"{DAG}/{name}", status, output=text, error=error, **columns))
        self.evidence.moves.append(Move(0, row, 0, 0, "waiting", "", None, None, 0, 0))
        if does != "nothing":
            self.evidence.moves.append(Move(at * MS, row, 1, 0, "running", "queued", "w", None))
            before = [d for d in self.graph.ancestors(name) if d in self.outputs]
            saw = {d: self.outputs[d] for d in sorted(before)}
            if does != "asks":
                self.acts.append(GraphAct((at + 1) * MS, "r", name, row, 1, 1, 100, nonce, STEP, does, saw))
            else:
                self.acts.append(GraphAct((at + 1) * MS, "r", name, row, 1, 1, 100, nonce, WHEN, "returns", saw))
        worker, claim = ("w", 1) if does != "nothing" else (None, 0)
        self.evidence.moves.append(Move((at + 5) * MS, row, claim, claim, status, "running", None, worker))

    def undo(self, name: str, at: int, status: str = "completed") -> None:
        """An undo that acts at a time and is on record 5 ms later."""
        place = self.graph.order.index(name) + 1
        does = "returns" if status == "completed" else BREAKS
        self.acts.append(
            GraphAct(at * MS, "r", name, "r", 2, 1, 100, f"u-{name}", UNDO, does, {}, self.outputs.get(name))
        )
        self.evidence.writes.append(Write((at + 5) * MS, INSERTED, "r", place, 2, 2, None, UNDO_BRANCH, "undo", status))

    def end(self, status: str, at: int = 100, **columns: Any) -> Scene:
        """The run ends, and its caller hears of it."""
        output = json.dumps(self.outputs) if status == "completed" else None
        self.evidence.runs.append(Run("r", DAG, status, output=output, input=self.input, **columns))
        moves: list[tuple[str, str, str | None, str | None, int, int, int]] = [
            ("running", "running", "w", None, at - 60, 1, 0)
        ]
        if any(act.what == UNDO for act in self.acts):
            moves += [
                ("compensating", "running", None, "w", at - 59, 1, 1),
                ("compensating", "compensating", "w", None, at - 58, 2, 1),
                (status, "compensating", None, "w", at, 2, 2),
            ]
        else:
            moves.append((status, "running", None, "w", at, 1, 1))
        for new, old, worker, before, when, claim, old_claim in moves:
            self.evidence.moves.append(Move(when * MS, "r", claim, old_claim, new, old, worker, before))
        self.evidence.starts.append(Start(1, "r", DAG))
        told = "completed" if status == "completed" else "cancelled" if status == "cancelled" else "failed"
        self.evidence.seen.append(Seen("r", told, output))
        return Scene(self.evidence, {DAG: self.graph}, self.dag_steps, self.acts, self.answers)


def completed() -> Scene:
    """Everything went well."""
    tale = Tale()
    for name, at in (("top", 1), ("left", 10), ("right", 10), ("end", 20)):
        tale.step(name, at)
    return tale.end("completed")


def undone(stuck: str | None = None) -> Scene:
    """The last step broke, and the others were undone."""
    tale = Tale(breaks=["end"], stuck=[stuck])
    for name, at in (("top", 1), ("left", 10), ("right", 10)):
        tale.step(name, at)
    tale.step("end", 20, "failed", BREAKS)
    for name, at in (("right", 50), ("left", 50), ("top", 60)):
        tale.undo(name, at, "failed" if name == stuck else "completed")
    error = json.dumps({"message": f"undo 'undo' of step {stuck!r}: it is stuck"})
    return tale.end("failed" if stuck else "compensated", error=error if stuck else None)


def cancelled() -> Scene:
    """Somebody cancelled it after the first step; one was called and did not come to its end."""
    tale = Tale()
    tale.step("top", 1)
    tale.step("left", 10, "cancelled", "raises")
    tale.step("right", 10, "skipped", "nothing")
    tale.step("end", 20, "skipped", "nothing")
    tale.undo("top", 60)
    tale.evidence.wishes.append(Wish(9 * MS, "r", "cancel", True))
    return tale.end("compensated", reason="cancelled")


def unwanted() -> Scene:
    """A step was not wanted."""
    tale = Tale(unwanted=["right"])
    tale.step("top", 1)
    tale.step("left", 10)
    tale.step("right", 10, "skipped", "asks")
    tale.step("end", 20)
    return tale.end("completed")


def caught() -> Scene:
    """The error of a step led elsewhere."""
    shape = Graph(
        [DagStep("risky", catch={"E": "mend"}), DagStep("well", ("risky",)), DagStep("mend"), DagStep("end", ("mend",))]
    )
    tale = Tale(shape, strays=["risky"])
    tale.step("risky", 1, "failed", STRAYS, reason="caught:mend")
    tale.step("well", 5, "skipped", "nothing")
    tale.step("mend", 10)
    tale.step("end", 20)
    return tale.end("completed")


def gated() -> Scene:
    """A gate was opened from outside."""
    tale = Tale(Graph([DagStep("gate", kind=APPROVAL), DagStep("end", ("gate",))]))
    tale.step("gate", 1, does="nothing", output="word")
    tale.answers.append(("r", "gate", "word"))
    tale.step("end", 20)
    return tale.end("completed")


def joined() -> Scene:
    """A step that needs one of two begins before the other ends."""
    tale = Tale(graph(end={"at_least": 1}))
    for name, at in (("top", 1), ("left", 10), ("end", 20), ("right", 30)):
        tale.step(name, at)
    return tale.end("completed")


def paused() -> Scene:
    """Held while its second steps were due: what was under way went on, and nothing was taken before the resume."""
    tale = Tale()
    tale.step("top", 1)
    tale.evidence.moves.append(Move(4 * MS, "r", 0, 0, "paused", "running", None, None))
    tale.evidence.moves.append(Move(40 * MS, "r", 0, 0, "running", "paused", None, None))
    for name, at in (("left", 50), ("right", 50), ("end", 60)):
        tale.step(name, at)
    return tale.end("completed", 150)


def retried() -> Scene:
    """The first step broke, and was done when somebody let the run go on."""
    tale = Tale(breaks=["top"])
    tale.evidence.wishes.append(Wish(9 * MS, "r", "retry", True))
    tale.evidence.moves += [
        Move(1 * MS, "r/top", 1, 0, "running", "queued", "w", None),
        Move(3 * MS, "r/top", 1, 1, "failed", "running", None, "w"),
        Move(4 * MS, "r/left", 0, 0, "skipped", "waiting", None, None),
        Move(8 * MS, "r", 0, 0, "failed", "running", None, None),
        Move(9 * MS, "r", 0, 0, "running", "failed", None, None),
        Move(9 * MS, "r/top", 2, 1, "queued", "failed", None, None),
        Move(9 * MS, "r/left", 0, 0, "waiting", "skipped", None, None),
    ]
    tale.acts.append(GraphAct(2 * MS, "r", "top", "r/top", 1, 1, 100, "n-first", STEP, BREAKS, {}))
    for name, at in (("top", 20), ("left", 30), ("right", 30), ("end", 35)):
        tale.step(name, at)
    change(tale.acts, lambda act: act.nonce == "n-top", claim=3)
    for at, old in ((20, 2), (25, 3)):
        change(tale.evidence.moves, lambda m: (m.run, m.at) == ("r/top", at * MS), claim=3, old_claim=old)  # noqa: B023
    scene = tale.end("completed", 120)
    scene.evidence.seen[:] = [Seen("r", "failed")]
    return scene


STORIES = (completed, undone, cancelled, unwanted, caught, gated, joined, paused, retried)


@pytest.mark.parametrize("story", STORIES)
def test_nothing_is_found_where_nothing_is_wrong(story: Callable[[], Scene]) -> None:
    scene = story()
    assert check(scene) == [], tell(scene, check(scene))


def test_an_undo_that_failed_is_in_the_list() -> None:
    assert check(undone("left")) == []


# -- each rule can fail ----------------------------------------------------------------------------------------------


def change(items: list[Any], where: Callable[[Any], bool], **columns: Any) -> None:
    """Change what is told."""
    [number] = [number for number, item in enumerate(items) if where(item)]
    items[number] = dataclasses.replace(items[number], **columns)


def row(scene: Scene, run_id: str, **columns: Any) -> None:
    change(scene.evidence.runs, lambda row: row.id == run_id, **columns)


def act(scene: Scene, nonce: str, **columns: Any) -> None:
    change(scene.acts, lambda act: act.nonce == nonce, **columns)


def again(scene: Scene, nonce: str, **columns: Any) -> None:
    [one] = [act for act in scene.acts if act.nonce == nonce]
    scene.acts.append(dataclasses.replace(one, nonce=f"{nonce} again", **columns))


def settled(scene: Scene, run_id: str, at: int) -> None:
    """It ended at another time."""
    states = ("completed", "failed", "cancelled", "skipped")
    change(scene.evidence.moves, lambda move: move.run == run_id and move.status in states, at=at * MS)


def undo_record(scene: Scene, name: str) -> Write:
    place = scene.graphs[DAG].order.index(name) + 1
    return next(write for write in scene.evidence.writes if write.position == place)


def hangs(scene: Scene) -> None:
    row(scene, "r", status="running")


def a_step_hangs(scene: Scene) -> None:
    row(scene, "r/right", status="waiting")


def a_step_is_left_in_line(scene: Scene) -> None:
    row(scene, "r/left", held=True)


def the_run_is_left_in_line(scene: Scene) -> None:
    row(scene, "r", held=True)


def is_lost(scene: Scene) -> None:
    scene.evidence.starts.append(Start(0, "another", DAG))


def is_there_though_rolled_back(scene: Scene) -> None:
    scene.evidence.unwanted.append("r")


def nobody_is_told(scene: Scene) -> None:
    scene.evidence.seen.clear()


def a_caller_hears_something_else(scene: Scene) -> None:
    scene.evidence.seen[0] = Seen("r", "completed", '{"top": "n-top"}')


def a_caller_hears_of_another_end(scene: Scene) -> None:
    scene.evidence.seen[0] = Seen("r", "completed", "{}")


def a_step_is_missing(scene: Scene) -> None:
    scene.dag_steps.pop()


def a_step_ends_twice(scene: Scene) -> None:
    scene.evidence.moves += [
        Move(30 * MS, "r/left", 1, 1, "queued", "completed", None, None),
        Move(31 * MS, "r/left", 1, 1, "completed", "queued", None, None),
    ]


def an_output_nobody_produced(scene: Scene) -> None:
    row(scene, "r/end", output='"nobody"')


def an_output_of_a_claim_before(scene: Scene) -> None:
    change(scene.evidence.moves, lambda m: m.run == "r/end" and m.status == "completed", old_claim=2, claim=2)


def an_error_nobody_raised(scene: Scene) -> None:
    row(scene, "r/end", error="{}")


def an_error_is_not_caught(scene: Scene) -> None:
    row(scene, "r/risky", reason="code")


def a_gate_opens_by_itself(scene: Scene) -> None:
    scene.answers.clear()


def the_result_lacks_an_output(scene: Scene) -> None:
    row(scene, "r", output='{"top": "n-top"}')
    a_caller_hears_something_else(scene)


def is_completed_though_a_step_failed(scene: Scene) -> None:
    row(scene, "r/end", status="failed", reason="code")


def is_failed_without_a_cause(scene: Scene) -> None:
    scene.evidence.wishes.clear()


def is_completed_but_not_as_declared(scene: Scene) -> None:
    row(scene, "r/right", status="skipped")


def is_done_though_not_wanted(scene: Scene) -> None:
    row(scene, "r/right", status="completed")


def is_cancelled_without_undoing(scene: Scene) -> None:
    row(scene, "r", status="cancelled")
    scene.evidence.writes.clear()
    scene.acts[:] = [act for act in scene.acts if act.what != UNDO]


def is_failed_though_all_was_undone(scene: Scene) -> None:
    row(scene, "r", status="failed")


def a_failed_undo_is_not_in_the_list(scene: Scene) -> None:
    row(scene, "r", error=json.dumps({"message": "something"}))


def a_failed_undo_and_compensated(scene: Scene) -> None:
    row(scene, "r", status="compensated")


def begins_before_its_dependency_ends(scene: Scene) -> None:
    settled(scene, "r/right", 40)


def begins_before_enough_have_ended(scene: Scene) -> None:
    settled(scene, "r/left", 40)


def begins_though_nothing_led_there(scene: Scene) -> None:
    row(scene, "r/risky", reason="caught:well")


def sees_another_output(scene: Scene) -> None:
    act(scene, "n-left", saw={"top": "something"})


def sees_too_little(scene: Scene) -> None:
    act(scene, "n-end", saw={"left": "n-left"})


def sees_less_than_it_needs(scene: Scene) -> None:
    act(scene, "n-end", saw={})


def sees_more_the_second_time(scene: Scene) -> None:
    again(scene, "n-end", claim=2, saw={"left": "n-left", "top": "n-top", "right": "n-right"}, at=40 * MS)


def a_step_begins_after_an_undo(scene: Scene) -> None:
    act(scene, "n-end", at=51 * MS)


def an_undo_begins_before_a_step_has_ended(scene: Scene) -> None:
    settled(scene, "r/end", 70)


def an_undo_begins_before_the_one_after_it(scene: Scene) -> None:
    act(scene, "u-top", at=49 * MS)


def is_called_twice_in_a_claim(scene: Scene) -> None:
    again(scene, "n-left", at=12 * MS)


def is_called_again_without_a_loss(scene: Scene) -> None:
    again(scene, "n-left", at=16 * MS, claim=2)
    scene.evidence.moves.append(Move(15 * MS, "r/left", 2, 1, "running", "completed", "w", None))


def is_called_by_somebody_else(scene: Scene) -> None:
    act(scene, "n-left", pid=200)


def a_skipped_step_is_called(scene: Scene) -> None:
    change(scene.acts, lambda act: act.what == WHEN, what=STEP)


def a_checkpoint_nobody_made(scene: Scene) -> None:
    scene.evidence.steps.append(Step("r/left", 0, "inner", 1, 1, "completed", '"x"', 12 * MS))


def a_checkpoint_is_made_again(scene: Scene) -> None:
    scene.evidence.steps.append(Step("r/left", 0, "inner", 1, 1, "completed", '"x"', 12 * MS))
    scene.acts.append(GraphAct(11 * MS, "r", "left", "r/left", 1, 1, 100, "x", INNER))
    scene.acts.append(GraphAct(13 * MS, "r", "left", "r/left", 2, 1, 100, "y", INNER))


def a_checkpoint_is_recorded_twice(scene: Scene) -> None:
    scene.evidence.writes += [Write(at * MS, INSERTED, "r/left", 0, 1, 1) for at in (12, 13)]


def a_completed_step_is_not_undone(scene: Scene) -> None:
    scene.evidence.writes.remove(undo_record(scene, "left"))


def a_completed_run_is_undone(scene: Scene) -> None:
    scene.evidence.writes.append(Write(90 * MS, INSERTED, "r", 1, 1, 1, None, UNDO_BRANCH, "undo"))


def the_failed_step_is_undone(scene: Scene) -> None:
    scene.evidence.writes.append(Write(90 * MS, INSERTED, "r", 4, 2, 2, None, UNDO_BRANCH, "undo"))


def the_undo_of_the_failed_step_is_called(scene: Scene) -> None:
    again(scene, "u-top", dag_step="end", at=49 * MS, undoes=None)


def an_undo_is_recorded_twice(scene: Scene) -> None:
    scene.evidence.writes.append(dataclasses.replace(undo_record(scene, "top"), what=CHANGED))


def an_undo_is_called_again(scene: Scene) -> None:
    again(scene, "u-top", at=61 * MS)


def an_undo_is_called_though_on_record(scene: Scene) -> None:
    again(scene, "u-top", at=80 * MS, claim=3)
    scene.evidence.writes.append(Write(70 * MS, TRIED, "r", 1, 2, 2, None, UNDO_BRANCH, "try", "failed"))


def an_undo_on_record_that_nobody_did(scene: Scene) -> None:
    act(scene, "u-top", does="raises")


def an_undo_is_given_something_else(scene: Scene) -> None:
    act(scene, "u-top", undoes="something")


def begins_before_the_resume(scene: Scene) -> None:
    change(scene.evidence.moves, lambda m: (m.run, m.at) == ("r/left", 50 * MS), at=20 * MS)


def nobody_asked_for_the_retry(scene: Scene) -> None:
    scene.evidence.wishes.clear()


def ends_a_third_time(scene: Scene) -> None:
    scene.evidence.moves += [
        Move(90 * MS, "r/top", 3, 3, "queued", "failed", None, None),
        Move(91 * MS, "r/top", 3, 3, "failed", "queued", None, None),
    ]


def a_retry_opens_a_completed_step(scene: Scene) -> None:
    scene.evidence.moves.append(Move(90 * MS, "r/left", 1, 1, "queued", "completed", None, None))


CASES: tuple[tuple[str, Callable[[], Scene], Callable[[Scene], None]], ...] = (
    ("begun while paused", paused, begins_before_the_resume),
    ("twice", retried, nobody_asked_for_the_retry),
    ("twice", retried, ends_a_third_time),
    ("twice", retried, a_retry_opens_a_completed_step),
    ("hung", completed, hangs),
    ("hung", completed, a_step_hangs),
    ("hung", completed, nobody_is_told),
    ("left behind", completed, a_step_is_left_in_line),
    ("left behind", completed, the_run_is_left_in_line),
    ("lost", completed, is_lost),
    ("unwanted", completed, is_there_though_rolled_back),
    ("wrong result", completed, a_caller_hears_something_else),
    ("wrong result", undone, a_caller_hears_of_another_end),
    ("wrong result", completed, the_result_lacks_an_output),
    ("missing", completed, a_step_is_missing),
    ("twice", completed, a_step_ends_twice),
    ("made up", completed, an_output_nobody_produced),
    ("made up", completed, an_output_of_a_claim_before),
    ("made up", undone, an_error_nobody_raised),
    ("made up", caught, an_error_is_not_caught),
    ("made up", gated, a_gate_opens_by_itself),
    ("wrong end", completed, is_completed_though_a_step_failed),
    ("wrong end", cancelled, is_failed_without_a_cause),
    ("wrong end", completed, is_completed_but_not_as_declared),
    ("wrong end", unwanted, is_done_though_not_wanted),
    ("wrong end", cancelled, is_cancelled_without_undoing),
    ("not undone", cancelled, is_cancelled_without_undoing),
    ("wrong end", undone, is_failed_though_all_was_undone),
    ("wrong end", lambda: undone("left"), a_failed_undo_is_not_in_the_list),
    ("wrong end", lambda: undone("left"), a_failed_undo_and_compensated),
    ("too early", completed, begins_before_its_dependency_ends),
    ("too early", joined, begins_before_enough_have_ended),
    ("too early", caught, begins_though_nothing_led_there),
    ("wrong output", completed, sees_another_output),
    ("wrong output", completed, sees_too_little),
    ("wrong output", joined, sees_less_than_it_needs),
    ("wrong output", joined, sees_more_the_second_time),
    ("too late", undone, a_step_begins_after_an_undo),
    ("too early", undone, an_undo_begins_before_a_step_has_ended),
    ("too early", undone, an_undo_begins_before_the_one_after_it),
    ("twice", completed, is_called_twice_in_a_claim),
    ("too often", completed, is_called_again_without_a_loss),
    ("stolen", completed, is_called_by_somebody_else),
    ("too often", unwanted, a_skipped_step_is_called),
    ("made up", completed, a_checkpoint_nobody_made),
    ("twice", completed, a_checkpoint_is_made_again),
    ("twice", completed, a_checkpoint_is_recorded_twice),
    ("not undone", undone, a_completed_step_is_not_undone),
    ("wrongly undone", completed, a_completed_run_is_undone),
    ("wrongly undone", undone, the_failed_step_is_undone),
    ("wrongly undone", undone, the_undo_of_the_failed_step_is_called),
    ("twice", undone, an_undo_is_recorded_twice),
    ("too often", undone, an_undo_is_called_again),
    ("twice", undone, an_undo_is_called_though_on_record),
    ("made up", undone, an_undo_on_record_that_nobody_did),
    ("wrong output", undone, an_undo_is_given_something_else),
)


@pytest.mark.parametrize(
    ("kind", "story", "wrong"), CASES, ids=[f"{wrong.__name__}: {kind}" for kind, _, wrong in CASES]
)
def test_what_is_wrong_is_found(kind: str, story: Callable[[], Scene], wrong: Callable[[Scene], None]) -> None:
    scene = story()
    wrong(scene)
    assert kind in {violation.kind for violation in check(scene)}


def test_undos_wait_through_steps_that_were_skipped() -> None:
    """first → skipped → last: order holds through what was not done."""
    shape = Graph([
        DagStep("first", undo="undo"), DagStep("beside", undo="undo"), DagStep("skipped", ("first",), conditional=True),
        DagStep("last", ("skipped", "beside"), undo="undo"), DagStep("broken", ("last",)),
    ])  # fmt: skip
    tale = Tale(shape, unwanted=["skipped"], breaks=["broken"])
    tale.step("first", 1)
    tale.step("beside", 1)
    tale.step("skipped", 10, "skipped", "asks")
    tale.step("last", 20)
    tale.step("broken", 30, "failed", BREAKS)
    for name, at in (("first", 50), ("last", 50), ("beside", 60)):
        tale.undo(name, at)
    found = check(tale.end("compensated"))
    assert [(one.kind, one.text) for one in found] == [
        ("too early", "undo first (u-first) began before that of last was on record")
    ]


def test_the_story_tells_acts_of_steps_and_undos_and_the_rows_at_the_end() -> None:
    scene = undone()
    hangs(scene)
    text = tell(scene, check(scene))
    assert "hung: run r: it is running" in text
    assert "STEP n-left returns" in text and "UNDO u-top returns" in text
    assert "at the end: left" in text
