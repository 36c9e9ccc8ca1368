"""Graphs as values: what is wrong with one, and what the end of a step means to the others (rules 41, 43)."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepfast.errors import ConfigurationError, GraphError
from stepfast.model.graph import (
    APPROVAL,
    DagStep,
    DagStepState,
    Graph,
    RetriedStep,
    Settled,
    is_failure,
    mermaid,
    summed,
)

DIAMOND = Graph([DagStep("a"), DagStep("b", ("a",)), DagStep("c", ("a",)), DagStep("d", ("b", "c"))])


def one(name: str, *after: str, **options: Any) -> DagStep:
    return DagStep(name, after, **options)


# -- as text ------------------------------------------------------------------------------------------------


def test_a_graph_read_back_is_the_same() -> None:
    graph = Graph([
        one("pay", retries=3, timeout=2.5, undo="refund", catch={"Declined": "tell"}),
        one("approve", "pay", kind=APPROVAL, on_timeout="skip"),
        one("tell", "approve", at_least=1, conditional=True),
    ])  # fmt: skip
    again = Graph.from_text(graph.text)
    assert again.dag_steps == graph.dag_steps
    assert again.version == graph.version


def test_equal_graphs_have_one_version_and_others_have_another() -> None:
    assert Graph([one("a"), one("b", "a")]).version == Graph([one("a"), one("b", "a")]).version
    versions = [
        Graph([one("a"), one("b", "a")]).version,
        Graph([one("a"), one("b")]).version,
        Graph([one("a"), one("c", "a")]).version,
        Graph([one("a"), one("b", "a", retries=1)]).version,
        Graph([one("a"), one("b", "a", undo="refund")]).version,
    ]
    assert len(set(versions)) == len(versions)


# -- shape --------------------------------------------------------------------------------------------------


def test_the_order_keeps_that_of_the_declaration_where_it_may() -> None:
    graph = Graph([one("z"), one("last", "m", "z"), one("m", "z"), one("b"), one("a")])
    assert graph.order == ["z", "b", "a", "m", "last"]


def test_the_target_of_an_error_waits_for_the_step_that_may_raise_it() -> None:
    graph = Graph([one("pay", catch={"Declined": "tell", "Closed": "tell"}), one("tell"), one("ship", "pay")])
    assert graph.dependencies("tell") == ("pay",)
    assert graph.dependents["pay"] == ["tell", "ship"]
    assert graph.dependencies("pay") == ()


def test_a_step_that_follows_and_catches_waits_once() -> None:
    graph = Graph([one("pay", catch={"Declined": "close"}), one("close", "pay")])
    assert graph.dependencies("close") == ("pay",)
    assert graph.dependents["pay"] == ["close"]


def test_ancestors_are_all_that_a_step_depends_on() -> None:
    graph = Graph([*DIAMOND.dag_steps.values(), one("e", "d"), one("f", catch={"X": "e"}), one("aside", "a")])
    assert graph.ancestors("e") == {"a", "b", "c", "d", "f"}
    assert graph.ancestors("b") == {"a"}
    assert graph.ancestors("a") == set()


# -- what is wrong ------------------------------------------------------------------------------------------


def test_all_problems_are_reported_together_and_by_name() -> None:
    graph = Graph([
        one("a", "nobody"),
        one("b", "b"),
        one("c", "a", "a"),
        one("d", catch={"Declined": "nowhere", "Closed": "d"}),
        one("e", "a", "b", at_least=3),
        one("f", at_least=1),
        one("g", "a", at_least=0),
        one("twin"),
        one("twin"),
    ])  # fmt: skip
    with pytest.raises(GraphError) as caught:
        graph.check("orders")
    assert caught.value.problems == [
        "there are two steps named 'twin'", "step 'a' comes after 'nobody', which does not exist",
        "step 'b' comes after itself", "step 'c' names a dependency twice",
        "step 'd' catches Declined with step 'nowhere', which does not exist", "step 'd' catches Closed with itself",
        "at_least of step 'e' is 3, but the number of its dependencies is 2",
        "step 'f' says how many dependencies it waits for (join or at_least), but has none",
        "at_least of step 'g' is 0, but the number of its dependencies is 1",
    ]  # fmt: skip
    assert isinstance(caught.value, ConfigurationError)
    assert "'orders'" in str(caught.value)
    assert all(problem in str(caught.value) for problem in caught.value.problems)


def test_a_graph_without_steps_is_none() -> None:
    assert Graph([]).problems() == ["it has no steps"]


def test_a_circle_is_shown_with_its_path() -> None:
    graph = Graph([one("in"), one("a", "in", "c"), one("b", "a"), one("c", "b"), one("behind", "c")])
    [problem] = graph.problems()
    path = problem.removeprefix("the steps wait for each other in a circle: ").split(" → ")
    assert path[0] == path[-1]
    assert set(path) == {"a", "b", "c"}
    assert all(before in graph.dag_steps[after].after for before, after in itertools.pairwise(path))


def test_an_error_that_leads_back_makes_a_circle() -> None:
    [problem] = Graph([one("again"), one("pay", "again", catch={"Declined": "again"})]).problems()
    assert "again" in problem and "pay" in problem and "circle" in problem


def test_a_circle_is_reported_beside_other_problems() -> None:
    graph = Graph([one("lost", "nobody"), one("own", "own"), one("a", "b", "lost"), one("b", "a", "own")])
    problems = graph.problems()
    assert len(problems) == 3
    assert "'nobody'" in problems[0]
    assert "comes after itself" in problems[1]
    assert problems[2].endswith(("a → b → a", "b → a → b"))


def test_a_long_chain_is_no_problem() -> None:
    chain = Graph([one("0"), *(one(str(n), str(n - 1)) for n in range(1, 5_000))])
    assert chain.check("chain") is chain
    assert len(chain.ancestors("4999")) == 4_999


def test_a_long_circle_is_found() -> None:
    ring = Graph([one(str(n), str((n - 1) % 5_000)) for n in range(5_000)])
    [problem] = ring.problems()
    assert problem.count("→") == 5_000


# -- deciding -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at_least", "pending", "met", "decision"),
    [
        (None, 1, 1, "wait"),
        (None, 0, 2, "ready"),
        (None, 0, 1, "ready"),  # the other one was skipped
        (None, 0, 0, "skip"),
        (1, 1, 0, "wait"),
        (1, 1, 1, "ready"),
        (1, 0, 0, "skip"),
        (2, 1, 1, "wait"),
        (2, 1, 0, "skip"),  # two cannot be had any more
        (2, 0, 2, "ready"),
    ],
)
def test_a_join_decides_by_what_is_open_and_what_completed(
    at_least: int | None, pending: int, met: int, decision: str
) -> None:
    graph = Graph([one("a"), one("b"), one("join", "a", "b", at_least=at_least)])
    assert graph.decide("join", pending, met) == decision


CATCHING = Graph([
    one("pay", catch={"Declined": "tell", "Closed": "end"}),
    one("tell"),
    one("ship", "pay"),
    one("end", "pay"),
])  # fmt: skip


@pytest.mark.parametrize(
    ("outcome", "counts"),
    [
        ("completed", {"tell": 0, "ship": 1, "end": 1}),
        ("skipped", {"tell": 0, "ship": 0, "end": 0}),
        ("caught:tell", {"tell": 1, "ship": 0, "end": 0}),
        ("caught:end", {"tell": 0, "ship": 0, "end": 1}),
    ],
)
def test_what_the_end_of_a_step_means_to_those_that_wait_for_it(outcome: str, counts: dict[str, int]) -> None:
    assert dict(CATCHING.effects("pay", outcome)) == counts


@pytest.mark.parametrize(
    ("outcome", "fails"),
    [("completed", False), ("skipped", False), ("caught:tell", False), ("failed", True), ("cancelled", True)],
)
def test_which_ends_fail_a_run(outcome: str, fails: bool) -> None:
    assert is_failure(outcome) is fails


def test_ends_are_summed_for_each_step_of_each_run() -> None:
    ends = [
        Settled("one", "b", "completed", DIAMOND),
        Settled("two", "b", "completed", DIAMOND),
        Settled("one", "c", "skipped", DIAMOND),
        Settled("two", "d", "completed", DIAMOND),
    ]
    assert summed(ends) == {("one", "d"): (2, 1), ("two", "d"): (1, 1)}


# -- a retry ------------------------------------------------------------------------------------------------


def stood(**steps: str) -> dict[str, DagStepState]:
    """``a="completed"``; ``never`` for a step that was skipped before it began, ``undone`` for one that was undone."""
    return {
        name: DagStepState("skipped", None, False, False) if how == "never"
        else DagStepState("compensated", "cancelled", True, True) if how == "undone"
        else DagStepState("failed", how, True, False) if how.startswith("caught:")
        else DagStepState(how, None, True, False)
        for name, how in steps.items()
    }  # fmt: skip


READY, OPEN = RetriedStep(True, 0, 0), RetriedStep(False, 1, 0)


def test_a_retry_opens_what_failed_and_what_it_kept_from_beginning() -> None:
    found = DIAMOND.reopened(stood(a="completed", b="failed", c="cancelled", d="never"))
    assert found == {"b": RetriedStep(True, 0, 1), "c": RetriedStep(True, 0, 1), "d": RetriedStep(False, 2, 0)}


def test_a_retry_opens_a_first_step_that_never_began() -> None:
    graph = Graph([one("a"), one("b"), one("c", "b")])
    assert graph.reopened(stood(a="failed", b="never", c="never")) == {"a": READY, "b": READY, "c": OPEN}


def test_a_retry_opens_a_step_whose_dependencies_ended_while_the_run_failed() -> None:
    graph = Graph([one("a"), one("b"), one("c", "b")])
    assert graph.reopened(stood(a="failed", b="completed", c="never")) == {"a": READY, "c": RetriedStep(True, 0, 1)}


def test_what_hangs_on_a_skipped_step_stays_skipped() -> None:
    graph = Graph([one("a"), one("no"), one("hangs", "no"), one("far", "hangs"), one("both", "hangs", "a")])
    found = graph.reopened(stood(a="failed", no="skipped", hangs="never", far="never", both="never"))
    assert found == {"a": READY, "both": OPEN}


def test_a_caught_error_counts_where_it_leads() -> None:
    steps = stood(pay="caught:tell", tell="failed", ship="never", end="never")
    assert CATCHING.reopened(steps) == {"tell": RetriedStep(True, 0, 1)}


def test_nothing_is_opened_where_everything_was_done() -> None:
    assert DIAMOND.reopened(stood(a="completed", b="completed", c="skipped", d="completed")) == {}


def test_a_run_with_a_step_that_was_undone_is_not_opened() -> None:
    assert DIAMOND.reopened(stood(a="completed", b="failed", c="undone", d="never")) is None


# -- any graph, any order -----------------------------------------------------------------------------------


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Steps that come after earlier ones, some of them joins of a few, some with errors that lead further on."""
    size = draw(st.integers(1, 12))
    dag_steps = []
    for n in range(size):
        after = draw(st.lists(st.integers(0, n - 1), unique=True, max_size=4)) if n else []
        later = [str(m) for m in range(n + 1, size)]
        leads_on = bool(later) and draw(st.booleans())
        catch = {"Declined": draw(st.sampled_from(later))} if leads_on else {}
        dag_steps.append(DagStep(str(n), tuple(map(str, after)), catch=catch))
    bare = Graph(dag_steps)
    wanted = {
        dag_step.name: draw(st.none() | st.integers(1, len(bare.dependencies(dag_step.name))))
        for dag_step in dag_steps
        if bare.dependencies(dag_step.name)
    }
    return Graph(
        DagStep(dag_step.name, dag_step.after, wanted.get(dag_step.name), catch=dag_step.catch)
        for dag_step in dag_steps
    )


