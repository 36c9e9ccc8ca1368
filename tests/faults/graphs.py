"""The storms over declared graphs: dags of several shapes, whose fate is part of their input, and the ledger of what
their steps and undos did. The rules are in tests/judge/dags.py.

The fate says which steps fail for good (unless somebody mends them before they are tried again), which fail with an
error that is caught, which are not wanted, and which cannot be undone. Whether a flaky step or undo fails this time is
left to chance.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import time
from typing import Any

from stepfast import Backoff, NonRetryableError, Stepfast, step
from stepfast.engine.dag import Dag
from stepfast.model.graph import APPROVAL, Graph
from tests.faults.bystanders import TROUBLE, own_transaction
from tests.judge.dags import BREAKS, INNER, STEP, STRAYS, UNDO, WHEN
from tests.judge.evidence import RAISES, RETURNS
from tests.judge.ledger import Ledger, now

AT_ONCE = Backoff(base=0.02, factor=1, max=0.02)
RELEASED = Backoff(base=0.4, factor=1, max=0.4)
"""Longer than a moment, as the storms set it: a run that is being undone gives its slot back."""

ACTS = "graph acts"
MIX = {"diamond": 3, "wide": 2, "stairs": 3, "choosing": 3, "catching": 3, "gated": 3}
"""How often each is started."""


class Stray(Exception):
    """An error that may be caught."""


# -- the graphs ----------------------------------------------------------------------------------------------------


def add_to(app: Stepfast, ledger: Ledger) -> dict[str, Dag]:
    """Declare them all."""
    w = _Works(ledger)
    flaky: dict[str, Any] = {"retries": 40, "backoff": AT_ONCE}
    sure: dict[str, Any] = {"retries": 1, "backoff": AT_ONCE}
    undo: dict[str, Any] = {"compensate": w.undo}
    slow_undo: dict[str, Any] = {"compensate": w.slow_undo}

    diamond = app.dag("diamond")
    diamond.declare(w.do, name="top", **sure, **undo)
    diamond.declare(w.flaky, name="left", after=["top"], **flaky, **slow_undo)
    diamond.declare(w.do_in_thread, name="right", after=["top"], **sure, **undo)
    diamond.declare(w.do, name="bottom", after=["left", "right"], **sure, **undo)

    wide = app.dag("wide")
    wide.declare(w.do, name="first", **sure, **undo)
    for number in range(8):
        kind: dict[str, Any] = {"function": w.flaky, **flaky} if number % 3 == 0 else {"function": w.do, **sure}
        wide.declare(kind.pop("function"), name=f"w{number}", after=["first"], **kind, **undo)
    wide.declare(w.nap, name="nap", after=["first"], **sure, **undo)
    wide.declare(w.do, name="join", after=[*(f"w{number}" for number in range(8)), "nap"], **sure, **slow_undo)
    wide.declare(w.do, name="last", after=["join"], **sure)

    stairs = app.dag("stairs")
    stairs.declare(w.do, name="c0", **sure, **undo)
    stairs.declare(w.checkpoint, name="c1", after=["c0"], **sure, **slow_undo)
    stairs.declare(w.do, name="c2", after=["c1"], when=w.when, **sure)
    stairs.declare(w.flaky, name="c3", after=["c2", "c1"], **flaky, **undo)
    stairs.declare(w.do_in_thread, name="c4", after=["c3"], **sure, **undo)
    stairs.declare(w.do, name="c5", after=["c4"], **sure, **undo)

    choosing = app.dag("choosing")
    for number in range(4):
        choosing.declare(w.flaky, name=f"s{number}", when=w.when, **flaky, **undo)
    choosing.declare(w.flaky, name="any", after=[f"s{n}" for n in range(4)], join="any", **flaky, **undo)
    choosing.declare(w.flaky, name="two", after=[f"s{n}" for n in range(4)], at_least=2, **flaky, **undo)
    choosing.declare(w.do, name="maybe", after=["any"], when=w.when, **sure, **undo)
    choosing.declare(w.do, name="hangs", after=["maybe"], **sure, **undo)
    choosing.declare(w.do, name="both", after=["hangs", "two"], **sure, **slow_undo)
    choosing.declare(w.do, name="last", after=["both"], **sure)

    catching = app.dag("catching")
    catching.declare(w.do, name="before", **sure, **undo)
    catching.declare(w.do, name="risky", after=["before"], catch={Stray: "mend"}, **sure, **undo)
    catching.declare(w.do, name="well", after=["risky"], **sure, **undo)
    catching.declare(w.flaky, name="mend", **flaky, **slow_undo)
    catching.declare(w.do, name="beside", after=["before"], **sure, **undo)
    catching.declare(w.do, name="after", after=["well", "mend", "beside"], **sure, **undo)

    gated = app.dag("gated")
    gated.declare(w.do, name="prepare", **sure, **undo)
    gated.approval("gate", after=["prepare"])
    gated.approval("hurry", after=["prepare"], timeout=0.6, on_timeout="approve")
    gated.approval("hint", after=["prepare"], timeout=0.6, on_timeout="skip")
    gated.declare(w.flaky, name="ship", after=["gate", "hurry"], **flaky, **undo)
    gated.declare(w.do, name="heed", after=["hint"], **sure, **undo)
    gated.declare(w.do, name="bill", after=["ship", "heed"], **sure, **undo)
    return {dag.name: dag for dag in (diamond, wide, stairs, choosing, catching, gated)}


class _Works:
    """What steps and undos do."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.undo = step(retries=40, backoff=AT_ONCE)(self._undo)
        self.slow_undo = step(name="slow undo", retries=40, backoff=RELEASED)(self._undo)

    def act(self, ctx: Any, what: str, does: str = RETURNS) -> str:
        """One line, before anything else happens; the value to return."""
        execution, nonce = ctx._execution, secrets.token_hex(6)
        self._ledger.append(
            ACTS,
            {"at": now(), "run": ctx.run_id, "dag_step": ctx.step_name, "row": execution.run_id,
             "claim": execution.claim, "attempt": ctx.attempt, "pid": os.getpid(), "nonce": nonce, "what": what,
             "does": does, "saw": {} if what == UNDO else dict(ctx.outputs),
             "undoes": ctx.output if what == UNDO else None},
        )  # fmt: skip
        return nonce

    def _begin(self, ctx: Any, risk: float = 0.0) -> tuple[str, Exception | None]:
        """Write the act down; what it returns, or the error it raises."""
        if ctx.step_name in ctx.input["breaks"] and (ctx.attempt == 1 or random.random() < 0.7):
            nonce = self.act(ctx, STEP, BREAKS)
            # Where one retry is allowed, two failures are the end as well.
            hopeless = risk > 0 or random.random() < 0.5
            return nonce, NonRetryableError(nonce) if hopeless else ValueError(nonce)
        if ctx.step_name in ctx.input["strays"]:
            nonce = self.act(ctx, STEP, STRAYS)
            return nonce, Stray(nonce)
        if random.random() < risk:
            nonce = self.act(ctx, STEP, RAISES)
            return nonce, ValueError(nonce)
        return self.act(ctx, STEP), None

    async def do(self, ctx: Any) -> str:
        return await self._do(ctx, 0.0)

    async def flaky(self, ctx: Any) -> str:
        return await self._do(ctx, 0.35)

    async def _do(self, ctx: Any, risk: float) -> str:
        nonce, error = self._begin(ctx, risk)
        await asyncio.sleep(random.random() * ctx.input["pause"])
        if error is not None:
            raise error
        return nonce

    def do_in_thread(self, ctx: Any) -> str:
        nonce, error = self._begin(ctx)
        time.sleep(random.random() * ctx.input["pause"])
        if error is not None:
            raise error
        return nonce

    async def nap(self, ctx: Any) -> str:
        """Gives the slot back, and begins anew when it is over."""
        nonce, error = self._begin(ctx)
        await ctx.sleep(0.3)
        if error is not None:
            raise error
        return nonce

    async def checkpoint(self, ctx: Any) -> str:
        """A step of its own inside; what it returned is not made again."""
        nonce, error = self._begin(ctx)

        async def inner() -> str:
            made = self.act(ctx, INNER)
            await asyncio.sleep(random.random() * ctx.input["pause"])
            return made

        await ctx.step(inner)
        await asyncio.sleep(random.random() * ctx.input["pause"])
        if error is not None:
            raise error
        return nonce

    def when(self, ctx: Any) -> bool:
        self.act(ctx, WHEN)
        return ctx.step_name not in ctx.input["unwanted"]

    async def _undo(self, ctx: Any) -> None:
        stuck = ctx.step_name in ctx.input["stuck"]
        does = BREAKS if stuck else RAISES if random.random() < 0.3 else RETURNS
        nonce = self.act(ctx, UNDO, does)
        await asyncio.sleep(random.random() * 2 * ctx.input["pause"])
        if does != RETURNS:
            raise (NonRetryableError if stuck else ValueError)(nonce)


