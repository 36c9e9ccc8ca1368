"""Durable agents of pydantic-ai: each model request and each tool call of a run is a recorded step.

``StepfastDurability`` is a capability of an agent. Within a workflow its operations are steps, each in a branch of its
own that is found again by the operation's name and the id of the tool call. So tools that run side by side replay the
same. Outside of a workflow the agent behaves as it does without the capability.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar, Literal, TypedDict, cast

from . import Backoff, Branches, CallbackFailed, Context, ContextMisuse, NonRetryableError, current
from . import stream as stream_of_step

try:
    import anyio
    import pydantic
    from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, ModelRetry, ToolApproved, ToolDenied
    from pydantic_ai.agent import EventStreamHandler
    from pydantic_ai.capabilities import WrapRunHandler, WrapToolExecuteHandler
    from pydantic_ai.durable_exec import (
        JSON_CODEC,
        BaseDurabilityCapability,
        DurabilityEngineSpec,
        DurableOperationId,
        JournalCallableOperationBackend,
        RoleBasedOperationConfig,
        conversation_id_from_run_id,
    )
    from pydantic_ai.exceptions import ModelHTTPError, UserError
    from pydantic_ai.messages import AgentStreamEvent, ToolCallPart
    from pydantic_ai.models import Model
    from pydantic_ai.run import AgentRunResult
    from pydantic_ai.tools import AgentDepsT, RunContext, ToolDefinition
except ImportError as error:
    raise ImportError(
        "stepfast.pydantic_ai needs pydantic-ai 2.66 or later: pip install 'stepfast[pydantic-ai]'"
    ) from error

__all__ = ["StepConfig", "StepfastDurability", "wait_for_deferred"]

_ENGINE = "Stepfast"
_KEY = "stepfast"

_RETRYABLE_CLIENT_ERRORS = frozenset({408, 409, 425, 429})
"""Statuses below 500 that another try may not meet."""


class StepConfig(TypedDict, total=False):
    """Options of the step that a tool call is: ``Tool(f, metadata={"stepfast": {"retries": 3}})``. In place of them
    ``False``: the tool is code of the workflow, and may make durable calls by ``stepfast.current()``."""

    retries: int
    timeout: float | timedelta | None
    backoff: Backoff


_PLACE: ContextVar[Branches | None] = ContextVar("stepfast_pydantic_ai_place", default=None)
"""Where the operations of the agent run that is under way have their branches."""


def _context() -> Context | None:
    """The context of the workflow that calls, if it can await."""
    context = current()
    if context is None or isinstance(context, Context):
        return context
    raise ContextMisuse(
        "an agent with StepfastDurability runs in a workflow that is written as async def; this one is a plain def. "
        "Write `async def`, with `await agent.run(…)`"
    )


def _place() -> Branches:
    place = _PLACE.get()
    assert place is not None, "a run of an agent asks for its conversation before it does anything else"
    return place


class _Backend(JournalCallableOperationBackend[StepConfig]):
    """Executes the operations of pydantic-ai as steps."""

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: StepConfig,
    ) -> object:
        """Execute an operation as a step in a branch of its own."""

        async def operation() -> Any:
            try:
                return await body()
            except UserError as error:
                raise NonRetryableError(str(error)) from error
            except ModelHTTPError as error:
                if error.status_code < 500 and error.status_code not in _RETRYABLE_CLIENT_ERRORS:
                    raise NonRetryableError(str(error)) from error
                raise

        async def branch(ctx: Context) -> Any:
            return await ctx.options(record_arguments=False, **config).step(name, operation)

        return await _place().branch(_branch_key(name, cache_key), branch)


def _branch_key(name: str, cache_key: tuple[object, ...]) -> str:
    """The key of an operation's branch: the id that the model gave a tool call, otherwise what the operation is."""
    for part in cache_key:
        if isinstance(part, RunContext) and part.tool_call_id:
            return part.tool_call_id
    return name.partition("__")[2].replace(".", "-") or name


def _unencodable(error: Exception) -> BaseException:
    return NonRetryableError(f"a result cannot be recorded as JSON: {error}")


