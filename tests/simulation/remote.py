"""Remote steps of the world: the lab's transport in memory, over lines that lose what they carry, and servers that take
their time, die with a task in hand, and begin it again."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec

from stepfast import Context, NonRetryableError, Stepfast
from stepfast.engine.workflow import Workflow
from stepfast.model.remote_steps import Result, Task, error_text
from stepfast.model.status import COMPLETED, FAILED
from stepfast.testing.doubles import LabTransport
from tests.faults.remote_workload import LATE, UNDO, _ask, outcome, told
from tests.judge.ledger import Ledger
from tests.simulation.loop import SimLoop
from tests.simulation.network import Line

WORKFLOWS = ("remote", "stubborn")
"""The second may fail."""


class SimTransport(LabTransport):
    """What lies between the engine and those who serve: tasks, those in hand, and results."""

    def __init__(self, loop: SimLoop, ledger: Ledger, seed: str) -> None:
        super().__init__(None, json.dumps)  # type: ignore[arg-type]
        self._loop = loop
        self._ledger = ledger
        self._chance = Random(f"{seed} servers")
        self._process = loop.process("servers")
        self.begun: dict[str, Task] = {}

    async def serve(self) -> bool:
        """Those who serve look at their own time."""
        for task in self.tasks.values():
            self._later(self._chance.random() * 0.3, self._begin, task)
        return False

    def _later(self, seconds: float, function: Callable[..., object], *args: Any) -> None:
        self._loop.call_later(seconds, function, *args, context=self._process.blank)

    def _begin(self, task: Task) -> None:
        if self.tasks.get(task.step_id) is not task:
            return
        self.begun[task.step_id] = self.tasks.pop(task.step_id)
        began = int(self._loop.time() * 1000)
        given = msgspec.json.decode(task.input or "null")
        if task.name == UNDO:
            does, nonce = outcome(self._ledger, "world", {**given["input"], "odds": 0}, given["output"])
        else:
            does, nonce = outcome(self._ledger, "world", given)
        if self._chance.random() < 0.1:
            self._later(2.0, self._again, task)  # whoever had it has died
        else:
            self._later(self._chance.random() * 0.5, self._end, task, does, nonce, began)

    def _again(self, task: Task) -> None:
        if self.begun.pop(task.step_id, None) is task:
            self.tasks[task.step_id] = task
            self._begin(task)

    def _end(self, task: Task, does: str, nonce: str, began: int) -> None:
        if self.begun.pop(task.step_id, None) is not task:
            return
        if does == "completed":
            self.done[task.step_id] = self._of(task, COMPLETED, json.dumps(nonce), None)
        else:
            said = error_text(nonce, None, retryable=does != "fatal")
            self.done[task.step_id] = self._of(task, FAILED, None, said)

    def _of(self, task: Task, status: str, output: str | None, error: str | None) -> Result:
        return Result(task.step_id, task.run_id, task.seq, status, output, error, None)

    async def lost(self, step_ids: Sequence[str]) -> list[str]:
        """Those of the steps of which nothing is here."""
        return [step_id for step_id in await super().lost(step_ids) if step_id not in self.begun]

    def left(self) -> list[str]:
        """All that is here still."""
        return sorted({*self.tasks, *self.done, *self.begun})


class LineTransport:
    """The transport as one process has it."""

    def __init__(self, transport: SimTransport, line: Line) -> None:
        self.prefix = transport.prefix
        self._transport = transport
        self._line = line

    async def open(self) -> None:
        """There is nothing to open."""

    async def close(self) -> None:
        """There is nothing to close."""

    def __getattr__(self, name: str) -> Any:
        return self._line.asking(f"transport {name}", getattr(self._transport, name))


# -- programs ----------------------------------------------------------------------------------------------------------


def make(chance: Random, workflow: str) -> dict[str, Any]:
    """The input of a run with remote steps."""
    ops = []
    for number in range(chance.randint(1, 3)):
        op: dict[str, Any] = {"do": chance.choice(("ask", "ask", "race", "sleep")), "what": f"w{number}"}
        if chance.random() < 0.3:
            op["timeout"] = 0.4
        if chance.random() < 0.4:
            op["undo"] = True
        ops.append(op)
    return {"ops": ops, "fails": workflow == "stubborn" and chance.random() < 0.7}


@functools.cache
def code() -> dict[str, Workflow[Any, Any]]:
    """The workflows, declared once for all worlds."""
    app = Stepfast("sqlite://")

    async def play(ctx: Context, input: dict[str, Any]) -> dict[str, str]:
        found: dict[str, str] = {}
        for op in input["ops"]:
            more: dict[str, Any] = {key: op[key] for key in ("timeout",) if key in op}
            if op.get("undo"):
                more["compensate"] = UNDO
            if op["do"] == "sleep":
                await ctx.sleep(0.3)
            elif op["do"] == "ask":
                found[op["what"]] = await told(_ask(ctx, op["what"], 0.1, **more))
            else:
                winner, value = await ctx.first(remote=ctx.branch(_asked, op["what"]), sleep=ctx.sleep(0.3))
                found[op["what"]] = value if winner == "remote" else LATE
        if input["fails"]:
            raise NonRetryableError("all of it was in vain")
        return found

    for name in WORKFLOWS:
        app.workflow(name=name)(play)
    return app.workflows


async def _asked(ctx: Context, what: str) -> str:
    return await told(_ask(ctx, what, 0.1))
