"""Agents of pydantic-ai: every request and every tool call is a step, called once, whatever dies."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastmcp.client import Client
from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent, CallDeferred, DeferredToolRequests, ModelRetry, RunContext, Tool
from pydantic_ai.exceptions import ModelHTTPError, UserError
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

import stepfast
from stepfast import Context, RunFailed, Stepfast
from stepfast.pydantic_ai import StepfastDurability, wait_for_deferred
from stepfast.testing import Lab, crash_everywhere

CALLS: Counter[str] = Counter()
AT = datetime(2026, 1, 1, tzinfo=UTC)  # a response has a time, and records are compared


@pytest.fixture(autouse=True)
def no_calls() -> None:
    CALLS.clear()


def returned(messages: list[ModelMessage]) -> dict[str, Any]:
    """What tools have returned so far, by their calls' ids."""
    return {
        part.tool_call_id: part.content
        for message in messages
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    }


def weather_model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    CALLS["model"] += 1
    seen = returned(messages)
    if not seen:
        cities = ["Rome", "Oslo", "Lima"]
        return ModelResponse(
            parts=[ToolCallPart("weather", {"city": city}, f"call-{city}") for city in cities], timestamp=AT
        )
    return ModelResponse(
        parts=[TextPart(", ".join(f"{key}: {value}" for key, value in sorted(seen.items())))], timestamp=AT
    )


async def weather(ctx: RunContext[None], city: str) -> int:
    """How warm it is."""
    CALLS[city] += 1
    await asyncio.sleep({"Rome": 0.02, "Oslo": 0.01, "Lima": 0}[city])  # they end in another order than they begin
    return len(city)


def weather_app(**options: Any) -> Stepfast:
    app = Stepfast("sqlite://")
    agent = Agent(
        FunctionModel(weather_model), name="forecast", tools=[weather], capabilities=[StepfastDurability(**options)]
    )

    @app.workflow
    async def ask(ctx: Context, question: str) -> str:
        return (await agent.run(question)).output

    return app


ANSWER = "call-Lima: 4, call-Oslo: 4, call-Rome: 4"


async def test_requests_and_parallel_tool_calls_are_steps_called_once() -> None:
    app = weather_app()
    async with Lab(app) as lab:
        run = await lab.start("ask", "Where is it warm?")
        assert await run.result() == ANSWER
        assert CALLS == {"model": 2, "Rome": 1, "Oslo": 1, "Lima": 1}
        names = Counter(step.name for step in await run.steps() if not step.name.startswith("branch"))
        # They are recorded: another version of pydantic-ai or of this module must not change them.
        assert names == {
            "forecast__model.request": 2,
            "forecast__function_toolset__<agent>.call_tool:weather": 3,
        }


async def test_a_process_that_dies_anywhere_repeats_no_recorded_call() -> None:
    report = await crash_everywhere(weather_app(), "ask", "Where is it warm?")
    assert report.records == 5


