"""Graphs within workflows: each node is a step that is executed once, whatever dies."""

from __future__ import annotations

import asyncio
import operator
from collections import Counter
from datetime import timedelta
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.func import entrypoint
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, RetryPolicy, Send, interrupt

import stepfast
from stepfast import ConfigurationError, Context, RunFailed, Stepfast
from stepfast.langgraph import StepfastSaver, durable
from stepfast.testing import Lab, crash_everywhere

CALLS: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def no_calls() -> None:
    CALLS.clear()


class State(TypedDict, total=False):
    cities: list[str]
    city: str
    found: Annotated[list[str], operator.add]
    answer: str


class Found(TypedDict):
    found: Annotated[list[str], operator.add]


async def plan(state: State) -> Any:
    CALLS["plan"] += 1
    return {"cities": ["Rome", "Oslo"]}


async def weather(state: State) -> Any:
    CALLS[state["city"]] += 1
    await asyncio.sleep({"Rome": 0.02, "Oslo": 0}[state["city"]])  # they end in another order than they begin
    return {"found": [f"{state['city']} {len(state['city'])}"]}


def conclude(state: State) -> Any:
    CALLS["conclude"] += 1
    return Command(update={"answer": ", ".join(state["found"])}, goto=END)


def each_city(state: State) -> list[Send]:
    return [Send("weather", {"city": city}) for city in state["cities"]]


def forecast() -> Any:
    builder = StateGraph(State)
    builder.add_node("plan", plan)
    builder.add_node("weather", weather)
    builder.add_node("conclude", conclude)
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", each_city, ["weather"])
    builder.add_edge("weather", "conclude")
    return builder


def forecast_app() -> Stepfast:
    app = Stepfast("sqlite://")
    graph = forecast().compile()

    @app.workflow
    async def ask(ctx: Context, question: str) -> str:
        return str((await durable(graph).ainvoke({}))["answer"])

    return app


async def test_nodes_are_steps_called_once_side_by_side() -> None:
    async with Lab(forecast_app()) as lab:
        run = await lab.start("ask", "?")
        assert await run.result() == "Rome 4, Oslo 4"
        assert CALLS == {"plan": 1, "Rome": 1, "Oslo": 1, "conclude": 1}
        assert Counter(step.name for step in await run.steps()) == {
            "node plan": 1, "node weather": 2, "node conclude": 1,
        }  # fmt: skip


async def test_a_process_that_dies_anywhere_repeats_no_recorded_node() -> None:
    report = await crash_everywhere(forecast_app(), "ask", "?")
    assert (report.records, report.result) == (4, "Rome 4, Oslo 4")


async def test_outside_of_a_workflow_it_is_the_graph_itself() -> None:
    assert (await durable(forecast().compile()).ainvoke({}))["answer"] == "Rome 4, Oslo 4"


def approvals() -> Any:
    async def review(state: State) -> Any:
        CALLS[f"review {state['city']}"] += 1
        first = interrupt({"city": state["city"], "ask": "go?"})
        second = interrupt("how?") if first is True else "not at all"
        return {"found": [f"{state['city']} {second}"]}

    inner = StateGraph(State, output_schema=Found)
    inner.add_node("review", review)
    inner.add_edge(START, "review")
    builder = StateGraph(State)
    builder.add_node("plan", plan)
    builder.add_node("trip", inner.compile())
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", lambda state: [Send("trip", {"city": c}) for c in state["cities"]], ["trip"])
    return builder.compile()


async def test_interrupts_wait_for_signals_also_in_graphs_that_are_nodes() -> None:
    app = Stepfast("sqlite://")
    graph = approvals()

    @app.workflow
    async def travel(ctx: Context, question: str) -> list[str]:
        state = await durable(graph, interrupt_timeout=timedelta(days=9)).ainvoke({})
        return sorted(state["found"])

    async def decide(lab: Lab, run: Any) -> None:
        await run.signal("interrupt:trip:2", False)
        await run.signal("interrupt:trip", True)
        await lab.settle()
        await run.signal("interrupt:trip", "by train")
        await lab.settle()

    async with Lab(app) as lab:
        run = await lab.start(travel, "?")
        assert (await run.info()).status == "waiting"
        asked = (await run.values())["interrupts"]
        assert asked == {"trip": {"city": "Rome", "ask": "go?"}, "trip:2": {"city": "Oslo", "ask": "go?"}}
        await decide(lab, run)
        assert await run.result() == ["Oslo not at all", "Rome by train"]
        assert CALLS == {"plan": 1, "review Rome": 3, "review Oslo": 2}
        assert (await run.values())["interrupts"] == {}
    report = await crash_everywhere(app, travel, "?", drive=decide)
    assert report.result == ["Oslo not at all", "Rome by train"]


