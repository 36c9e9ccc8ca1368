"""Durable runs of the OpenAI Agents SDK: each model call, tool call and call of an MCP server is a recorded step.

``Runner`` takes the place of the SDK's own within workflows. Each operation is a step in a branch of its own that is
found again by what it is and by the id of the tool call, so that tools run side by side and replay the same. Outside of
a workflow it is the SDK's runner.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeVar, cast

from . import Backoff, Branches, ConfigurationError, Context, ContextMisuse, NonRetryableError, Stepfast, current
from . import stream as stream_of_step
from .conversations import Conversation, delete_older

try:
    import openai
    import pydantic
    from agents import Agent, Handoff, RunConfig, RunResult, RunResultStreaming, RunState
    from agents import Runner as PlainRunner
    from agents.guardrail import GuardrailFunctionOutput
    from agents.items import ModelResponse, TResponseInputItem, TResponseStreamEvent
    from agents.memory import Session, SessionABC, SessionSettings
    from agents.models.interface import Model, ModelProvider
    from agents.tool import ApplyPatchTool, ComputerTool, CustomTool, FunctionTool, LocalShellTool, ShellTool, Tool
    from agents.tool_context import ToolContext
    from agents.tool_guardrails import ToolGuardrailFunctionOutput
    from openai.types.responses import ResponseCompletedEvent
except ImportError as error:
    raise ImportError(
        "stepfast.openai_agents needs openai-agents 0.24 or later: pip install 'stepfast[openai-agents]'"
    ) from error

__all__ = ["Runner", "StepfastSession", "wait_for_approvals"]

T = TypeVar("T")

_RESPONSE = pydantic.TypeAdapter(ModelResponse)
_COMPLETED = pydantic.TypeAdapter(ResponseCompletedEvent)
_LOCAL = (ApplyPatchTool, ComputerTool, CustomTool, LocalShellTool)
"""Tools that the SDK executes in this process, by itself."""
_RETRYABLE_CLIENT_ERRORS = frozenset({408, 409, 425, 429})
"""Statuses below 500 that another try may not meet."""


@dataclasses.dataclass(frozen=True)
class _Steps:
    """Where the operations of one run of an agent have their branches, and with which options they are steps."""

    place: Branches
    retries: int
    timeout: float | timedelta | None
    backoff: Backoff | None
    tool_retries: int
    stream: str | None

    async def model(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        """Execute a model call as a step."""

        async def once() -> Any:
            try:
                return await call()
            except openai.APIStatusError as error:
                if error.status_code < 500 and error.status_code not in _RETRYABLE_CLIENT_ERRORS:
                    raise NonRetryableError(str(error)) from error
                raise

        options: dict[str, Any] = {"retries": self.retries, "timeout": self.timeout}
        if self.backoff is not None:
            options["backoff"] = self.backoff
        return await self._step("model", name, once, options)

    async def tool(self, key: str, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        """Execute a tool call as a step."""
        return await self._step(key, name, call, {"retries": self.tool_retries})

    async def _step(self, key: str, name: str, call: Callable[[], Awaitable[Any]], options: dict[str, Any]) -> Any:
        async def branch(ctx: Context) -> Any:
            return await ctx.options(record_arguments=False, **options).step(name, call)

        return await self.place.branch(key, branch)


def _dump(adapter: pydantic.TypeAdapter[Any], value: Any) -> Any:
    """A value as JSON from which the same value is made: with what was set, by the names that it is read by."""
    return adapter.dump_python(value, mode="json", by_alias=True, exclude_unset=True)


class _DurableModel(Model):
    """A model whose calls are steps."""

    def __init__(self, model: Model, agent: str, steps: _Steps) -> None:
        self._model = model
        self._name = f"{agent} model"
        self._steps = steps

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        """Call the model in a step."""

        async def call() -> Any:
            return _dump(_RESPONSE, await self._model.get_response(*args, **kwargs))

        return _RESPONSE.validate_python(await self._steps.model(self._name, call))

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[TResponseStreamEvent]:
        """Call the model in a step, which sends the events to the stream of the run; give the last one."""

        async def call() -> Any:
            out = stream_of_step(self._steps.stream) if self._steps.stream is not None else None
            completed = None
            async for event in self._model.stream_response(*args, **kwargs):
                if out is not None:
                    out.send(event.model_dump(mode="json", by_alias=True, exclude_unset=True))
                if isinstance(event, ResponseCompletedEvent):
                    completed = event
            if completed is None:
                raise RuntimeError("the model ended its stream without a completed response")
            return _dump(_COMPLETED, completed)

        yield _COMPLETED.validate_python(await self._steps.model(self._name, call))

    def get_retry_advice(self, request: Any) -> Any:
        """Ask the model."""
        return self._model.get_retry_advice(request)

    async def close(self) -> None:
        """Close the model."""
        await self._model.close()


class _DurableModels(ModelProvider):
    """Gives durable models."""

    def __init__(self, provider: ModelProvider, steps: _Steps) -> None:
        self._provider = provider
        self._steps = steps

    def get_model(self, model_name: str | None) -> Model:
        """Look the model up."""
        return _durable_model(self._provider.get_model(model_name), model_name or "default", self._steps)

    async def aclose(self) -> None:
        """Close the provider."""
        await self._provider.aclose()


def _durable_model(model: Model, agent: str, steps: _Steps) -> Model:
    return model if isinstance(model, _DurableModel) else _DurableModel(model, agent, steps)


class _DurableServer:
    """An MCP server whose calls are steps. It is otherwise the server that it stands for."""

    def __init__(self, server: Any, steps: _Steps) -> None:
        self._server = server
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    async def list_tools(self, *args: Any, **kwargs: Any) -> list[Any]:
        """List the tools in a step."""
        from mcp.types import Tool as McpTool

        async def call() -> Any:
            return [tool.model_dump(mode="json") for tool in await self._server.list_tools(*args, **kwargs)]

        name = f"{self._server.name} list_tools"
        return [McpTool.model_validate(tool) for tool in await self._steps.tool(name, name, call)]

    async def call_tool(self, tool_name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a tool in a step."""
        from mcp.types import CallToolResult

        async def call() -> Any:
            return (await self._server.call_tool(tool_name, *args, **kwargs)).model_dump(mode="json")

        name = f"{self._server.name} {tool_name}"
        return CallToolResult.model_validate(await self._steps.tool(name, name, call))


