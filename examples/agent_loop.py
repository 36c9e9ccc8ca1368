"""An agent: a model decides, tools act, a person is asked, and every decision, act and answer is recorded.

Two processes die on the way, as a deploy or a full memory would have it: the first in the middle of a tool call, the
second between two calls. Each time the next process replays the conversation from its records: no decision is asked of
the model twice, and no finished tool is called twice. Only the tool call that was cut short is made again. Then the
agent asks a person, gives its slot back while it waits, and goes on with the answer.

The model is a fake one that needs no key; replace `think` by a call to yours.

    python examples/agent_loop.py
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from stepfast import Backoff, Context, Run, Settings, Stepfast, step

# Relative to the folder the example runs in, which is a temporary one; the lease is short so that nobody has to wait.
app = Stepfast("sqlite:///agent.db", settings=Settings(lease=2, sweep_interval=0.25, inline_wait=0))

SCRIPT = str(Path(__file__).resolve())
ROLE = sys.argv[1] if len(sys.argv) > 1 else "third process"
MAX_TURNS = 20


@dataclass
class Message:
    """One line of the conversation."""

    role: str
    text: str


@dataclass
class Decision:
    """What the model wants: a tool with its argument, to ask a person, or to answer."""

    tool: str | None = None
    argument: str = ""
    question: str | None = None
    answer: str = ""


@dataclass
class Question:
    """The input of a run."""

    text: str
    cities: list[str] = field(default_factory=list)


def say(text: str) -> None:
    """Show who does what."""
    print(f"  [{ROLE}] {text}", flush=True)


def die() -> None:
    """No chance to tidy up."""
    os.kill(os.getpid(), signal.SIGKILL)


@step(retries=4, timeout=60, backoff=Backoff(base=0.5, max=20))
async def think(question: Question, conversation: list[Message]) -> Decision:
    """The model. This one looks at the weather of each city, asks in which unit to answer, then answers."""
    say(f"model: turn {len(conversation) // 2 + 1}")
    seen = [message.text for message in conversation if message.role == "tool"]
    told = [message.text for message in conversation if message.role == "person"]
    if len(seen) < len(question.cities):
        return Decision("weather", question.cities[len(seen)])
    if not told:
        return Decision(question="Celsius or Fahrenheit?")
    return Decision(answer=f"in {told[0]}: {'; '.join(seen)}")


async def weather(city: str, key: str) -> str:
    """A tool. One that buys or sends something passes the key on, so that a call made again does nothing twice."""
    say(f"tool: weather in {city}")
    if city == "Oslo" and ROLE == "first process":
        die()
    await asyncio.sleep(0.05)
    return f"{city} has {sum(map(ord, city)) % 30} degrees"


TOOLS = {"weather": weather}


@app.workflow(deadline=timedelta(days=7))
async def agent(ctx: Context, question: Question) -> str:
    """Think, act, think again. On replay the recorded decisions lead down the same path."""
    conversation: list[Message] = []
    for _ in range(MAX_TURNS):
        decision = await ctx.step(think, question, conversation)
        if decision.question is not None:
            await ctx.set("question", decision.question)  # for whoever shows it to a person
            answer = await ctx.wait_signal("answer", type=str)
            conversation += [Message("model", decision.question), Message("person", answer)]
        elif decision.tool is not None:
            tool, name = TOOLS[decision.tool], f"tool {decision.tool}"
            text = await ctx.step(name, tool, decision.argument, ctx.step_key)
            conversation += [Message("model", f"{decision.tool}({decision.argument})"), Message("tool", text)]
            if decision.argument == "Oslo" and ROLE == "second process":
                die()  # between two calls: all there is of the conversation is in the records
        else:
            return decision.answer
    return "I do not know."


async def let_die(role: str) -> None:
    """A process that works until it dies."""
    print(f"the {role} works, until it dies:", flush=True)
    process = await asyncio.create_subprocess_exec(sys.executable, SCRIPT, role)
    print(f"it ended with {signal.Signals(-await process.wait()).name}", flush=True)


async def asked(run: Run[str]) -> str:
    """What the agent wants to know."""
    while (question := await run.get("question")) is None or await run.status() != "waiting":
        await asyncio.sleep(0.05)
    return str(question)


async def main() -> None:
    """Start a run, let two processes die with it, go on in this one, answer a question."""
    async with app:
        run = await app.start(agent, Question("Where is it warmest?", ["Rome", "Oslo", "Lima"]))
        await let_die("first process")
        await let_die("second process")
        print("this process goes on:")
        async with app.worker():
            print("the agent asks:", await asyncio.wait_for(asked(run), 60))
            print("it is waiting, and no worker has it:", (await run.info()).worker is None)
            await run.signal("answer", "Celsius")
            print("answer:", await run.result(timeout=60))
        steps = await run.steps()
        print(f"{len(steps)} records:", ", ".join(done.name for done in steps))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(app.work())
    else:
        with tempfile.TemporaryDirectory(prefix="stepfast-agent-") as folder, contextlib.chdir(folder):
            asyncio.run(main())
