"""LangGraph on the database of an application: a checkpointer, and graphs whose nodes are recorded steps.

``StepfastSaver`` is a checkpointer for graphs that are called outside of workflows. Within a workflow
``await durable(graph).ainvoke(…)`` executes each node as a step, in a branch of its own that is found again by where
the node is in the graph, and waits for signals where nodes interrupt.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar, cast

from . import (
    Backoff,
    Branches,
    ConfigurationError,
    Context,
    ContextMisuse,
    NonRetryableError,
    PayloadError,
    Stepfast,
    current,
)
from . import stream as stream_of_step
from .checkpoints import Checkpoint as StoredCheckpoint
from .checkpoints import Checkpoints, Loaded, Write

try:
    from langchain_core.runnables import Runnable, RunnableConfig
    from langchain_core.runnables.config import var_child_runnable_config
    from langgraph.channels.delta import DeltaChannel
    from langgraph.checkpoint.base import (
        WRITES_IDX_MAP,
        BaseCheckpointSaver,
        ChannelVersions,
        Checkpoint,
        CheckpointMetadata,
        CheckpointTuple,
        get_checkpoint_id,
        get_checkpoint_metadata,
    )
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.checkpoint.serde.base import SerializerProtocol
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
    from langgraph.errors import GraphInterrupt, ParentCommand
    from langgraph.graph.state import CompiledStateGraph
    from langgraph.pregel import Pregel
    from langgraph.types import Command, Interrupt, RetryPolicy
except ImportError as error:
    raise ImportError("stepfast.langgraph needs langgraph 1.2 or later: pip install 'stepfast[langgraph]'") from error

__all__ = ["DurableGraph", "StepfastSaver", "durable"]

T = TypeVar("T")

_PICKLES = ("pickle", "cloudpickle", "dill")
"""Modules that can be given for a serializer, and must not."""
_PAGE = 20
"""Checkpoints whose values are loaded at once."""


class _Serializer:
    """Values as JSON that any database keeps: what the serializer of LangGraph makes of them, with its type."""

    def __init__(self, serde: SerializerProtocol) -> None:
        self._serde = serde
        inner: Any = serde
        while inner is not None:
            if getattr(inner, "pickle_fallback", False) or getattr(inner, "__name__", "") in _PICKLES:
                raise ConfigurationError(
                    "StepfastSaver stores no pickles, because reading one executes what it says: pass a serde without "
                    "pickle_fallback=True, and give the states of the graph types that msgpack can write"
                )
            inner = getattr(inner, "serde", None)

    def dump(self, value: Any, what: str) -> list[str]:
        """A value as its type and a text."""
        try:
            kind, data = self._serde.dumps_typed(value)
        except (TypeError, ValueError) as error:
            raise PayloadError(f"{what} cannot be stored: {error}") from None
        self._refuse_pickle(kind, what)
        return [kind, base64.b64encode(data).decode("ascii")]

    def load(self, stored: Any, what: str) -> Any:
        """The value."""
        kind, text = stored
        self._refuse_pickle(kind, what)
        return self._serde.loads_typed((kind, base64.b64decode(text)))

    def _refuse_pickle(self, kind: str, what: str) -> None:
        if kind.partition("+")[0] == "pickle":
            raise PayloadError(f"{what} is a pickle, which StepfastSaver neither writes nor reads")


class StepfastSaver(BaseCheckpointSaver[str]):
    """A checkpointer in the database of an application: ``builder.compile(checkpointer=StepfastSaver(app))``.

    Checkpoints belong to threads, not to runs, and stay until they are deleted: by ``delete_thread``, ``prune``,
    ``delete_for_runs`` or ``adelete_older``.
    """

    def __init__(self, app: Stepfast, *, serde: SerializerProtocol | None = None) -> None:
        """Keep checkpoints with an application.

        Args:
            app: Its tables are made on first use, like those of runs.
            serde: What makes bytes of values, by default LangGraph's own by msgpack. One that may write pickles is
                refused. Everything passes through the codec of the application too.
        """
        if not isinstance(app, Stepfast):
            raise ConfigurationError(f"StepfastSaver takes an application of Stepfast, not {type(app).__name__}")
        super().__init__(serde=serde)
        _Serializer(self.serde)
        self._checkpoints = Checkpoints(app)

    def get_next_version(self, current: Any, channel: None) -> str:
        """Return a version that no fork of the thread has made too."""
        number = int(str(current).partition(".")[0]) if current is not None else 0
        return f"{number + 1:032}.{random.random():016}"

    # -- reading -----------------------------------------------------------------------------------------------------

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint, or the last one of its thread."""
        thread, ns = _place(config)
        found = await self._checkpoints.get(thread, ns, get_checkpoint_id(config))
        return None if found is None else self._tuple(found)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Give checkpoints, the newest first."""
        given = config["configurable"] if config else {}
        ids = (given.get("thread_id"), given.get("checkpoint_ns"))
        wanted = get_checkpoint_id(config) if config else None
        page: list[StoredCheckpoint] = []
        left = limit
        if left is not None and left <= 0:
            return
        async for checkpoint in self._checkpoints.listed(*ids, get_checkpoint_id(before) if before else None):
            if wanted is not None and checkpoint.id != wanted:
                continue
            if filter and not self._fits(checkpoint, filter):
                continue
            page.append(checkpoint)
            if len(page) == min(_PAGE, left or _PAGE):
                for loaded in await self._checkpoints.load(page):
                    yield self._tuple(loaded)
                left = None if left is None else left - len(page)
                page = []
                if left == 0:
                    return
        for loaded in await self._checkpoints.load(page):
            yield self._tuple(loaded)

    def _fits(self, checkpoint: StoredCheckpoint, filter: dict[str, Any]) -> bool:
        metadata = self._load(checkpoint.value["metadata"], "metadata")
        return all(name in metadata and metadata[name] == value for name, value in filter.items())

    def _tuple(self, loaded: Loaded) -> CheckpointTuple:
        it = loaded.checkpoint
        checkpoint = cast(Checkpoint, {
            **self._load(it.value["checkpoint"], "a checkpoint"),
            "channel_versions": dict(it.versions),
            "channel_values": {name: self._load(value, f"channel {name!r}") for name, value in loaded.values.items()},
        })  # fmt: skip
        return CheckpointTuple(
            _config(it.thread, it.ns, it.id),
            checkpoint,
            cast(CheckpointMetadata, self._load(it.value["metadata"], "metadata")),
            None if it.parent is None else _config(it.thread, it.ns, it.parent),
            [(write.task, write.channel, self._load(write.value, write.channel)) for write in loaded.writes],
        )

    # -- writing -----------------------------------------------------------------------------------------------------

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint, with the new values of its channels, in one transaction."""
        thread, ns = _place(config)
        values = checkpoint["channel_values"]
        rest = {key: value for key, value in checkpoint.items() if key not in ("channel_values", "channel_versions")}
        known = get_checkpoint_metadata(config, metadata)
        run = known.get("run_id")
        stored = StoredCheckpoint(
            thread, ns, checkpoint["id"], get_checkpoint_id(config), None if run is None else str(run),
            checkpoint["channel_versions"],
            {"checkpoint": self._dump(rest, "a checkpoint"), "metadata": self._dump(known, "metadata")},
        )  # fmt: skip
        new = [
            (channel, version, self._dump(values[channel], f"channel {channel!r}"))
            for channel, version in new_versions.items()
            if channel in values
        ]
        await self._checkpoints.put(stored, new)
        return _config(thread, ns, checkpoint["id"])

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task has written."""
        thread, ns = _place(config)
        rows = [
            Write(
                task_id,
                task_path,
                WRITES_IDX_MAP.get(channel, number),
                channel,
                self._dump(value, f"channel {channel!r}"),
            )
            for number, (channel, value) in enumerate(writes)
        ]
        replace = all(channel in WRITES_IDX_MAP for channel, _ in writes)
        await self._checkpoints.put_writes(thread, ns, config["configurable"]["checkpoint_id"], rows, replace)

    # -- deleting ----------------------------------------------------------------------------------------------------

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete all checkpoints of a thread."""
        await self._checkpoints.delete_threads([str(thread_id)])

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that runs of graphs have made."""
        await self._checkpoints.delete_runs([str(run) for run in run_ids])

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all of a thread into another."""
        await self._checkpoints.copy(str(source_thread_id), str(target_thread_id))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete checkpoints of threads: all but the last of each ns (``keep_latest``), or all (``delete``). Of
        channels that are kept as changes, what the last ones need stays."""
        threads = [str(thread) for thread in thread_ids]
        if strategy == "delete":
            await self._checkpoints.delete_threads(threads)
            return
        if strategy != "keep_latest":
            raise ConfigurationError(f"prune knows the strategies 'keep_latest' and 'delete', not {strategy!r}")
        for thread in threads:
            every = [checkpoint async for checkpoint in self._checkpoints.listed(thread)]
            latest: dict[str, StoredCheckpoint] = {}
            for checkpoint in every:
                latest.setdefault(checkpoint.ns, checkpoint)
            by_id = {(each.ns, each.id): each for each in every}
            kept = {key for last in latest.values() async for key in self._needed(last, by_id)}
            gone = [each for key, each in by_id.items() if key not in kept]
            if gone:
                await self._checkpoints.delete(thread, gone)

    async def _needed(
        self, last: StoredCheckpoint, by_id: dict[tuple[str, str], StoredCheckpoint]
    ) -> AsyncIterator[tuple[str, str]]:
        """A checkpoint, and those before it back to the last snapshots of channels that are kept as changes."""
        metadata = self._load(last.value["metadata"], "metadata")
        missing = set(metadata.get("counters_since_delta_snapshot") or ())
        step: StoredCheckpoint | None = last
        while step is not None:
            yield step.ns, step.id
            if missing:
                [loaded] = await self._checkpoints.load([step])
                missing -= loaded.values.keys()
            if not missing or step.parent is None:
                return
            step = by_id.get((step.ns, step.parent))

    async def adelete_older(self, older_than: float | timedelta) -> int:
        """Delete threads that got no checkpoint for so long; how many."""
        return await self._checkpoints.delete_older(older_than)

    # -- for code without an event loop ------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint, or the last one of its thread."""
        return self._wait(self.aget_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Give checkpoints, the newest first."""

        async def every() -> Collection[CheckpointTuple]:
            return [found async for found in self.alist(config, filter=filter, before=before, limit=limit)]

        yield from self._wait(every())

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint, with the new values of its channels, in one transaction."""
        return self._wait(self.aput(config, checkpoint, metadata, new_versions))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task has written."""
        self._wait(self.aput_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """Delete all checkpoints of a thread."""
        self._wait(self.adelete_thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that runs of graphs have made."""
        self._wait(self.adelete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all of a thread into another."""
        self._wait(self.acopy_thread(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete checkpoints of threads."""
        self._wait(self.aprune(thread_ids, strategy=strategy))

    def delete_older(self, older_than: float | timedelta) -> int:
        """Delete threads that got no checkpoint for so long; how many."""
        return self._wait(self.adelete_older(older_than))

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._checkpoints.wait(coroutine)

    def _dump(self, value: Any, what: str) -> Any:
        return _Serializer(self.serde).dump(value, what)

    def _load(self, stored: Any, what: str) -> Any:
        return _Serializer(self.serde).load(stored, what)


def _place(config: RunnableConfig) -> tuple[str, str]:
    """The thread and the ns of a checkpoint."""
    configurable = config.get("configurable", {})
    if "thread_id" not in configurable:
        raise ConfigurationError(
            'a graph with a checkpointer is called with a thread: config={"configurable": {"thread_id": "…"}}'
        )
    return str(configurable["thread_id"]), configurable.get("checkpoint_ns", "")


def _config(thread: str, ns: str, checkpoint: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": checkpoint}}


# -- graphs within workflows -------------------------------------------------------------------------------------------

_KEY = "stepfast"
"""The metadata of a node with options of its step."""
_SEND, _NS, _SCRATCHPAD, _RUNTIME = "__pregel_send", "checkpoint_ns", "__pregel_scratchpad", "__pregel_runtime"
_OUTER = "__stepfast_outer"
"""In the config of the nodes of a graph that is a node: where that is."""
_OPTIONS = ("retries", "timeout", "backoff")


_Place = tuple[tuple[Any, ...], ...]
"""Where a node is: for each graph from the outermost on the superstep, the node, and the number of a Send."""


@dataclasses.dataclass(frozen=True)
class _Steps:
    """Where the nodes of one call of a graph have their branches, and with which options they are steps."""

    place: Branches
    options: Mapping[str, Any]
    stream: str | None
    serializer: _Serializer
    asked: dict[_Place, Interrupt[Any]] = dataclasses.field(default_factory=dict)
    """The interrupts that are to be answered, by where in the graph they came from."""

    async def run(self, key: str, name: str, function: Callable[[], Any], options: Mapping[str, Any]) -> Any:
        """Execute a step in a branch of its own."""

        async def branch(ctx: Context) -> Any:
            return await ctx.options(record_arguments=False, **options).step(name, function)

        return await self.place.branch(key, branch)


class _DurableNode(Runnable[Any, Any]):
    """What a node does, as a step."""

    def __init__(
        self, name: str, bound: Runnable[Any, Any], options: Mapping[str, Any] | None, retry: Sequence[RetryPolicy],
        steps: _Steps,
    ) -> None:  # fmt: skip
        self.name = name
        self._bound = bound
        self._options = options
        """Options of the step; None: the node is code of the workflow."""
        self._retry = retry
        self._steps = steps

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Refuse a call that would block the event loop."""
        raise _not_awaited()

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Execute the node, or give what is recorded."""
        assert config is not None, "a graph gives its nodes a config"
        place = _where(config)
        try:
            return await self._at(place, input, config, kwargs)
        except GraphInterrupt as interrupt:
            self._steps.asked.update({(*place, (number,)): one for number, one in enumerate(interrupt.args[0])})
            raise

    async def _at(self, place: _Place, input: Any, config: RunnableConfig, kwargs: dict[str, Any]) -> Any:
        steps, key = self._steps, _key(place)
        if self._options is None:

            async def branch(ctx: Context) -> Any:
                return await self._bound.ainvoke(input, config, **kwargs)

            return await steps.place.branch(key, branch)

        async def node() -> Any:
            return await self._execute(input, config, kwargs)

        recorded = await steps.run(key, f"node {self.name}", node, self._options)
        return self._told(recorded, config["configurable"])

    async def _execute(self, input: Any, config: RunnableConfig, kwargs: dict[str, Any]) -> Any:
        """Call the node, in a step. What it returned, or how it left, is recorded with what it wrote itself."""
        dump, conf = self._steps.serializer.dump, config["configurable"]
        written: list[tuple[str, Any]] = []
        changes: dict[str, Any] = {_SEND: written.extend}
        if (name := self._steps.stream) is not None and _RUNTIME in conf:
            out = stream_of_step(name)
            changes[_RUNTIME] = conf[_RUNTIME].override(stream_writer=out.send)
        what = f"the result of node {self.name!r}"
        own = cast(RunnableConfig, {**config, "configurable": {**conf, **changes}})
        known = var_child_runnable_config.set(own)
        try:
            value = await self._bound.ainvoke(input, own, **kwargs)
            left: dict[str, Any] = {"returned": dump(value, what)}
        except GraphInterrupt as interrupt:
            left = {"interrupts": [self._own(one, conf) for one in interrupt.args[0]]}
        except ParentCommand as command:
            left = {"command": dump(command.args[0], what)}
        except Exception as error:
            if self._retry and not any(_retries(policy, error) for policy in self._retry):
                raise NonRetryableError(f"{type(error).__name__}: {error}") from error
            raise
        finally:
            var_child_runnable_config.reset(known)
        return {**left, "written": [[channel, dump(value, what)] for channel, value in written]}

    def _own(self, interrupt: Interrupt[Any], conf: Mapping[str, Any]) -> list[Any]:
        """An interrupt of the node itself, with the number of answers it had, if its id tells it."""
        answered = len(conf[_SCRATCHPAD].resume)
        for number in {0, answered}:
            if interrupt.id == _interrupt(None, conf[_NS], number).id:
                return [number, self._steps.serializer.dump(interrupt.value, f"an interrupt of node {self.name!r}")]
        raise NonRetryableError(
            f"a graph that node {self.name!r} calls was interrupted, and could not be resumed after a crash: add that "
            "graph as a node, by add_node(name, graph)"
        )

    def _told(self, recorded: Any, conf: Mapping[str, Any]) -> Any:
        """Do what the node did: write, and return or leave."""
        load, what = self._steps.serializer.load, f"the record of node {self.name!r}"
        if recorded["written"]:
            conf[_SEND]([(channel, load(value, what)) for channel, value in recorded["written"]])
        if "interrupts" in recorded:
            ns = conf[_NS]
            raise GraphInterrupt(
                [_interrupt(load(value, what), ns, number) for number, value in recorded["interrupts"]]
            )
        if "command" in recorded:
            raise ParentCommand(load(recorded["command"], what))
        return load(recorded["returned"], what)


class _Subgraph(Runnable[Any, Any]):
    """A graph that is a node. Its nodes are steps; it tells them where it is itself."""

    def __init__(self, name: str, graph: Any) -> None:
        self.name = name
        self._graph = graph

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Refuse a call that would block the event loop."""
        raise _not_awaited()

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Run the graph."""
        assert config is not None, "a graph gives its nodes a config"
        inner = {**config["configurable"], _OUTER: _where(config)}
        return await self._graph.ainvoke(input, {**config, "configurable": inner}, **kwargs)


def _not_awaited() -> ContextMisuse:
    return ContextMisuse("a graph within a workflow is awaited: await durable(graph).ainvoke(…)")


def _interrupt(value: Any, ns: str, answered: int) -> Interrupt[Any]:
    return Interrupt.from_ns(value, f"{ns}|{answered}" if answered else ns)


def _where(config: RunnableConfig) -> _Place:
    """Where a node is in the graph: the same on every replay, unlike the ids that LangGraph gives."""
    metadata = config["metadata"]
    numbers = [part for part in metadata["langgraph_path"] if type(part) is int]
    outer: _Place = config["configurable"].get(_OUTER, ())
    return (*outer, (metadata["langgraph_step"], metadata["langgraph_node"], *numbers))


def _key(place: _Place) -> str:
    return "-".join(str(part) for graph in place for part in graph)


def _retries(policy: RetryPolicy, error: Exception) -> bool:
    """Whether a policy says that another try may help."""
    said = policy.retry_on
    if isinstance(said, type):
        return isinstance(error, said)
    if isinstance(said, Sequence):
        return isinstance(error, tuple(said))
    return bool(said(error))


class _Memory(InMemorySaver):
    """The checkpoints of one call of a graph. They are made again on every replay."""

    def __init__(self, serde: SerializerProtocol, like: BaseCheckpointSaver[Any] | None) -> None:
        super().__init__(serde=serde)
        self._like = like

    def get_next_version(self, current: Any, channel: None) -> Any:
        """Return a version of the kind that the graph's own checkpointer has."""
        if self._like is None:
            return super().get_next_version(current, channel)
        return self._like.get_next_version(current, channel)


class DurableGraph:
    """What ``durable`` gives: a graph whose nodes are steps of the workflow that awaits ``ainvoke``."""

    def __init__(
        self, graph: CompiledStateGraph[Any, Any, Any, Any], options: Mapping[str, Any], stream: str | None,
        interrupt_timeout: float | timedelta | None, serde: SerializerProtocol,
    ) -> None:  # fmt: skip
        self._graph = graph
        self._options = options
        self._stream = stream
        self._interrupt_timeout = interrupt_timeout
        self._serde = serde

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"durable(graph) has no {name!r}: write await durable(graph).ainvoke(…), and durable(graph, stream=…) "
            "to read what nodes write"
        )

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> Any:
        """Run the graph to its end, and return its state. Outside of a workflow it is the graph's own ``ainvoke``.

        Where nodes interrupt, the run waits for a signal for each: ``interrupt:NODE``, and ``interrupt:NODE:2`` if the
        same node interrupts a second time in one step of the graph. What they ask is in the run's value ``interrupts``.
        """
        ctx = _context()
        if ctx is None:
            return await self._graph.ainvoke(input, config, **options)
        steps = _Steps(ctx.branches(), self._options, self._stream, _Serializer(self._serde))
        thread = (config or {}).get("configurable", {}).get("thread_id")
        own = self._graph.checkpointer
        shared = own if isinstance(own, BaseCheckpointSaver) and thread is not None else None
        memory = _Memory(self._serde, shared)
        graph = _durable(self._graph, steps, {"checkpointer": memory})
        config = _with_thread(config, thread if thread is not None else "run")
        if shared is not None:
            await _load_thread(steps, shared, memory, config)
        result = await graph.ainvoke(input, config, durability="sync", **options)
        while asked := _named(steps.asked):
            steps.asked.clear()
            answer: Command[Any] = Command(resume=await self._answers(ctx, asked))
            result = await graph.ainvoke(answer, config, durability="sync", **options)
        if shared is not None:
            await _save_thread(steps, shared, memory, config)
        return result

    async def _answers(self, ctx: Context, asked: Mapping[str, Interrupt[Any]]) -> dict[str, Any]:
        """Wait for the signals that answer interrupts; the answers by the ids of these."""
        await ctx.set("interrupts", {name: _shown(interrupt.value) for name, interrupt in asked.items()})
        waits = (ctx.wait_signal(f"interrupt:{name}", timeout=self._interrupt_timeout) for name in asked)
        answers: Sequence[Any] = await ctx.gather(*waits)
        await ctx.set("interrupts", {})
        return {interrupt.id: answer for interrupt, answer in zip(asked.values(), answers, strict=True)}


def durable(
    graph: CompiledStateGraph[Any, Any, Any, Any],
    *,
    retries: int = 0,
    timeout: float | timedelta | None = None,
    backoff: Backoff | None = None,
    stream: str | None = None,
    interrupt_timeout: float | timedelta | None = None,
    serde: SerializerProtocol | None = None,
) -> DurableGraph:
    """Make the nodes of a graph steps: ``state = await durable(graph).ainvoke({…})`` in a workflow.

    Args:
        graph: A compiled ``StateGraph``. With a checkpointer, and a ``thread_id`` in the config, the call begins with
            the state of the thread and leaves its own there.
        retries: How often a node is repeated that failed. Its ``retry_policy`` wins, and metadata of the node
            (``metadata={"stepfast": {"retries": 3}}``) over both; ``{"stepfast": False}`` makes the node code of the
            workflow, which may make durable calls by ``stepfast.current()``.
        timeout: How long one try of a node may take.
        backoff: The pauses between tries.
        stream: The name of a stream of the run that gets what nodes write by ``get_stream_writer()``.
        interrupt_timeout: How long the run waits for the answer to an interrupt; then SignalTimeout.
        serde: What makes bytes of states, by default LangGraph's own by msgpack. One that may write pickles is refused.
    """
    if not isinstance(graph, CompiledStateGraph):
        raise ConfigurationError(
            f"durable() takes a compiled StateGraph, not {type(graph).__name__}. Of a graph made by @entrypoint "
            "write the tasks as steps of the workflow"
        )
    known = serde or JsonPlusSerializer()
    _Serializer(known)
    options: dict[str, Any] = {"retries": retries, "timeout": timeout}
    if backoff is not None:
        options["backoff"] = backoff
    _check(graph)
    if isinstance(graph.checkpointer, BaseCheckpointSaver) and any(
        isinstance(channel, DeltaChannel) for channel in graph.channels.values()
    ):
        raise ConfigurationError(
            "durable() does not take the state of a thread over that has a DeltaChannel: compile the graph without a "
            "checkpointer, or with a reducer on a plain channel"
        )
    return DurableGraph(graph, options, stream, interrupt_timeout, known)


def _check(graph: Pregel[Any, Any, Any, Any]) -> None:
    """Refuse what a graph has that would not be the same on a replay."""
    if graph.step_timeout is not None:
        raise ConfigurationError("durable() takes no step_timeout of a graph: give its nodes a timeout")
    if graph.interrupt_before_nodes or graph.interrupt_after_nodes:
        raise ConfigurationError(
            "durable() takes no interrupt_before and interrupt_after: call interrupt() in the node, or wait for a "
            "signal in the workflow"
        )
    for name, node in graph.nodes.items():
        if node.timeout is not None and node.timeout.idle_timeout is not None:
            raise ConfigurationError(f"node {name!r} has an idle_timeout, which steps have not: give it a run_timeout")
        _options_of(name, node, {})
        if isinstance(node.bound, Pregel):
            if isinstance(node.bound.checkpointer, BaseCheckpointSaver):
                raise ConfigurationError(
                    f"graph {name!r}, a node of another, has a checkpointer: compile it without one"
                )
            _check(node.bound)


def _durable(graph: Any, steps: _Steps, changes: Mapping[str, Any]) -> Any:
    """A copy of a graph whose nodes are steps."""
    nodes = {}
    for name, node in graph.nodes.items():
        if isinstance(node.bound, Pregel):
            inner = _Subgraph(name, _durable(node.bound, steps, {}))
            nodes[name] = node.copy({"bound": inner, "subgraphs": []})
        elif name != "__start__":
            options, policies = _options_of(name, node, steps.options), node.retry_policy or ()
            bound = _DurableNode(name, node.bound, options, policies, steps)
            plain = {"retry_policy": None, "cache_policy": None, "timeout": None}
            nodes[name] = node.copy({"bound": bound, "subgraphs": [], **plain})
        else:
            nodes[name] = node
    return graph.copy({"nodes": nodes, "retry_policy": (), "cache": None, **changes})


def _options_of(name: str, node: Any, default: Mapping[str, Any]) -> dict[str, Any] | None:
    """The options of a node's step; None for a node that is code of the workflow."""
    own = (node.metadata or {}).get(_KEY, {})
    if own is False:
        return None
    unknown = sorted(set(own) - set(_OPTIONS))
    if unknown:
        raise ConfigurationError(
            f"node {name!r} has metadata {_KEY!r} with {', '.join(map(repr, unknown))}; known are "
            f"{', '.join(map(repr, _OPTIONS))}, or False in place of all"
        )
    options = dict(default)
    if node.retry_policy:
        policy = max(node.retry_policy, key=lambda policy: policy.max_attempts)
        base, most = policy.initial_interval, policy.max_interval
        options["retries"] = policy.max_attempts - 1
        options["backoff"] = Backoff(base=base, factor=policy.backoff_factor, max=most)
    if node.timeout is not None:
        options["timeout"] = node.timeout.run_timeout
    return {**options, **own}


def _context() -> Context | None:
    context = current()
    if context is None or isinstance(context, Context):
        return context
    raise ContextMisuse(
        "durable(graph) works in a workflow that is written as async def; this one is a plain def. Write `async def`, "
        "with `await durable(graph).ainvoke(…)`"
    )


def _named(asked: Mapping[_Place, Interrupt[Any]]) -> dict[str, Interrupt[Any]]:
    """Interrupts by the names of the signals that answer them: those of the nodes of the outermost graph."""
    named: dict[str, Interrupt[Any]] = {}
    seen = Counter[str]()
    for place in sorted(asked):
        node = place[0][1]
        seen[node] += 1
        named[node if seen[node] == 1 else f"{node}:{seen[node]}"] = asked[place]
    return named


def _shown(value: Any) -> Any:
    """What an interrupt asks, as JSON."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return str(value)
    return value


def _with_thread(config: RunnableConfig | None, thread: Any) -> RunnableConfig:
    given: dict[str, Any] = {**(config or {})}
    return cast(RunnableConfig, {**given, "configurable": {**given.get("configurable", {}), "thread_id": thread}})


async def _load_thread(
    steps: _Steps, shared: BaseCheckpointSaver[Any], memory: InMemorySaver, config: RunnableConfig
) -> None:
    """Begin with the state of the thread, as it is when this is first executed."""
    dump, load, what = steps.serializer.dump, steps.serializer.load, "the state of the thread"

    async def read() -> Any:
        found = await shared.aget_tuple(_root(config))
        return None if found is None else dump([found.checkpoint, found.metadata, found.pending_writes or []], what)

    stored = await steps.run("load", "load thread", read, {"retries": 3})
    if stored is None:
        return
    checkpoint, metadata, writes = load(stored, what)
    at = await memory.aput(_root(config), checkpoint, metadata, checkpoint["channel_versions"])
    for task in dict.fromkeys(write[0] for write in writes):
        await memory.aput_writes(at, [(channel, value) for owner, channel, value in writes if owner == task], task)


async def _save_thread(
    steps: _Steps, shared: BaseCheckpointSaver[Any], memory: InMemorySaver, config: RunnableConfig
) -> None:
    """Leave the last state in the thread."""
    found = await memory.aget_tuple(_root(config))
    if found is None:
        return
    checkpoint, metadata = found.checkpoint, found.metadata

    async def write() -> None:
        await shared.aput(_root(config), checkpoint, metadata, checkpoint["channel_versions"])

    await steps.run("save", "save thread", write, {"retries": 3})


def _root(config: RunnableConfig) -> RunnableConfig:
    return {"configurable": {"thread_id": config["configurable"]["thread_id"], "checkpoint_ns": ""}}