class StepfastSession(SessionABC):
    """A conversation in the database of an application, for ``Runner.run(agent, text, session=…)``.

    Within workflows what a run of an agent adds is added once, also if its process dies. A session stays until it is
    cleared, or deleted by ``delete_older``. Its items pass through the codec of the application.
    """

    def __init__(
        self, session_id: str, app: Stepfast, session_settings: SessionSettings | dict[str, Any] | None = None
    ) -> None:
        """Name the conversation.

        Args:
            session_id: Up to 200 characters.
            app: Its tables are made on first use, like those of runs.
            session_settings: The SDK's: ``limit``, how many of the last items a run of an agent gets.
        """
        if not isinstance(app, Stepfast):
            raise ConfigurationError(f"StepfastSession takes an application of Stepfast, not {type(app).__name__}")
        self._conversation = Conversation(app, session_id)
        self.session_id = session_id
        given = session_settings or {}
        self.session_settings = SessionSettings(**given) if isinstance(given, dict) else given

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the items in their order; with a limit the last ones."""
        settings = self.session_settings
        if limit is None and settings is not None:
            limit = settings.limit
        return await self._conversation.items(limit)

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add items to the end, in one transaction."""
        await self._conversation.add(items)

    async def pop_item(self) -> TResponseInputItem | None:
        """Take the last item off."""
        return cast("TResponseInputItem | None", await self._conversation.pop())

    async def clear_session(self) -> None:
        """Remove all items."""
        await self._conversation.clear()

    @staticmethod
    async def delete_older(app: Stepfast, older_than: float | timedelta) -> int:
        """Delete the sessions to which nothing was added for so long; how many."""
        return await delete_older(app, older_than)


class _InStep:
    """A session of ours for the steps of a runner, which may be executed again."""

    def __init__(self, session: StepfastSession) -> None:
        self._conversation = session._conversation
        self.get_items, self.clear_session = session.get_items, session.clear_session

    async def add_items(self, items: list[Any]) -> None:
        await self._conversation.add(items, once=True)

    async def pop_item(self) -> Any:
        return await self._conversation.pop(once=True)


class _DurableSession:
    """A session whose reads and writes are steps: a replay neither reads what came later, nor writes again."""

    def __init__(self, session: Any, steps: _Steps) -> None:
        self._session = session
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    async def get_items(self, limit: int | None = None) -> Any:
        """Read the conversation."""
        return await self._call("get_items", limit)

    async def add_items(self, items: list[Any]) -> None:
        """Add to it."""
        await self._call("add_items", items)

    async def pop_item(self) -> Any:
        """Take the last item."""
        return await self._call("pop_item")

    async def clear_session(self) -> None:
        """Remove all items."""
        await self._call("clear_session")

    async def _call(self, method: str, *args: Any) -> Any:
        name = f"session {method}"
        session = _InStep(self._session) if isinstance(self._session, StepfastSession) else self._session
        return await self._steps.tool(name, name, lambda: getattr(session, method)(*args))


