"""The checkpointer: LangGraph's own suite on every database, and what that does not try."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

import stepfast
from stepfast import ConfigurationError, Context, PayloadError, RunFailed, Stepfast
from stepfast.langgraph import StepfastSaver
from stepfast.testing import Lab


@pytest.fixture(params=["postgres", "mariadb", "sqlite"])
async def app(request: pytest.FixtureRequest) -> AsyncIterator[Stepfast]:
    async with Stepfast(request.getfixturevalue(f"{request.param}_url")) as app:
        yield app


async def test_all_suites_of_langgraph_pass(app: Stepfast) -> None:
    @checkpointer_test(name="StepfastSaver")
    async def saver() -> AsyncGenerator[BaseCheckpointSaver[Any]]:
        yield StepfastSaver(app)

    report = await validate(saver)
    failures = {name: result.failures for name, result in report.results.items() if not result.passed}
    assert not failures
    assert len(report.results) == 8
    assert sum(result.tests_passed for result in report.results.values()) >= 81


def thread(name: str) -> Any:
    return {"configurable": {"thread_id": name}}


class Chat(TypedDict, total=False):
    said: Annotated[list[str], lambda old, new: old + new]
    approved: bool


def chat() -> Any:
    def answer(state: Chat) -> Chat:
        return {"said": [f"answer {len(state['said'])}"]}

    def approve(state: Chat) -> Chat:
        return {"approved": interrupt("may I?")}

    builder = StateGraph(Chat)
    builder.add_node("answer", answer)
    builder.add_node("approve", approve)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", "approve")
    builder.add_edge("approve", END)
    return builder


async def test_a_graph_continues_in_another_process(app: Stepfast) -> None:
    first = chat().compile(checkpointer=StepfastSaver(app))
    halted = await first.ainvoke({"said": ["hello"]}, thread("t-1"))
    assert [one.value for one in halted["__interrupt__"]] == ["may I?"]
    second = chat().compile(checkpointer=StepfastSaver(app))  # as after a restart: it knows only what is stored
    state = await second.ainvoke(Command(resume=True), thread("t-1"))
    assert state == {"said": ["hello", "answer 1"], "approved": True}
    history = [found async for found in second.aget_state_history(thread("t-1"))]
    assert [found.next for found in history] == [(), ("approve",), ("answer",), ("__start__",)]
    back = await second.ainvoke(None, history[2].config)  # from before the answer, as a fork
    assert back["said"] == ["hello", "answer 1"]


async def test_code_without_an_event_loop_has_the_same(app: Stepfast) -> None:
    saver = StepfastSaver(app)

    def talk() -> Any:
        graph = chat().compile(checkpointer=saver)
        graph.invoke({"said": ["hello"]}, thread("t-2"))
        graph.invoke(Command(resume=False), thread("t-2"))
        saver.copy_thread("t-2", "t-3")
        saver.prune(["t-2"])
        saver.delete_for_runs(["none"])
        counts = [len(list(saver.list(thread(name)))) for name in ("t-2", "t-3")]
        values = [graph.get_state(thread(name)).values for name in ("t-2", "t-3")]
        saver.delete_thread("t-3")
        return counts, values, saver.get_tuple(thread("t-3")), next(saver.list(None, limit=1)).config

    counts, values, gone, last = await asyncio.to_thread(talk)
    assert counts == [1, 4]
    assert values == [{"said": ["hello", "answer 1"], "approved": False}] * 2
    assert gone is None
    assert last["configurable"]["thread_id"] == "t-2"


class Log(TypedDict):
    lines: Annotated[list[str], DeltaChannel(lambda old, writes: old + [line for each in writes for line in each])]


async def test_pruning_keeps_the_changes_that_the_last_checkpoint_needs(sqlite_url: str) -> None:
    async def add(state: Log) -> Any:
        return {"lines": [f"line {len(state['lines'])}"]}

    builder = StateGraph(Log)
    builder.add_node("add", add)
    builder.add_edge(START, "add")
    async with Stepfast(sqlite_url) as app:
        saver = StepfastSaver(app)
        graph = builder.compile(checkpointer=saver)
        for _ in range(3):
            before = await graph.ainvoke({"lines": ["asked"]}, thread("t-4"))
        await saver.aprune(["t-4"])
        assert (await graph.aget_state(thread("t-4"))).values == before
        assert len(before["lines"]) == 6


async def test_threads_are_deleted_by_their_age(app: Stepfast) -> None:
    saver = StepfastSaver(app)
    for name in ("a", "b"):
        await saver.aput(thread(name), empty_checkpoint(), {}, {})
    assert await saver.adelete_older(3600) == 0
    assert await saver.adelete_older(0) == 2
    assert await saver.aget_tuple(thread("a")) is None


class Reversed:
    def encode(self, data: bytes) -> bytes:
        return data[::-1]

    decode = encode


async def test_what_is_stored_passes_through_the_codec(sqlite_url: str) -> None:
    async with Stepfast(sqlite_url, codec=Reversed()) as app:
        graph = chat().compile(checkpointer=StepfastSaver(app))
        await graph.ainvoke({"said": ["hello"]}, thread("t-5"))
        state = await graph.ainvoke(Command(resume=True), thread("t-5"))
        assert state["said"] == ["hello", "answer 1"]
    async with Stepfast(sqlite_url) as other:
        with pytest.raises(PayloadError, match="codec"):
            await StepfastSaver(other).aget_tuple(thread("t-5"))


class Anything:
    """What msgpack cannot write."""

    def __reduce__(self) -> Any:
        return (print, ("executed",))


async def test_bad_input_is_refused_by_name() -> None:
    async with Stepfast("sqlite://") as app:
        saver = StepfastSaver(app)
        for serde in (JsonPlusSerializer(pickle_fallback=True), pickle):
            with pytest.raises(ConfigurationError, match="no pickles"):
                StepfastSaver(app, serde=serde)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="application of Stepfast"):
            StepfastSaver("sqlite://")  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="thread_id"):
            await saver.aget_tuple({"configurable": {}})
        with pytest.raises(ConfigurationError, match="201 characters"):
            await saver.aput(thread("x" * 201), empty_checkpoint(), {}, {})
        with pytest.raises(ConfigurationError, match="keep_latest"):
            await saver.aprune(["t"], strategy="some")
        with pytest.raises(PayloadError, match="channel 'x' cannot be stored"):
            await saver.aput_writes(
                {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "c"}},
                [("x", Anything())],
                "1",
            )


async def test_a_checkpointer_is_refused_in_the_code_of_a_workflow() -> None:
    app = Stepfast("sqlite://")
    graph = chat().compile(checkpointer=StepfastSaver(app))

    @app.workflow
    async def ask(ctx: Context, text: str) -> Any:
        return await graph.ainvoke({"said": [text]}, thread("t-6"))

    @app.workflow
    def plain(ctx: stepfast.SyncContext, text: str) -> Any:
        return graph.invoke({"said": [text]}, thread("t-6"))

    async with Lab(app) as lab:
        for workflow in (ask, plain):
            with pytest.raises(RunFailed, match=r"durable\(graph\)"):
                await (await lab.start(workflow, "hello")).result()