async def test_a_thread_is_remembered_over_runs(sqlite_url: str) -> None:
    async def answer(state: MessagesState) -> Any:
        return {"messages": [AIMessage(f"answer {len(state['messages'])}")]}

    app = Stepfast(sqlite_url)
    builder = StateGraph(MessagesState)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    graph = builder.compile(checkpointer=StepfastSaver(app))

    @app.workflow
    async def chat(ctx: Context, text: str) -> list[str]:
        thread: Any = {"configurable": {"thread_id": "c-1"}}
        state = await durable(graph).ainvoke({"messages": [HumanMessage(text)]}, thread)
        await ctx.sleep(timedelta(days=1))  # what follows is a replay
        return [message.content for message in state["messages"]]

    async with app, app.worker():
        first = await app.start(chat, "hello")
        while (await graph.aget_state({"configurable": {"thread_id": "c-1"}})).values == {}:
            await asyncio.sleep(0.01)
        assert (await first.info()).status != "failed"
        second = await app.start(chat, "and now?")
        while len((await graph.aget_state({"configurable": {"thread_id": "c-1"}})).values["messages"]) < 4:
            await asyncio.sleep(0.01)
        for run in (first, second):
            await run.cancel()
        state = await graph.aget_state({"configurable": {"thread_id": "c-1"}})
        assert [message.content for message in state.values["messages"]] == [
            "hello", "answer 1", "and now?", "answer 3",
        ]  # fmt: skip


async def test_what_nodes_write_goes_to_a_stream_of_the_run() -> None:
    async def work(state: State) -> Any:
        write = get_stream_writer()
        for percent in (0, 100):
            write({"percent": percent})
        return {"answer": "done"}

    app = Stepfast("sqlite://")
    builder = StateGraph(State)
    builder.add_node("work", work)
    builder.add_edge(START, "work")
    graph = builder.compile()

    @app.workflow
    async def ask(ctx: Context, question: str) -> str:
        state = await durable(graph, stream="progress").ainvoke({})
        await ctx.sleep(timedelta(days=1))  # what follows is a replay
        return str(state["answer"])

    async with Lab(app) as lab:
        run = await lab.start(ask, "?")
        await lab.advance(timedelta(days=2))
        assert await run.result() == "done"
        assert [item.value["percent"] async for item in run.stream("progress")] == [0, 100]


async def test_policies_of_nodes_are_those_of_their_steps() -> None:
    async def busy(state: State) -> Any:
        CALLS["busy"] += 1
        if CALLS["busy"] < 3:
            raise ConnectionError("busy")
        return {"answer": "ok"}

    async def wrong(state: State) -> Any:
        CALLS["wrong"] += 1
        raise ValueError("no such thing")

    async def later(state: State) -> Any:
        context = stepfast.current()
        assert isinstance(context, Context)
        await context.sleep(timedelta(hours=5))
        return {"found": ["late"]}

    builder = StateGraph(State)
    policy = RetryPolicy(max_attempts=3, retry_on=ConnectionError)
    builder.add_node("busy", busy, retry_policy=policy)
    builder.add_node("wrong", wrong, retry_policy=policy)
    builder.add_node("later", later, metadata={"stepfast": False})
    builder.add_edge(START, "later")
    builder.add_conditional_edges(START, lambda state: state["city"], ["busy", "wrong"])
    graph = builder.compile()
    app = Stepfast("sqlite://")

    @app.workflow
    async def ask(ctx: Context, which: str) -> Any:
        return (await durable(graph).ainvoke({"city": which}))["found"]

    async with Lab(app) as lab:
        run = await lab.start(ask, "busy")
        assert (await run.info()).status == "waiting"
        await lab.advance(timedelta(hours=6))
        assert await run.result() == ["late"]
        with pytest.raises(RunFailed, match="no such thing"):
            await (await lab.start(ask, "wrong")).result()
        assert CALLS == {"busy": 3, "wrong": 1}


async def test_what_cannot_be_durable_is_refused_by_name() -> None:
    @entrypoint()
    async def functional(text: str) -> str:
        return text

    def compiled(**options: Any) -> Any:
        return forecast().compile(**options)

    late = compiled()
    late.step_timeout = 1
    node = StateGraph(State)
    node.add_node("plan", plan, metadata={"stepfast": {"retry": 3}})
    node.add_edge(START, "plan")
    outer = StateGraph(State)
    outer.add_node("inner", compiled(checkpointer=InMemorySaver()))
    outer.add_edge(START, "inner")
    refused: list[tuple[Any, str]] = [
        (functional, "@entrypoint"),
        (late, "step_timeout"),
        (compiled(interrupt_before=["plan"]), "interrupt_before"),
        (node.compile(), "'retry'"),
        (outer.compile(), "'inner'"),
    ]
    for graph, said in refused:
        with pytest.raises(ConfigurationError, match=said):
            durable(graph)

    with pytest.raises(AttributeError, match=r"ainvoke.*stream="):
        durable(compiled()).astream({})

    async def hidden(state: State) -> Any:
        return await approvals().ainvoke({})

    builder = StateGraph(State)
    builder.add_node("hidden", hidden)
    builder.add_edge(START, "hidden")
    app, nested = Stepfast("sqlite://"), builder.compile()

    @app.workflow
    async def ask(ctx: Context, question: str) -> Any:
        return await durable(nested).ainvoke({})

    @app.workflow
    def plain(ctx: stepfast.SyncContext, question: str) -> Any:
        return asyncio.run(durable(nested).ainvoke({}))

    async with Lab(app) as lab:
        for workflow, said in ((ask, "add_node"), (plain, "async def")):
            with pytest.raises(RunFailed, match=said):
                await (await lab.start(workflow, "?")).result()