@dataclass(init=False)
class StepfastDurability(BaseDurabilityCapability[AgentDepsT]):
    """Make the runs of an agent durable within workflows of Stepfast.

    ``agent = Agent("openai:gpt-5", name="support", capabilities=[StepfastDurability()])``, then ``await agent.run(…)``
    in a workflow. A process that dies continues with the first request or tool call that has no record.
    """

    engine_spec: ClassVar = DurabilityEngineSpec(
        engine_name=_ENGINE,
        durable_unit_noun="step",
        durable_container_noun="workflow",
        codec=JSON_CODEC,
        serialization_failure=_unencodable,
        wrapped_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        toolset_lifecycles={"function": "enter-never", "mcp": "enter-in-durable-unit", "dynamic": "enter-never"},
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        tool_config_key=_KEY,
    )

    def __init__(
        self,
        *,
        retries: int = 3,
        timeout: float | timedelta | None = 120,
        backoff: Backoff | None = None,
        tools: StepConfig | None = None,
        stream: str | None = None,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
        name: str | None = None,
    ) -> None:
        """Take the options of steps.

        Args:
            retries: How often a model request is repeated that failed for a reason that may pass.
            timeout: How long one try of a model request may take.
            backoff: The pauses between tries.
            tools: Options of the steps that tool calls are. Without them a tool call is not repeated, because it may
                have had its effect; metadata of a tool (``StepConfig``) win over them.
            stream: The name of a stream of the run that gets all events of the agent, as JSON.
            models: Further models, by the key that names them in ``agent.run(model=…)``.
            event_stream_handler: Called with the events of a request within its step, and with events of tools in steps
                of their own.
            name: What the names of all steps begin with; by default the agent's name. They are recorded: after a change
                unfinished runs do not find their records.
        """
        if stream is not None:
            event_stream_handler = _to_stream(stream, event_stream_handler)
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)
        self._model_config = StepConfig(retries=retries, timeout=timeout)
        if backoff is not None:
            self._model_config["backoff"] = backoff
        self._tool_config = tools or StepConfig()

    @property
    def in_durable_context(self) -> bool:
        """Whether code of a workflow is running, and not that of a step."""
        return _context() is not None

    def get_durable_operation_backend(self) -> _Backend:
        """Return what executes operations as steps."""
        config = RoleBasedOperationConfig[StepConfig](
            model=self._model_config,
            event=StepConfig(),
            capability=self._tool_config,
            tool=self._tool_config,
            resolve_tool=self._config_of_tool,
        )
        return _Backend(agent_name=self.name, default_model_id=self.default_model_id, config=config)

    def _toolset_base_config(self, kind: Any) -> StepConfig:
        return self._tool_config

    def _config_of_tool(
        self, operation_id: DurableOperationId, tool: object | None, tool_name: str
    ) -> StepConfig | Literal[False]:
        resolved = self._build_resolve_tool_config(self._tool_config)(cast(Any, tool), tool_name)
        return False if resolved is False else _checked(cast(Any, resolved), tool_name)

    def _normalize_unit_config(self, config: Any) -> Any:
        return _checked(config, "") if config else StepConfig()

    def get_default_run_id(self) -> str | None:
        """Return an id that is the same on every replay."""
        context = _context()
        return None if context is None else str(context.uuid())

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """Derive the conversation from the run. Every run of an agent asks for it as it begins, still in the task of
        the workflow: so here its operations are given their place."""
        context = _context()
        if context is None:
            return None
        _PLACE.set(context.branches())
        return conversation_id_from_run_id(run_id)

    async def get_run_start_time(self, run_id: str) -> datetime | None:
        """Return the database's time, the same on every replay."""
        context = _context()
        return None if context is None else context.now()

    async def wrap_run(self, ctx: RunContext[AgentDepsT], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        """Emit events in an order that is the same on every replay, and let waits of the agent free the worker."""
        if not self.in_durable_context:
            return await handler()
        agent = self.agent
        assert agent is not None
        with agent.parallel_tool_call_execution_mode("parallel_ordered_events"), _durable_sleep():
            return await super().wrap_run(ctx, handler=handler)

    async def wrap_tool_execute(
        self,
        ctx: RunContext[AgentDepsT],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: WrapToolExecuteHandler,
    ) -> Any:
        """Give a tool that is code of the workflow a branch of its own, so that it can make durable calls."""
        if (tool_def.metadata or {}).get(_KEY) is not False or not self.in_durable_context:
            return await handler(args)

        async def branch(ctx: Context) -> Any:
            return await handler(args)

        return await _place().branch(call.tool_call_id, branch)


def _checked(config: Mapping[str, Any], tool: str) -> StepConfig:
    unknown = sorted(set(config) - set(StepConfig.__annotations__))
    if unknown:
        raise ContextMisuse(
            f"tool {tool!r} has metadata {_KEY!r} with {', '.join(map(repr, unknown))}; known are "
            f"{', '.join(map(repr, StepConfig.__annotations__))}, or False in place of all"
        )
    return cast(StepConfig, dict(config))


@contextmanager
def _durable_sleep() -> Generator[None]:
    async def sleep(seconds: float) -> None:
        if _context() is None:
            await anyio.sleep(max(seconds, 0))
            return

        async def branch(ctx: Context) -> None:
            await ctx.sleep(max(seconds, 0))

        await _place().branch("sleep", branch)

    with Agent.using_sleep(sleep):
        yield


_EVENT: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(AgentStreamEvent)


def _to_stream(name: str, then: EventStreamHandler[Any] | None) -> EventStreamHandler[Any]:
    """A handler that sends each event to a stream of the run, and passes it on."""

    async def handle(ctx: RunContext[Any], events: AsyncIterable[AgentStreamEvent]) -> None:
        try:
            out = stream_of_step(name)
        except ContextMisuse:
            out = None  # outside of a workflow there is no run whose stream it could be

        async def sent() -> Any:
            async for event in events:
                if out is not None:
                    out.send(_EVENT.dump_python(event, mode="json"))
                yield event

        if then is not None:
            await then(ctx, sent())
            return
        async for _ in sent():
            pass

    return handle


async def wait_for_deferred(
    requests: DeferredToolRequests,
    *,
    timeout: float | timedelta | None = None,
    send: Callable[[ToolCallPart, str], Awaitable[None]] | None = None,
) -> DeferredToolResults:
    """Wait until all calls that an agent has deferred are decided, by signals to the run.

    A call that needs approval waits for the signal ``approve:ID``: true, false, or a text that says why not. A call
    that is executed elsewhere waits for ``result:ID``: what it returned. ID is the id of the tool call. The results go
    to ``agent.run(deferred_tool_results=…, message_history=…)``.

    With ``send``, an ``async def`` of the call and a token, the calls wait for callbacks instead of signals: it is a
    step, and gives the token to whom it takes to decide. A callback that fails denies an approval, and lets the model
    correct a call that is executed elsewhere.
    """
    context = _context()
    if context is None:
        raise ContextMisuse("wait_for_deferred waits for signals to a run: call it in a workflow, and not in a step")
    results = DeferredToolResults()
    approve = [part.tool_call_id for part in requests.approvals]
    execute = [part.tool_call_id for part in requests.calls]
    names = [*(f"approve:{call}" for call in approve), *(f"result:{call}" for call in execute)]
    if send is None:
        answers: Sequence[Any] = await context.gather(*(context.wait_signal(name, timeout=timeout) for name in names))
    else:
        parts = [*requests.approvals, *requests.calls]
        called = [
            context.branch(_called_back, name, part, send, timeout) for name, part in zip(names, parts, strict=True)
        ]
        answers = await context.gather(*called)
    results.approvals.update(zip(approve, map(_approval, answers), strict=False))
    results.calls.update(zip(execute, answers[len(approve) :], strict=True))
    return results


async def _called_back(
    ctx: Context,
    name: str,
    call: ToolCallPart,
    send: Callable[[ToolCallPart, str], Awaitable[None]],
    timeout: float | timedelta | None,
) -> Any:
    """What a callback for a deferred call is completed with."""
    callback = await ctx.callback(name, timeout=timeout)

    async def give() -> None:
        await send(call, callback.token)

    await ctx.options(record_arguments=False).step(f"send {name}", give)
    try:
        return await callback.result()
    except CallbackFailed as failed:
        said = failed.message
        return said if name.startswith("approve:") else ModelRetry(said)


def _approval(answer: Any) -> ToolApproved | ToolDenied:
    if answer is True:
        return ToolApproved()
    return ToolDenied(answer) if isinstance(answer, str) and answer else ToolDenied()
