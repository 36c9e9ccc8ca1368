"""The rules for dags: each finds its violation in a story made up by hand, and nothing in one without."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from stepfast.model.graph import APPROVAL, DagStep, Graph
from tests.judge.dags import BREAKS, INNER, STEP, STRAYS, UNDO, WHEN, DagStepRow, GraphAct, Scene, check, tell
from tests.judge.evidence import CHANGED, INSERTED, TRIED, Evidence, Move, Run, Seen, Start, Step, Wish, Write
from tests.judge.evidence import UNDO as UNDO_BRANCH
from tests.judge.made_up import MS, Changes, put, put_in

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


def stuck() -> Scene:
    """One of the undos failed."""
    return undone("left")


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


changes = Changes(completed)
STORIES = (completed, undone, stuck, cancelled, unwanted, caught, gated, joined, paused, retried)


@pytest.mark.parametrize("story", STORIES)
def test_nothing_is_found_where_nothing_is_wrong(story: Callable[[], Scene]) -> None:
    scene = story()
    assert check(scene) == [], tell(scene, check(scene))


# -- each rule can fail ----------------------------------------------------------------------------------------------


def change(items: list[Any], where: Callable[[Any], bool], **columns: Any) -> None:
    [number] = [number for number, item in enumerate(items) if where(item)]
    put(items, number, **columns)


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


@changes.breaks("hung")
def hangs(scene: Scene) -> None:
    row(scene, "r", status="running")


@changes.breaks("wrong result")
def a_caller_hears_something_else(scene: Scene) -> None:
    scene.evidence.seen[0] = Seen("r", "completed", '{"top": "n-top"}')


@changes.breaks("wrong result")
def the_result_lacks_an_output(scene: Scene) -> None:
    row(scene, "r", output='{"top": "n-top"}')
    a_caller_hears_something_else(scene)


@changes.breaks("wrong end", "not undone", of=cancelled)
def is_cancelled_without_undoing(scene: Scene) -> None:
    row(scene, "r", status="cancelled")
    scene.evidence.writes.clear()
    scene.acts[:] = [act for act in scene.acts if act.what != UNDO]


@changes.breaks("too often")
def is_called_again_without_a_loss(scene: Scene) -> None:
    again(scene, "n-left", at=16 * MS, claim=2)
    scene.evidence.moves.append(Move(15 * MS, "r/left", 2, 1, "running", "completed", "w", None))


@changes.breaks("twice")
def a_checkpoint_is_made_again(scene: Scene) -> None:
    scene.evidence.steps.append(Step("r/left", 0, "inner", 1, 1, "completed", '"x"', 12 * MS))
    scene.acts.append(GraphAct(11 * MS, "r", "left", "r/left", 1, 1, 100, "x", INNER))
    scene.acts.append(GraphAct(13 * MS, "r", "left", "r/left", 2, 1, 100, "y", INNER))


@changes.breaks("twice", of=undone)
def an_undo_is_called_though_on_record(scene: Scene) -> None:
    again(scene, "u-top", at=80 * MS, claim=3)
    scene.evidence.writes.append(Write(70 * MS, TRIED, "r", 1, 2, 2, None, UNDO_BRANCH, "try", "failed"))


TABLE: list[tuple[str, str, Callable[[], Scene], Callable[[Scene], object]]] = [
    ("begun while paused", "begins before the resume", paused,
     lambda s: change(s.evidence.moves, lambda m: (m.run, m.at) == ("r/left", 50 * MS), at=20 * MS)),
    ("twice", "nobody asked for the retry", retried, lambda s: s.evidence.wishes.clear()),
    ("twice", "ends a third time", retried,
     lambda s: s.evidence.moves.extend([Move(90 * MS, "r/top", 3, 3, "queued", "failed", None, None), Move(91 * MS,
      "r/top", 3, 3, "failed", "queued", None, None)] )),
    ("twice", "a retry opens a completed step", retried,
     lambda s: s.evidence.moves.append(Move(90 * MS, "r/left", 1, 1, "queued", "completed", None, None))),
    ("hung", "a step hangs", completed, lambda s: row(s, "r/right", status="waiting")),
    ("hung", "nobody is told", completed, lambda s: s.evidence.seen.clear()),
    ("left behind", "a step is left in line", completed, lambda s: row(s, "r/left", held=True)),
    ("left behind", "the run is left in line", completed, lambda s: row(s, "r", held=True)),
    ("lost", "is lost", completed, lambda s: s.evidence.starts.append(Start(0, "another", DAG))),
    ("unwanted", "is there though rolled back", completed, lambda s: s.evidence.unwanted.append("r")),
    ("wrong result", "a caller hears of another end", undone,
     lambda s: put_in(s.evidence.seen, 0, Seen("r", "completed", "{}"))),
    ("missing", "a step is missing", completed, lambda s: s.dag_steps.pop()),
    ("twice", "a step ends twice", completed,
     lambda s: s.evidence.moves.extend([Move(30 * MS, "r/left", 1, 1, "queued", "completed", None, None),
      Move(31 * MS, "r/left", 1, 1, "completed", "queued", None, None)] )),
    ("made up", "an output nobody produced", completed, lambda s: row(s, "r/end", output='"nobody"')),
    ("made up", "an output of a claim before", completed,
     lambda s: change(s.evidence.moves, lambda m: m.run == "r/end" and m.status == "completed", old_claim=2, claim=2 )),
    ("made up", "an error nobody raised", undone, lambda s: row(s, "r/end", error="{}")),
    ("made up", "an error is not caught", caught, lambda s: row(s, "r/risky", reason="code")),
    ("made up", "a gate opens by itself", gated, lambda s: s.answers.clear()),
    ("wrong end", "is completed though a step failed", completed,
     lambda s: row(s, "r/end", status="failed", reason="code")),
    ("wrong end", "is failed without a cause", cancelled, lambda s: s.evidence.wishes.clear()),
    ("wrong end", "is completed but not as declared", completed, lambda s: row(s, "r/right", status="skipped")),
    ("wrong end", "is done though not wanted", unwanted, lambda s: row(s, "r/right", status="completed")),
    ("wrong end", "is failed though all was undone", undone, lambda s: row(s, "r", status="failed")),
    ("wrong end", "a failed undo is not in the list", stuck,
     lambda s: row(s, "r", error=json.dumps({"message": "something"}))),
    ("wrong end", "a failed undo and compensated", stuck, lambda s: row(s, "r", status="compensated")),
    ("too early", "begins before its dependency ends", completed, lambda s: settled(s, "r/right", 40)),
    ("too early", "begins before enough have ended", joined, lambda s: settled(s, "r/left", 40)),
    ("too early", "begins though nothing led there", caught, lambda s: row(s, "r/risky", reason="caught:well")),
    ("wrong output", "sees another output", completed, lambda s: act(s, "n-left", saw={"top": "something"})),
    ("wrong output", "sees too little", completed, lambda s: act(s, "n-end", saw={"left": "n-left"})),
    ("wrong output", "sees less than it needs", joined, lambda s: act(s, "n-end", saw={})),
    ("wrong output", "sees more the second time", joined,
     lambda s: again(s, "n-end", claim=2, saw={"left": "n-left", "top": "n-top", "right": "n-right"}, at=40 * MS )),
    ("too late", "a step begins after an undo", undone, lambda s: act(s, "n-end", at=51 * MS)),
    ("too early", "an undo begins before a step has ended", undone, lambda s: settled(s, "r/end", 70)),
    ("too early", "an undo begins before the one after it", undone, lambda s: act(s, "u-top", at=49 * MS)),
    ("twice", "is called twice in a claim", completed, lambda s: again(s, "n-left", at=12 * MS)),
    ("stolen", "is called by somebody else", completed, lambda s: act(s, "n-left", pid=200)),
    ("too often", "a skipped step is called", unwanted,
     lambda s: change(s.acts, lambda act: act.what == WHEN, what=STEP)),
    ("made up", "a checkpoint nobody made", completed,
     lambda s: s.evidence.steps.append(Step("r/left", 0, "inner", 1, 1, "completed", '"x"', 12 * MS))),
    ("twice", "a checkpoint is recorded twice", completed,
     lambda s: s.evidence.writes.extend([Write(at * MS, INSERTED, "r/left", 0, 1, 1) for at in (12, 13)])),
    ("not undone", "a completed step is not undone", undone,
     lambda s: s.evidence.writes.remove(undo_record(s, "left"))),
    ("wrongly undone", "a completed run is undone", completed,
     lambda s: s.evidence.writes.append(Write(90 * MS, INSERTED, "r", 1, 1, 1, None, UNDO_BRANCH, "undo"))),
    ("wrongly undone", "the failed step is undone", undone,
     lambda s: s.evidence.writes.append(Write(90 * MS, INSERTED, "r", 4, 2, 2, None, UNDO_BRANCH, "undo"))),
    ("wrongly undone", "the undo of the failed step is called", undone,
     lambda s: again(s, "u-top", dag_step="end", at=49 * MS, undoes=None)),
    ("twice", "an undo is recorded twice", undone,
     lambda s: s.evidence.writes.append(dataclasses.replace(undo_record(s, "top"), what=CHANGED))),
    ("too often", "an undo is called again", undone, lambda s: again(s, "u-top", at=61 * MS)),
    ("made up", "an undo on record that nobody did", undone, lambda s: act(s, "u-top", does="raises")),
    ("wrong output", "an undo is given something else", undone, lambda s: act(s, "u-top", undoes="something")),
]  # fmt: skip


for _kind, _name, _story, _change in TABLE:
    changes.add(_kind, _name, _change, _story)


@pytest.mark.parametrize(("story", "change", "kind"), changes.cases)
def test_what_is_wrong_is_found(story: Callable[[], Scene], change: Callable[[Scene], object], kind: str) -> None:
    scene = story()
    change(scene)
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
