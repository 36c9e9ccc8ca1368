"""What a worker knows of dag runs: their graphs, and the outputs of their steps, asked for once and kept a while."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Collection
from typing import Any

from ..engine.dag import DagView
from ..engine.execution import Execution
from ..model import status
from ..model.graph import Graph, read_graph
from ..model.records import Claimed
from ..model.rows import DagOutputs
from .context import WorkerContext


class Seen:
    """What is known of one dag run."""

    def __init__(self) -> None:
        self.input = "null"
        self.format = 1
        self.outputs: dict[str, tuple[str | None, int, int]] = {}
        self.until = 0
        """Everything completed before this time is known."""
        self.size = 0

    def add(self, found: DagOutputs) -> None:
        """Take in outputs that are new."""
        self.input, self.format = found.input, found.format
        for name, output, format_, completed_at in found.outputs:
            self.outputs[name] = (output, format_, completed_at)
            self.until = max(self.until, completed_at)
        self.size = len(self.input) + sum(100 + len(output or "") for output, _, _ in self.outputs.values())


class DagCache:
    """One question for all steps that begin in the same turn; bounded by bytes."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._dag_cache: dict[tuple[str, str], asyncio.Task[Graph | None]] = {}
        self._seen: OrderedDict[str, Seen] = OrderedDict()
        self._wanted: dict[str, asyncio.Future[Seen]] = {}
        self._round: asyncio.Task[None] | None = None

    async def sees(self, execution: Execution) -> bool:
        """A step of a dag run, or the run itself: bring what it sees, if it is not there yet. False: its graph is not
        stored."""
        if execution.view is None:
            execution.view = await self.view(execution.workflow.dag, execution.claimed)
        return execution.view is not None

    async def view(self, name: str, claimed: Claimed) -> DagView | None:
        """What a step, or the run itself, sees; None, if its graph is not stored. Who is stopped while it asks must not
        stop those who ask with it."""
        graph = await asyncio.shield(self._graph(name, claimed.graph or "", claimed.dag_id or claimed.id))
        if graph is None:
            return await self._without_graph(name, claimed)
        seen = await asyncio.shield(self._look(claimed.dag_id or claimed.id))
        try:
            input_ = self._context.payloads.plain(seen.input, seen.format, "the input")
        except Exception as error:  # any, for the application's codec raises what it likes
            return DagView(graph, None, seen.outputs, error)
        return DagView(graph, input_, seen.outputs)

    async def _without_graph(self, name: str, claimed: Claimed) -> DagView | None:
        """What is to end, and has done nothing yet, can do so without its graph: there is nothing to undo, and nothing
        follows from it. Anything else has to wait until the graph is stored."""
        self._context.logger.warning(
            "run %s: graph %s of dag %s is not stored, so it waits; a worker with the code of that version stores it",
            claimed.id, claimed.graph, name,
            extra={"run_id": claimed.id, "workflow": claimed.workflow, "attempt": claimed.attempt},
        )  # fmt: skip
        if claimed.undoing or not (claimed.failing or claimed.asked == status.ASK_CANCEL):
            return None
        if claimed.dag_step is None:
            dag_steps = await self._context.ask(lambda: self._context.store.dag_steps(claimed.id), "graph")
            done = any(dag_step.status == status.COMPLETED for dag_step in dag_steps)
        else:
            done = bool(claimed.records)
        return None if done else DagView(Graph([]), None, {})

    # -- graphs ------------------------------------------------------------------------------------------------

    def _graph(self, name: str, version: str, dag_id: str) -> asyncio.Task[Graph | None]:
        """The graph that a run was started with."""
        task = self._dag_cache.get((name, version))
        if task is None or (task.done() and not _found(task)):
            task = self._dag_cache[name, version] = asyncio.create_task(self._fetch(name, version, dag_id))
        return task

    async def _fetch(self, name: str, version: str, dag_id: str) -> Graph | None:
        text = await self._context.ask(lambda: self._context.store.graph(name, version, dag_id), "graph")
        graph, why = read_graph(text)
        if graph is None and text is not None:
            self._context.logger.error("graph %s of dag %s %s", version, name, why)
        return graph

    # -- outputs -----------------------------------------------------------------------------------------------

    def _look(self, dag_id: str) -> asyncio.Future[Seen]:
        future = self._wanted.get(dag_id)
        if future is None:
            future = self._wanted[dag_id] = asyncio.get_running_loop().create_future()
            if self._round is None or self._round.done():
                self._round = asyncio.create_task(self._go_round(), name="stepfast-graphs")
        return future

    async def _go_round(self) -> None:
        await asyncio.sleep(0)  # requests of the same turn are answered by the same query
        while self._wanted:
            wanted, self._wanted = self._wanted, {}
            try:
                found = await self._news_of(wanted)
            except Exception as error:
                for future in wanted.values():
                    future.set_exception(error)
                continue
            for dag_id, future in wanted.items():
                seen = self._seen.setdefault(dag_id, Seen())
                self._seen.move_to_end(dag_id)
                if dag_id in found:
                    seen.add(found[dag_id])
                future.set_result(seen)
            self._forget()

    async def _news_of(self, dag_ids: Collection[str]) -> dict[str, DagOutputs]:
        """What was completed in these dag runs since what is known of them. If that is forgotten while the query is
        under way, the answer is incomplete, and everything is requested."""
        known: OrderedDict[str, Seen] | None = None

        def ask() -> Awaitable[dict[str, DagOutputs]]:
            nonlocal known
            known = self._seen
            since = [(dag_id, known[dag_id].until if dag_id in known else 0) for dag_id in dag_ids]
            return self._context.store.dag_outputs(since)

        while True:
            found = await self._context.ask(ask, "outputs")
            if known is self._seen:
                return found

    def forget_outputs(self) -> None:
        """What was seen may not be stored any more. A question under way knows it by the new dictionary."""
        self._seen = OrderedDict()

    def _forget(self) -> None:
        """Least recently asked for goes first; it can be asked for again."""
        size = sum(seen.size for seen in self._seen.values())
        while size > self._context.settings.history_cache and self._seen:
            _, oldest = self._seen.popitem(last=False)
            size -= oldest.size

    async def close(self) -> None:
        """Stop asking: no graph is waited for any more."""
        tasks: list[asyncio.Task[Any]] = [*self._dag_cache.values()]
        if self._round is not None:
            tasks.append(self._round)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _found(task: asyncio.Task[Graph | None]) -> bool:
    return not task.cancelled() and task.exception() is None and task.result() is not None