class Playing:
    """A run of a graph in memory, counted as a store counts it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.pending = {name: len(graph.dependencies(name)) for name in graph.dag_steps}
        self.met = dict.fromkeys(graph.dag_steps, 0)
        self.ready = [name for name, count in self.pending.items() if not count]
        self.released = list(self.ready)
        self.ended: dict[str, str] = {}

    def end(self, ends: dict[str, str]) -> None:
        """Settle these together, and what is skipped because of them."""
        while ends:
            assert not ends.keys() & self.ended.keys(), "settled twice"
            self.ended |= ends
            sums = summed(Settled("", name, outcome, self.graph) for name, outcome in ends.items())
            ends = {}
            for (_, name), (count, completed) in sums.items():
                self.pending[name] -= count
                self.met[name] += completed
                if name in self.released or name in self.ended:
                    continue
                decision = self.graph.decide(name, self.pending[name], self.met[name])
                if decision == "ready":
                    self.check_release(name)
                    self.released.append(name)
                    self.ready.append(name)
                elif decision == "skip":
                    ends[name] = "skipped"

    def fail_and_retry(self, chance: random.Random) -> None:
        """Some of what is ready has begun, and fails, is cancelled, or completes all the same, when nobody counts any
        more. What is opened again is as if it had never ended."""
        begun = {*self.ended, *(name for name in self.ready if chance.random() < 0.7)} & set(self.released)
        ends = {name: chance.choice(["failed", "cancelled", "completed"]) for name in self.ready if name in begun}
        ended = {**dict.fromkeys(self.graph.dag_steps, "skipped"), **ends, **self.ended}
        again = self.graph.reopened(
            {name: DagStepState(how, None, name in begun, False) for name, how in ended.items()}
        )
        assert again is not None
        self.ended = {name: how for name, how in ended.items() if name not in again}
        for name, (ready, pending, met) in again.items():
            self.pending[name], self.met[name] = pending, met
            if ready and name not in self.released:
                self.check_release(name)
        for name in self.ended:
            self.pending[name] = sum(other in again for other in self.graph.dependencies(name))
        self.ready = [name for name, step in again.items() if step.ready]
        self.released = [*self.ready, *(name for name in self.ended if name in begun)]

    def check_release(self, name: str) -> None:
        """Enough of its dependencies completed; without a number, all are settled and one of them completed."""
        outcomes = [self.ended.get(before) for before in self.graph.dependencies(name)]
        wanted = self.graph.dag_steps[name].at_least
        assert wanted is not None or None not in outcomes
        counted = [
            outcome
            for before, outcome in zip(self.graph.dependencies(name), outcomes, strict=True)
            if outcome == f"caught:{name}" or (outcome == "completed" and before in self.graph.dag_steps[name].after)
        ]
        assert len(counted) >= (wanted or 1)


@given(graphs(), st.randoms(use_true_random=False))
def test_any_graph_settled_in_any_order_comes_to_its_end(graph: Graph, chance: random.Random) -> None:
    assert graph.problems() == []
    play = Playing(graph)
    while play.ready:
        together = chance.sample(play.ready, chance.randint(1, len(play.ready)))
        play.ready = [name for name in play.ready if name not in together]
        caught = {name: [f"caught:{to}" for to in graph.dag_steps[name].catch.values()] for name in together}
        play.end({name: chance.choice(["completed", "skipped", *caught[name]]) for name in together})
    assert play.ended.keys() == graph.dag_steps.keys()
    assert len(play.released) == len(set(play.released))
    assert set(play.pending.values()) == {0}
    never_begun = graph.dag_steps.keys() - set(play.released)
    assert {play.ended[name] for name in never_begun} <= {"skipped"}


@given(graphs(), st.randoms(use_true_random=False))
def test_any_graph_that_failed_anywhere_and_is_retried_comes_to_its_end(graph: Graph, chance: random.Random) -> None:
    play = Playing(graph)
    for _ in range(chance.randint(0, len(graph.dag_steps))):
        if play.ready:
            play.end({play.ready.pop(chance.randrange(len(play.ready))): chance.choice(["completed", "skipped"])})
    before = dict(play.ended)
    play.fail_and_retry(chance)
    assert before.items() <= play.ended.items()
    while play.ready:
        play.end({play.ready.pop(chance.randrange(len(play.ready))): chance.choice(["completed", "skipped"])})
    assert play.ended.keys() == graph.dag_steps.keys()
    assert set(play.pending.values()) == {0}


@given(graphs(), st.randoms(use_true_random=False))
def test_without_skips_and_joins_of_a_few_the_order_makes_no_difference(graph: Graph, chance: random.Random) -> None:
    plain = Graph(DagStep(dag_step.name, dag_step.after) for dag_step in graph.dag_steps.values())
    play = Playing(plain)
    while play.ready:
        play.end({play.ready.pop(chance.randrange(len(play.ready))): "completed"})
    assert set(play.ended.values()) == {"completed"}
    assert len(play.released) == len(plain.dag_steps)


@given(graphs())
def test_the_order_of_any_graph_has_every_step_after_its_dependencies(graph: Graph) -> None:
    order = graph.order
    assert sorted(order) == sorted(graph.dag_steps)
    for place, name in enumerate(order):
        assert graph.ancestors(name) <= set(order[:place])


@given(graphs())
def test_any_graph_is_read_back_as_it_was(graph: Graph) -> None:
    assert Graph.from_text(graph.text).dag_steps == graph.dag_steps


# -- drawing ------------------------------------------------------------------------------------------------


def test_a_graph_is_drawn_with_its_edges_gates_and_errors() -> None:
    graph = Graph([one("pay", catch={"Declined": "tell"}), one("approve", "pay", kind=APPROVAL), one("tell")])
    assert mermaid(graph).splitlines() == [
        "flowchart TD", '    s0["pay"]', '    s1{{"approve"}}', '    s2["tell"]', "    s0 -. Declined .-> s2",
        "    s0 --> s1",
    ]  # fmt: skip


def test_a_graph_is_drawn_with_the_states_of_its_steps() -> None:
    text = mermaid(DIAMOND, {"a": "completed", "d": "waiting"})
    assert 's0["a<br/>completed"]' in text
    assert 's1["b"]' in text
    assert 's3["d<br/>waiting"]' in text


def test_a_name_with_quotes_does_not_break_the_drawing() -> None:
    assert """["say 'hello'"]""" in mermaid(Graph([one('say "hello"')]))
