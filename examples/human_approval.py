"""Somebody has to say yes: a run waits for a person, for days if need be, and holds nothing meanwhile.

Three expenses. The manager approves the first one from the command line. The second is withdrawn by whoever handed it
in. Nobody ever answers about the third: after a reminder and another wait the run decides by itself. The spans are
short here, so that nobody has to wait; in earnest they are days, and the code stays the same.

    python examples/human_approval.py
    STEPFAST_URL=postgresql://… python examples/human_approval.py
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from dataclasses import dataclass
from datetime import timedelta

from stepfast import Context, Run, Settings, SignalTimeout, Stepfast

URL = os.environ.get("STEPFAST_URL", "sqlite:///approval.db")  # in the folder the example runs in, a temporary one
app = Stepfast(
    URL, settings=Settings(inline_wait=0)
)  # every wait gives its slot back at once, also the short ones here

FIRST_WAIT = timedelta(seconds=1)  # say, two days
SECOND_WAIT = timedelta(seconds=1)  # say, a week


@dataclass
class Expense:
    """What somebody wants back."""

    id: str
    who: str
    cents: int
    patient: bool = True
    """Whether it waits for as long as it takes; only for the example."""


@dataclass
class Answer:
    """What the manager says."""

    ok: bool
    by: str


async def ask(expense: Expense, run_id: str) -> None:
    """A mail with a link. Whoever follows the link sends the signal; the run's id is all it has to carry."""
    print(f"  mail: {expense.who} wants {expense.cents / 100:.2f} for {expense.id}")


async def remind(expense: Expense) -> None:
    """Another mail."""
    print(f"  mail: {expense.id} still waits for an answer")


async def pay(expense: Expense) -> str:
    """The money goes out."""
    return f"{expense.cents / 100:.2f} paid to {expense.who}"


@app.workflow(deadline=timedelta(days=30))
async def claim_expense(ctx: Context, expense: Expense) -> str:
    """Ask, wait, remind, wait for one of three things, decide."""
    await ctx.step(ask, expense, ctx.run_id)
    await ctx.set("state", "asked")
    try:
        limit = None if expense.patient else FIRST_WAIT
        answer = await ctx.wait_signal("answer", type=Answer, timeout=limit)
    except SignalTimeout:  # recorded: a replay comes here again
        await ctx.step(remind, expense)
        await ctx.set("state", "reminded")
        winner, answer = await ctx.first(
            answer=ctx.wait_signal("answer", type=Answer),
            withdrawn=ctx.wait_signal("withdrawn"),
            late=ctx.sleep(SECOND_WAIT),
        )
        if winner != "answer":
            return f"{expense.id}: {'withdrawn' if winner == 'withdrawn' else 'nobody answered'}"
    if not answer.ok:
        return f"{expense.id}: refused by {answer.by}"
    return f"{expense.id}: {await ctx.step(pay, expense)}, approved by {answer.by}"


async def stepfast(*words: str) -> None:
    """The command line, as a person would use it."""
    print("$ stepfast", *words)
    command = [sys.executable, "-m", "stepfast", "--url", URL, *words]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    assert await process.wait() == 0


async def until(run: Run[str], state: str) -> None:
    """Wait until the run says that it has come so far."""
    while await run.get("state") != state:
        await asyncio.sleep(0.02)


async def main() -> None:
    """The worker and the people in one process, because this is an example."""
    async with app, app.worker():
        first = await app.start(claim_expense, Expense("train", "Ada", 4900))
        await until(first, "asked")
        while (info := await first.info()).status != "waiting":
            await asyncio.sleep(0.02)
        print(f"it is {info.status} for {info.waiting_for}, and no worker has it: {info.worker is None}")
        await stepfast("signal", first.id, "answer", '{"ok": true, "by": "Grace"}')
        print(await first.result(timeout=30))

        second = await app.start(claim_expense, Expense("hotel", "Bob", 12000, patient=False))
        await second.signal("withdrawn", "never mind")  # sent before anybody waits for it, and kept
        print(await second.result(timeout=30))

        third = await app.start(claim_expense, Expense("yacht", "Eve", 90000000, patient=False))
        print(await third.result(timeout=30))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="stepfast-approval-") as folder, contextlib.chdir(folder):
        asyncio.run(main())
