"""Runs of the OpenAI Agents SDK: every model call and tool call is a step, called once, whatever dies."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from agents import (
    Agent,
    ApplyPatchTool,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    SQLiteSession,
    ToolGuardrailFunctionOutput,
    function_tool,
    handoff,
    input_guardrail,
    set_tracing_disabled,
    tool_input_guardrail,
)
from agents.items import ModelResponse
from agents.mcp import MCPServerStdio
from agents.models.interface import Model
from agents.testing import ScriptedModel, assistant_message, function_call
from agents.usage import Usage

import stepfast
from stepfast import Context, RunFailed, Stepfast
from stepfast.openai_agents import Runner, wait_for_approvals
from stepfast.testing import Lab, crash_everywhere

set_tracing_disabled(True)

CALLS: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def no_calls() -> None:
    CALLS.clear()


class Answers(Model):
    """A model that answers by a function of what the tools have returned."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any) -> ModelResponse:
        CALLS["model"] += 1
        seen = {}
        if not isinstance(input, str):
            seen = {item["call_id"]: item["output"] for item in input if item.get("type") == "function_call_output"}
        return ModelResponse(output=self._answer(seen), usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        raise AssertionError("not streamed")


@function_tool
async def weather(city: str) -> str:
    """How warm it is."""
    CALLS[city] += 1
    await asyncio.sleep({"Rome": 0.02, "Oslo": 0}[city])  # they end in another order than they begin
    return f"{len(city)} degrees"


def two_cities(seen: dict[str, str]) -> list[Any]:
    if not seen:
        return [function_call("weather", {"city": city}, call_id=f"call-{city}") for city in ("Rome", "Oslo")]
    return [assistant_message(", ".join(f"{key} {value}" for key, value in sorted(seen.items())))]


def forecast_app() -> Stepfast:
    app = Stepfast("sqlite://")
    agent = Agent("forecast", model=Answers(two_cities), tools=[weather])

    @app.workflow
    async def ask(ctx: Context, question: str) -> str:
        result = await Runner.run(agent, question)
        return str(result.final_output)

    return app


ANSWER = "call-Oslo 4 degrees, call-Rome 4 degrees"


async def test_model_calls_and_parallel_tools_are_steps_called_once() -> None:
    async with Lab(forecast_app()) as lab:
        run = await lab.start("ask", "Where is it warm?")
        assert await run.result() == ANSWER
        assert CALLS == {"model": 2, "Rome": 1, "Oslo": 1}
        names = Counter(step.name for step in await run.steps())
        assert (names["forecast model"], names["tool weather"]) == (2, 2)


async def test_a_process_that_dies_anywhere_repeats_no_recorded_call() -> None:
    report = await crash_everywhere(forecast_app(), "ask", "Where is it warm?")
    assert (report.records, report.result) == (4, ANSWER)


async def test_outside_of_a_workflow_it_is_the_runner_of_the_sdk() -> None:
    agent = Agent("plain", model=Answers(two_cities), tools=[weather])
    assert (await Runner.run(agent, "?")).final_output == ANSWER
    assert (await asyncio.to_thread(Runner.run_sync, agent, "?")).final_output == ANSWER


async def test_a_handoff_is_durable_on_both_sides_also_in_circles() -> None:
    def first(seen: dict[str, str]) -> list[Any]:
        return [function_call("transfer_to_second", {}, call_id="over")]

    app = Stepfast("sqlite://")
    second = Agent[Any]("second", model=Answers(two_cities), tools=[weather])
    begin = Agent[Any]("first", model=Answers(first), handoffs=[handoff(second)])
    second.handoffs = [begin]

    def after_handoff(seen: dict[str, str]) -> list[Any]:
        return two_cities({key: value for key, value in seen.items() if key != "over"})

    second.model = Answers(after_handoff)

    @app.workflow
    async def ask(ctx: Context, question: str) -> str:
        return str((await Runner.run(begin, question)).final_output)

    report = await crash_everywhere(app, ask, "?")
    assert report.result == ANSWER


async def test_a_call_that_needs_approval_waits_for_a_signal() -> None:
    @function_tool(needs_approval=True)
    def refund(cents: int) -> str:
        """Pay money back."""
        CALLS[f"refund {cents}"] += 1
        return f"{cents} paid"

    def model(seen: dict[str, str]) -> list[Any]:
        if not seen:
            return [function_call("refund", {"cents": cents}, call_id=f"c{cents}") for cents in (1, 2)]
        return [assistant_message(str(sorted(seen.items())))]

    app = Stepfast("sqlite://")
    agent = Agent("support", model=Answers(model), tools=[refund])

    @app.workflow
    async def handle(ctx: Context, request: str) -> str:
        result = await Runner.run(agent, request)
        while result.interruptions:
            state = await wait_for_approvals(result, timeout=timedelta(days=3))
            result = await Runner.run(agent, state)
        return str(result.final_output)

    async def decide(lab: Lab, run: Any) -> None:
        await run.signal("approve:c1", True)
        await run.signal("approve:c2", "too much")
        await lab.settle()

    async with Lab(app) as lab:
        run = await lab.start(handle, "money back")
        assert (await run.info()).status == "waiting"
        await decide(lab, run)
        assert await run.result() == "[('c1', '1 paid'), ('c2', 'too much')]"
        assert CALLS == {"model": 2, "refund 1": 1}
    await crash_everywhere(app, handle, "money back", drive=decide)


async def test_guardrails_are_steps_called_once() -> None:
    @input_guardrail
    async def on_topic(context: Any, agent: Any, input: Any) -> GuardrailFunctionOutput:
        CALLS["guardrail"] += 1
        return GuardrailFunctionOutput(output_info={"seen": input}, tripwire_triggered=input == "off topic")

    @tool_input_guardrail
    def known_city(data: Any) -> ToolGuardrailFunctionOutput:
        CALLS["tool guardrail"] += 1
        if "Oslo" in data.context.tool_arguments:
            return ToolGuardrailFunctionOutput.reject_content("not known")
        return ToolGuardrailFunctionOutput.allow()

    @function_tool(tool_input_guardrails=[known_city])
    async def weather(city: str) -> str:
        """How warm it is."""
        CALLS[city] += 1
        return "warm"

    app = Stepfast("sqlite://")
    agent = Agent("guarded", model=Answers(two_cities), tools=[weather], input_guardrails=[on_topic])

    @app.workflow
    async def ask(ctx: Context, question: str) -> str:
        try:
            result = await Runner.run(agent, question)
        except InputGuardrailTripwireTriggered as error:
            answer = f"refused: {error.guardrail_result.output.output_info}"
        else:
            answer = str(result.final_output)
        await ctx.sleep(timedelta(days=1))  # what follows is a replay
        return answer

    async with Lab(app) as lab:
        run = await lab.start(ask, "Where is it warm?")
        await lab.advance(timedelta(days=2))
        assert await run.result() == "call-Oslo not known, call-Rome warm"
        assert CALLS == {"guardrail": 1, "model": 2, "tool guardrail": 2, "Rome": 1}
        run = await lab.start(ask, "off topic")
        await lab.advance(timedelta(days=2))
        assert await run.result() == "refused: {'seen': 'off topic'}"
        assert CALLS["guardrail"] == 2


async def test_events_of_the_model_go_to_a_stream_of_the_run() -> None:
    app = Stepfast("sqlite://")
    agent = Agent("teller", model=ScriptedModel([[assistant_message("It is warm.")]]))

    @app.workflow
    async def ask(ctx: Context, question: str) -> str:
        result = Runner.run_streamed(agent, question, stream="events")
        async for _ in result.stream_events():
            pass
        answer = str(result.final_output)
        await ctx.sleep(timedelta(days=1))  # what follows is a replay
        return answer

    async with Lab(app) as lab:
        run = await lab.start(ask, "?")
        await lab.advance(timedelta(days=2))
        assert await run.result() == "It is warm."
        kinds = [item.value["type"] async for item in run.stream("events")]
        assert kinds[-1] == "response.completed"
        assert "response.output_text.delta" in kinds


async def test_a_session_is_read_and_written_once() -> None:
    app = Stepfast("sqlite://")
    session = SQLiteSession("c-1")
    agent = Agent("chat", model=Answers(lambda seen: [assistant_message("Hello.")]))

    @app.workflow
    async def ask(ctx: Context, question: str) -> str:
        answer = str((await Runner.run(agent, question, session=session)).final_output)
        await ctx.sleep(timedelta(days=1))  # what follows is a replay
        return answer

    async with Lab(app) as lab:
        run = await lab.start(ask, "Hi.")
        await lab.advance(timedelta(days=2))
        assert await run.result() == "Hello."
        items: list[Any] = list(await session.get_items())
        assert [item["role"] for item in items] == ["user", "assistant"]


async def test_a_call_is_tried_again_where_that_may_help_and_only_there() -> None:
    def refused(status: int) -> openai.APIStatusError:
        response: Any = httpx.Response(status, request=httpx.Request("POST", "http://model"))
        return openai.APIStatusError("no", response=response, body=None)

    class Shaky(Answers):
        async def get_response(self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any) -> ModelResponse:
            answer = await super().get_response(system_instructions, input, *args, **kwargs)
            if input[0]["content"] == "wrong":
                raise refused(401)
            if CALLS["model"] < 3:
                raise refused(503)
            return answer

    app = Stepfast("sqlite://")
    agent = Agent("shaky", model=Shaky(lambda seen: [assistant_message("ok")]))

    @app.workflow
    async def ask(ctx: Context, question: str) -> str:
        return str((await Runner.run(agent, [{"role": "user", "content": question}])).final_output)

    async with Lab(app) as lab:
        busy = await lab.start(ask, "busy")
        await lab.advance(timedelta(hours=1))
        assert await busy.result() == "ok"
        assert CALLS["model"] == 3
        with pytest.raises(RunFailed, match="no"):
            await (await lab.start(ask, "wrong")).result()
        assert CALLS["model"] == 4


async def test_what_cannot_be_durable_is_refused_by_name() -> None:
    app = Stepfast("sqlite://")
    agent = Agent("misled", model=Answers(two_cities), tools=[weather])

    @app.workflow
    def plain(ctx: stepfast.SyncContext, question: str) -> str:
        return str(asyncio.run(Runner.run(agent, question)).final_output)

    @app.workflow
    async def blocking(ctx: Context, question: str) -> str:
        return str(Runner.run_sync(agent, question).final_output)

    class Editor:
        def create_file(self, operation: Any) -> Any: ...

        update_file = delete_file = create_file

    patcher = Agent("patcher", model=Answers(two_cities), tools=[ApplyPatchTool(editor=Editor())])

    @app.workflow
    async def patches(ctx: Context, question: str) -> str:
        return str((await Runner.run(patcher, question)).final_output)

    async with Lab(app) as lab:
        with pytest.raises(RunFailed, match=r"'apply_patch' .*a function tool that does the same"):
            await (await lab.start(patches, "?")).result()
        with pytest.raises(RunFailed, match="async def"):
            await (await lab.start(plain, "?")).result()
        with pytest.raises(RunFailed, match="run_sync"):
            await (await lab.start(blocking, "?")).result()


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

    def model(seen: dict[str, str]) -> list[Any]:
        if not seen:
            return [function_call("price", {"item": "book"}, call_id="c1")]
        return [assistant_message("priced")]

    environment = {"PRICED": str(priced), "PATH": os.environ["PATH"]}
    app = Stepfast("sqlite://")

    async with MCPServerStdio(
        {"command": sys.executable, "args": [str(script)], "env": environment}, name="shop"
    ) as server:
        agent = Agent("buyer", model=Answers(model), mcp_servers=[server])

        @app.workflow
        async def ask(ctx: Context, question: str) -> str:
            answer = str((await Runner.run(agent, question)).final_output)
            await ctx.sleep(timedelta(days=1))  # what follows is a replay
            return answer

        async with Lab(app) as lab:
            run = await lab.start(ask, "?")
            await lab.advance(timedelta(days=2))
            assert await run.result() == "priced"
            assert (CALLS["model"], priced.read_text()) == (2, "book\n")
            assert {"shop list_tools", "shop price"} <= {step.name for step in await run.steps()}