def _durable_agent(agent: Agent[Any], steps: _Steps, known: dict[int, Agent[Any]]) -> Agent[Any]:
    """A copy of an agent whose model, tools, servers and handoffs are durable. Agents may hand over in circles."""
    if id(agent) in known:
        return known[id(agent)]
    changed = known[id(agent)] = agent.clone()
    if isinstance(agent.model, Model):
        changed.model = _durable_model(agent.model, agent.name, steps)
    changed.tools = [_durable_tool(tool, steps) for tool in agent.tools]
    changed.input_guardrails = _durable_guardrails(agent.input_guardrails, steps)
    changed.output_guardrails = _durable_guardrails(agent.output_guardrails, steps)
    changed.mcp_servers = [cast(Any, _DurableServer(server, steps)) for server in agent.mcp_servers]
    changed.handoffs = [_durable_handoff(handoff, steps, known) for handoff in agent.handoffs]
    return changed


def _durable_handoff(
    handoff: Agent[Any] | Handoff[Any, Any], steps: _Steps, known: dict[int, Agent[Any]]
) -> Agent[Any] | Handoff[Any, Any]:
    if isinstance(handoff, Agent):
        return _durable_agent(handoff, steps, known)
    invoke = handoff.on_invoke_handoff

    async def durable(*args: Any, **kwargs: Any) -> Any:
        return _durable_agent(await invoke(*args, **kwargs), steps, known)

    return dataclasses.replace(handoff, on_invoke_handoff=durable)


def _durable_tool(tool: Tool, steps: _Steps) -> Tool:
    if isinstance(tool, _LOCAL) or (isinstance(tool, ShellTool) and tool.executor is not None):
        raise ContextMisuse(
            f"tool {tool.name!r} ({type(tool).__name__}) is executed by the SDK itself, also on a replay: "
            "give the agent a function tool that does the same"
        )
    if not isinstance(tool, FunctionTool):
        return tool  # executed by the provider of the model, within its call
    invoke = tool.on_invoke_tool

    async def durable(context: ToolContext[Any], arguments: str) -> Any:
        async def call() -> Any:
            return _as_json(await invoke(context, arguments))

        return await steps.tool(context.tool_call_id, f"tool {tool.name}", call)

    before, after = (
        None if guardrails is None else _durable_guardrails(guardrails, steps)
        for guardrails in (tool.tool_input_guardrails, tool.tool_output_guardrails)
    )
    return dataclasses.replace(tool, on_invoke_tool=durable, tool_input_guardrails=before, tool_output_guardrails=after)


def _durable_guardrails(guardrails: list[Any], steps: _Steps) -> list[Any]:
    """Guardrails of an agent or of a tool whose functions are steps."""
    return [_durable_guardrail(guardrail, steps) for guardrail in guardrails]


def _durable_guardrail(guardrail: Any, steps: _Steps) -> Any:
    function, name = guardrail.guardrail_function, f"guardrail {guardrail.get_name()}"

    async def durable(*args: Any, **kwargs: Any) -> Any:
        async def call() -> Any:
            found = function(*args, **kwargs)
            found = await found if inspect.isawaitable(found) else found
            given = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
            return [type(found) is GuardrailFunctionOutput, {**given, "output_info": _as_json(found.output_info)}]

        of_agent, given = await steps.tool(name, name, call)
        return (GuardrailFunctionOutput if of_agent else ToolGuardrailFunctionOutput)(**given)

    return dataclasses.replace(guardrail, guardrail_function=durable, name=guardrail.get_name())


def _as_json(value: Any) -> Any:
    """What a tool returned, as the model is told it: structured outputs as mappings, all else as JSON or text."""
    if isinstance(value, pydantic.BaseModel):
        return value.model_dump(mode="json", exclude_none=True)
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    return value if value is None or isinstance(value, str | int | float | bool | dict) else str(value)