# -- starting ------------------------------------------------------------------------------------------------------


def fate_of(graph: Graph, pause: float) -> dict[str, Any]:
    """A random one."""
    steps = [dag_step for dag_step in graph.dag_steps.values() if dag_step.kind != APPROVAL]
    breaks = random.sample([dag_step.name for dag_step in steps], random.choices((0, 1, 2), (5, 2, 1))[0])
    if not breaks and random.random() < 0.4:
        breaks = [steps[-1].name]  # when there is most to undo
    strays = [dag_step.name for dag_step in steps if dag_step.catch and random.random() < 0.4]
    unwanted = [dag_step.name for dag_step in steps if dag_step.conditional and random.random() < 0.3]
    undoable = [dag_step.name for dag_step in steps if dag_step.undo is not None]
    stuck = random.sample(undoable, random.choices((0, 1, 2), (7, 2, 1))[0])
    return {"pause": pause, "breaks": breaks, "strays": strays, "unwanted": unwanted, "stuck": stuck}


async def start_one(app: Stepfast, ledger: Ledger, graphs: dict[str, Graph], pause: float) -> Any:
    """Start a dag run of a random kind; its handle, or None if nobody knows."""
    [name] = random.choices(list(MIX), list(MIX.values()))
    fate, priority = fate_of(graphs[name], pause), random.choice((0, 0, 0, 5, -5))
    try:
        if random.random() < 0.05:
            async with own_transaction(app) as (connection, rolled_back):
                run = await app.start(name, fate, connection=connection, priority=priority)
                if rolled_back:
                    ledger.unwanted(run.id)
            if not rolled_back:
                ledger.started(run.id, name, None)
            return None
        run = await app.start(name, fate, priority=priority)
    except TROUBLE:
        return None
    ledger.started(run.id, name, None)
    return run


async def keep_starting(app: Stepfast, ledger: Ledger, arguments: dict[str, Any]) -> None:
    """A program: start dag runs until killed."""
    graphs = graphs_of(app)
    async with app:
        ledger.append("ready", {"pid": os.getpid()})
        while True:
            await start_one(app, ledger, graphs, arguments.get("pause", 0.05))
            await asyncio.sleep(random.random() * 0.3)


def graphs_of(app: Stepfast) -> dict[str, Graph]:
    """The graphs of this module, as the application has declared them."""
    return {name: dag.graph for name in MIX if isinstance(dag := app.workflows[name], Dag)}