async def test_outside_of_a_workflow_the_agent_is_as_without_the_capability() -> None:
    async def one_word(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        yield "Hello"

    agent = Agent(FunctionModel(weather_model), name="plain", tools=[weather], capabilities=[StepfastDurability()])
    assert (await agent.run("Where?")).output == ANSWER
    durability = StepfastDurability[None](stream="words")
    streaming = Agent(FunctionModel(stream_function=one_word), name="streaming", capabilities=[durability])
    assert (await streaming.run("?")).output == "Hello"


async def test_a_tool_that_asks_the_model_again_is_recorded_as_that() -> None:
    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        CALLS["model"] += 1
        if CALLS["model"] < 3:
            return ModelResponse(
                parts=[ToolCallPart("pick", {"number": CALLS["model"]}, f"c{CALLS['model']}")], timestamp=AT
            )
        return ModelResponse(parts=[TextPart("done")], timestamp=AT)

    def pick(number: int) -> int:
        CALLS["pick"] += 1
        if number == 1:
            raise ModelRetry("another one")
        return number

    app = Stepfast("sqlite://")
    agent = Agent(FunctionModel(model), name="picker", tools=[pick], capabilities=[StepfastDurability()])

    @app.workflow
    async def ask(ctx: Context, question: str) -> str:
        answer = (await agent.run(question)).output
        await ctx.sleep(timedelta(days=1))  # what follows is a replay
        return answer

    async with Lab(app) as lab:
        run = await lab.start(ask, "?")
        await lab.advance(timedelta(days=2))
        assert await run.result() == "done"
        assert CALLS == {"model": 3, "pick": 2}


async def test_a_request_is_tried_again_where_that_may_help_and_only_there() -> None:
    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        CALLS["model"] += 1
        if messages[0].parts[0].content == "busy" and CALLS["model"] < 3:  # type: ignore[union-attr]
            raise ModelHTTPError(503, "m")
        if messages[0].parts[0].content == "wrong":  # type: ignore[union-attr]
            raise ModelHTTPError(401, "m")
        return ModelResponse(parts=[TextPart("ok")], timestamp=AT)

    app = Stepfast("sqlite://")
    agent = Agent(FunctionModel(model), name="shaky", capabilities=[StepfastDurability(retries=3)])

    @app.workflow
    async def ask(ctx: Context, question: str) -> str:
        return (await agent.run(question)).output

    async with Lab(app) as lab:
        busy = await lab.start(ask, "busy")
        await lab.advance(timedelta(hours=1))
        assert await busy.result() == "ok"
        assert CALLS["model"] == 3
        wrong = await lab.start(ask, "wrong")
        with pytest.raises(RunFailed, match="401"):
            await wrong.result()
        assert CALLS["model"] == 4


async def test_events_go_to_a_stream_of_the_run() -> None:
    async def words(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
        CALLS["model"] += 1
        if not returned(messages):
            yield {0: DeltaToolCall("weather", '{"city": "Lima"}', tool_call_id="c1")}
            return
        for word in ("It ", "is ", "warm."):
            yield word

    app = Stepfast("sqlite://")
    durability = StepfastDurability[None](stream="agent")
    agent = Agent(FunctionModel(stream_function=words), name="teller", tools=[weather], capabilities=[durability])

    @app.workflow
    async def ask(ctx: Context, question: str) -> str:
        return (await agent.run(question)).output

    async with Lab(app) as lab:
        run = await lab.start(ask, "?")
        assert await run.result() == "It is warm."
        events = [item.value async for item in run.stream("agent")]
        text = "".join(
            event["part"]["content"] if event["event_kind"] == "part_start" else event["delta"]["content_delta"]
            for event in events
            if event["event_kind"] in ("part_start", "part_delta")
            and (event.get("part") or event.get("delta")).get(
                "part_kind", event.get("delta", {}).get("part_delta_kind")
            )
            == "text"
        )
        assert text == "It is warm."
        assert {"function_tool_call", "function_tool_result"} <= {event["event_kind"] for event in events}
        assert CALLS == {"model": 2, "Lima": 1}


async def test_a_call_that_needs_approval_waits_for_a_signal() -> None:
    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        CALLS["model"] += 1
        seen = returned(messages)
        if not seen:
            calls = [ToolCallPart("refund", {"cents": cents}, f"c{cents}") for cents in (1, 2)]
            return ModelResponse(parts=[*calls, ToolCallPart("ask_bank", {}, "bank")], timestamp=AT)
        return ModelResponse(parts=[TextPart(str(sorted(seen.items())))], timestamp=AT)

    def refund(cents: int) -> str:
        CALLS[f"refund {cents}"] += 1
        return f"{cents} paid"

    def ask_bank() -> str:
        raise CallDeferred

    app = Stepfast("sqlite://")
    agent = Agent(
        FunctionModel(model),
        name="support",
        tools=[Tool(refund, requires_approval=True), ask_bank],
        output_type=[str, DeferredToolRequests],
        capabilities=[StepfastDurability()],
    )

    @app.workflow
    async def handle(ctx: Context, question: str) -> str:
        result = await agent.run(question)
        while isinstance(result.output, DeferredToolRequests):
            decided = await wait_for_deferred(result.output, timeout=timedelta(days=3))
            result = await agent.run(message_history=result.all_messages(), deferred_tool_results=decided)
        return result.output

    async def decide(lab: Lab, run: Any) -> None:
        await run.signal("approve:c1", True)
        await run.signal("approve:c2", "too much")
        await run.signal("result:bank", "agreed")
        await lab.settle()

    async with Lab(app) as lab:
        run = await lab.start(handle, "money back")
        assert (await run.info()).status == "waiting"
        await decide(lab, run)
        assert await run.result() == "[('bank', 'agreed'), ('c1', '1 paid'), ('c2', 'too much')]"
        assert CALLS == {"model": 2, "refund 1": 1}
    await crash_everywhere(app, handle, "money back", drive=decide)


async def test_deferred_calls_are_decided_by_holders_of_tokens() -> None:
    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen = returned(messages)
        if not seen:
            calls = [ToolCallPart("refund", {"cents": cents}, f"c{cents}") for cents in (1, 2)]
            return ModelResponse(parts=[*calls, ToolCallPart("ask_bank", {}, "bank")], timestamp=AT)
        return ModelResponse(parts=[TextPart(str(sorted(seen.items())))], timestamp=AT)

    def refund(cents: int) -> str:
        CALLS[f"refund {cents}"] += 1
        return f"{cents} paid"

    def ask_bank() -> str:
        raise CallDeferred

    app = Stepfast("sqlite://")
    agent = Agent(
        FunctionModel(model),
        name="support",
        tools=[Tool(refund, requires_approval=True), ask_bank],
        output_type=[str, DeferredToolRequests],
        capabilities=[StepfastDurability()],
    )
    tokens: dict[str, str] = {}

    async def send(call: ToolCallPart, token: str) -> None:
        CALLS[f"sent {call.tool_call_id}"] += 1
        tokens[call.tool_call_id] = token

    @app.workflow
    async def handle(ctx: Context, question: str) -> str:
        result = await agent.run(question)
        assert isinstance(result.output, DeferredToolRequests)
        decided = await wait_for_deferred(result.output, send=send)
        result = await agent.run(message_history=result.all_messages(), deferred_tool_results=decided)
        assert isinstance(result.output, str)
        return result.output

    async with Lab(app) as lab:
        run = await lab.start(handle, "money back")
        await lab.complete(tokens["c1"], True)
        await lab.fail(tokens["c2"], "too much")
        await lab.complete(tokens["bank"], "agreed")
        await lab.settle()
        assert await run.result() == "[('bank', 'agreed'), ('c1', '1 paid'), ('c2', 'too much')]"
        assert CALLS == {"refund 1": 1, "sent c1": 1, "sent c2": 1, "sent bank": 1}


async def test_the_pause_of_a_provider_is_a_durable_sleep() -> None:
    class Background(FunctionModel):
        def continuation_delay(self, response: ModelResponse) -> float | None:
            return 7200.0

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        CALLS["model"] += 1
        state: Any = "suspended" if CALLS["model"] < 3 else "complete"
        parts = [TextPart("done")] if state == "complete" else []
        return ModelResponse(parts=parts, timestamp=AT, state=state, provider_response_id="job-1")

    app = Stepfast("sqlite://")
    agent = Agent(Background(model), name="slow", capabilities=[StepfastDurability()])

    @app.workflow
    async def ask(ctx: Context, question: str) -> str:
        return (await agent.run(question)).output

    async with Lab(app) as lab:
        run = await lab.start(ask, "?")
        assert ((await run.info()).status, (await run.info()).waiting_for) == ("waiting", "time")
        await lab.advance(timedelta(hours=5))
        assert await run.result() == "done"
        assert CALLS == {"model": 3}


async def test_a_tool_that_is_workflow_code_makes_durable_calls() -> None:
    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        CALLS["model"] += 1
        seen = returned(messages)
        if not seen:
            return ModelResponse(
                parts=[ToolCallPart("ship", {"item": item}, item) for item in ("book", "pen")], timestamp=AT
            )
        return ModelResponse(parts=[TextPart(str(seen))], timestamp=AT)

    app = Stepfast("sqlite://")

    @app.task
    async def deliver(item: str) -> str:
        CALLS[item] += 1
        return f"{item} delivered"

    async def ship(item: str) -> str:
        """Ship an item."""
        context = stepfast.current()
        assert isinstance(context, Context)
        await context.sleep(timedelta(days=2))
        return await context.call(deliver, item)

    agent = Agent(
        FunctionModel(model),
        name="shop",
        tools=[Tool(ship, metadata={"stepfast": False})],
        capabilities=[StepfastDurability()],
    )

    @app.workflow
    async def order(ctx: Context, what: str) -> str:
        return (await agent.run(what)).output

    async def wait(lab: Lab, run: Any) -> None:
        await lab.advance(timedelta(days=3))

    async with Lab(app) as lab:
        run = await lab.start(order, "both")
        assert (await run.info()).status == "waiting"
        await wait(lab, run)
        assert await run.result() == "{'book': 'book delivered', 'pen': 'pen delivered'}"
        assert CALLS == {"model": 2, "book": 1, "pen": 1}
    await crash_everywhere(app, order, "both", drive=wait)


async def test_a_result_that_is_too_large_fails_the_step_by_name_and_is_not_repeated() -> None:
    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        CALLS["model"] += 1
        return ModelResponse(parts=[TextPart("x" * 9_000_000)], timestamp=AT)

    app = Stepfast("sqlite://")
    agent = Agent(FunctionModel(model), name="windy", capabilities=[StepfastDurability(retries=5)])

    @app.workflow
    async def ask(ctx: Context, question: str) -> int:
        return len((await agent.run(question)).output)

    async with Lab(app) as lab:
        run = await lab.start(ask, "?")
        with pytest.raises(RunFailed, match=r"windy__model\.request"):
            await run.result()
        assert CALLS["model"] == 1


async def test_what_cannot_be_durable_is_refused_by_name() -> None:
    with pytest.raises(UserError, match="name"):
        Agent(FunctionModel(weather_model), capabilities=[StepfastDurability()])
    app = Stepfast("sqlite://")
    agent = Agent(FunctionModel(weather_model), name="misled", capabilities=[StepfastDurability()])

    @app.workflow
    def ask(ctx: stepfast.SyncContext, question: str) -> str:
        return asyncio.run(agent.run(question)).output

    spelt = Agent(
        FunctionModel(weather_model),
        name="spelt",
        tools=[Tool(weather, metadata={"stepfast": {"retires": 3}})],
        capabilities=[StepfastDurability()],
    )

    @app.workflow
    async def tell(ctx: Context, question: str) -> str:
        return (await spelt.run(question)).output

    async with Lab(app) as lab:
        with pytest.raises(RunFailed, match="async def"):
            await (await lab.start(ask, "?")).result()
        with pytest.raises(RunFailed, match="retires"):
            await (await lab.start(tell, "?")).result()


async def test_two_agents_side_by_side_have_a_branch_each() -> None:
    app = Stepfast("sqlite://")
    agent = Agent(FunctionModel(weather_model), name="twin", tools=[weather], capabilities=[StepfastDurability()])

    async def part(ctx: Context, question: str) -> str:
        return (await agent.run(question)).output

    @app.workflow
    async def ask(ctx: Context, question: str) -> list[str]:
        return list(await ctx.map(part, [question, question]))

    report = await crash_everywhere(app, ask, "?")
    assert report.records == 10


SERVER = '''
import os
from fastmcp import FastMCP

server = FastMCP("shop")


@server.tool
def price(item: str) -> int:
    """What it costs."""
    with open(os.environ["PRICED"], "a") as file:
        file.write(item + "\\n")
    return len(item)


server.run(show_banner=False)
'''


async def test_tools_of_an_mcp_server_over_stdio_are_steps(tmp_path: Path) -> None:
    script, priced = tmp_path / "server.py", tmp_path / "priced"
    script.write_text(SERVER)

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        CALLS["model"] += 1
        seen = returned(messages)
        if not seen:
            return ModelResponse(parts=[ToolCallPart("price", {"item": "book"}, "c1")], timestamp=AT)
        return ModelResponse(parts=[TextPart(f"{seen['c1']} cents")], timestamp=AT)

    transport = StdioTransport(sys.executable, [str(script)], env={"PRICED": str(priced), "PATH": os.environ["PATH"]})
    toolset = MCPToolset[None](Client(transport), id="shop")
    app = Stepfast("sqlite://")
    agent = Agent(FunctionModel(model), name="buyer", toolsets=[toolset], capabilities=[StepfastDurability()])

    @app.workflow
    async def ask(ctx: Context, question: str) -> str:
        answer = (await agent.run(question)).output
        await ctx.sleep(timedelta(days=1))  # what follows is a replay
        return answer

    async with Lab(app) as lab:
        run = await lab.start(ask, "?")
        await lab.advance(timedelta(days=2))
        assert await run.result() == "4 cents"
        assert (CALLS["model"], priced.read_text()) == (2, "book\n")
        names = {step.name for step in await run.steps()}
        assert {"buyer__mcp_server__shop.get_tools", "buyer__mcp_server__shop.call_tool"} <= names