class Runner:
    """The SDK's runner, durable within workflows: ``result = await Runner.run(agent, question)``."""

    @classmethod
    async def run(
        cls,
        starting_agent: Agent[Any],
        input: Any,
        *,
        retries: int = 3,
        timeout: float | timedelta | None = 120,
        backoff: Backoff | None = None,
        tool_retries: int = 0,
        **options: Any,
    ) -> RunResult:
        """Run an agent to its end.

        Args:
            starting_agent: The agent that begins.
            input: What it is asked: a text, items, or the state of an interrupted run.
            retries: How often a model call is repeated that failed for a reason that may pass.
            timeout: How long one try of a model call may take.
            backoff: The pauses between tries.
            tool_retries: How often a tool call is repeated. A tool may have had its effect: by default it is not.
            options: Those of the SDK: ``context``, ``max_turns``, ``hooks``, ``run_config``, ``session`` and so on.
        """
        steps = _steps(retries, timeout, backoff, tool_retries, None)
        if steps is None:
            return await PlainRunner.run(starting_agent, input, **options)
        return await PlainRunner.run(_durable_agent(starting_agent, steps, {}), input, **_durable(options, steps))

    @classmethod
    def run_streamed(
        cls,
        starting_agent: Agent[Any],
        input: Any,
        *,
        stream: str | None = None,
        retries: int = 3,
        timeout: float | timedelta | None = 120,
        backoff: Backoff | None = None,
        tool_retries: int = 0,
        **options: Any,
    ) -> RunResultStreaming:
        """Run an agent whose model streams.

        The events of the model go to the stream of the run that ``stream`` names, as JSON, while the model is called.
        The result has the events of the agent, and of each model call the last one, the same on every replay.
        """
        steps = _steps(retries, timeout, backoff, tool_retries, stream)
        if steps is None:
            return PlainRunner.run_streamed(starting_agent, input, **options)
        return PlainRunner.run_streamed(_durable_agent(starting_agent, steps, {}), input, **_durable(options, steps))

    @classmethod
    def run_sync(cls, starting_agent: Agent[Any], input: Any, **options: Any) -> RunResult:
        """Run an agent outside of a workflow; within one it is refused."""
        if current() is not None:
            raise ContextMisuse(
                "Runner.run_sync is not durable; write the workflow as async def and await Runner.run(…)"
            )
        return PlainRunner.run_sync(starting_agent, input, **options)


def _steps(
    retries: int, timeout: float | timedelta | None, backoff: Backoff | None, tool_retries: int, stream: str | None
) -> _Steps | None:
    context = _context()
    return None if context is None else _Steps(context.branches(), retries, timeout, backoff, tool_retries, stream)


def _context() -> Context | None:
    context = current()
    if context is None or isinstance(context, Context):
        return context
    raise ContextMisuse(
        "Runner.run is durable in a workflow that is written as async def; this one is a plain def. Write `async def`, "
        "with `await Runner.run(…)`"
    )


def _durable(options: dict[str, Any], steps: _Steps) -> dict[str, Any]:
    given = options.get("run_config")
    config = given if isinstance(given, RunConfig) else RunConfig(**(given or {}))
    changes: dict[str, Any] = {"model_provider": _DurableModels(config.model_provider, steps)}
    for kind in ("input_guardrails", "output_guardrails"):
        if getattr(config, kind):
            changes[kind] = _durable_guardrails(getattr(config, kind), steps)
    if isinstance(config.model, Model):
        changes["model"] = _durable_model(config.model, "run_config", steps)
    session: Session | None = options.get("session")
    more = {} if session is None else {"session": _DurableSession(session, steps)}
    return {**options, **more, "run_config": dataclasses.replace(config, **changes)}


async def wait_for_approvals(
    result: RunResult | RunResultStreaming, *, timeout: float | timedelta | None = None
) -> RunState[Any]:
    """Wait until all tool calls that need approval are decided, by signals to the run.

    Each waits for the signal ``approve:ID``, ID being the id of the tool call: true, false, or a text that says why
    not. The state that this returns is the input of the next run: ``result = await Runner.run(agent, state)``.
    """
    context = _context()
    if context is None:
        raise ContextMisuse("wait_for_approvals waits for signals to a run: call it in a workflow, and not in a step")
    state = result.to_state()
    waiting = list(result.interruptions)
    names = [f"approve:{cast(Any, item.raw_item).call_id}" for item in waiting]
    answers = await context.gather(*(context.wait_signal(name, timeout=timeout) for name in names))
    for item, answer in zip(waiting, answers, strict=True):
        if answer is True:
            state.approve(item)
        else:
            state.reject(item, rejection_message=answer if isinstance(answer, str) and answer else None)
    return state
