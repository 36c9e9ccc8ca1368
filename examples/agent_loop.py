"""An agent: a model decides, tools act, and every decision and every act is recorded.

The process is killed in the middle of a tool call, as a deploy or a full memory would do. The next process replays the
conversation from its records: no decision is asked of the model twice, and no finished tool is called twice. The model
is a fake one that needs no key; replace `think` by a call to yours.

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
from pathlib import Path

from holdfast import Backoff, Context, Holdfast, Settings, step

# Relative to the folder the example runs in, which is a temporary one; the lease is short so that nobody has to wait.
app = Holdfast("sqlite:///agent.db", settings=Settings(lease=2, sweep=0.25))

SCRIPT = str(Path(__file__).resolve())
MAX_TURNS = 10


@dataclass
class Message:
    """One line of the conversation."""

    role: str
    text: str


@dataclass
class Decision:
    """What the model wants: a tool with its argument, or to answer."""

    tool: str | None = None
    argument: str = ""
    answer: str = ""


@dataclass
class Question:
    """The input of a run."""

    text: str
    cities: list[str] = field(default_factory=list)


def say(text: str) -> None:
    """Show who does what."""
    print(f"  [{'first process' if '--worker' in sys.argv else 'next process'}] {text}", flush=True)


@step(retries=4, timeout=60, backoff=Backoff(base=0.5, max=20))
async def think(question: Question, conversation: list[Message]) -> Decision:
    """The model. This one looks at the weather of each city, converts it, then answers."""
    say(f"model: turn {len(conversation) + 1}")
    seen = [message for message in conversation if message.role == "tool"]
    if len(seen) < len(question.cities):
        return Decision("weather", question.cities[len(seen)])
    return Decision(answer="; ".join(message.text for message in seen))


async def weather(city: str) -> str:
    """A tool. In the first process it is the end of it, when asked for the second city."""
    say(f"tool: weather in {city}")
    if city == "Oslo" and "--worker" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(0.05)
    return f"{city} has {sum(map(ord, city)) % 30} degrees"


TOOLS = {"weather": weather}


@app.workflow
async def agent(ctx: Context, question: Question) -> str:
    """Think, act, think again. On replay the recorded decisions lead down the same path."""
    conversation: list[Message] = []
    for _ in range(MAX_TURNS):
        decision = await ctx.step(think, question, conversation)
        if decision.tool is None:
            return decision.answer
        conversation.append(Message("model", f"{decision.tool}({decision.argument})"))
        text = await ctx.step(f"tool {decision.tool}", TOOLS[decision.tool], decision.argument)
        conversation.append(Message("tool", text))
    return "I do not know."


async def main() -> None:
    """Start a run, let a process die with it, go on in this one."""
    async with app:
        run = await app.start(agent, Question("Where is it warmest?", ["Rome", "Oslo", "Lima"]))
        print("the first process works, until it dies:")
        process = await asyncio.create_subprocess_exec(sys.executable, SCRIPT, "--worker")
        print(f"it ended with {signal.Signals(-await process.wait()).name}; this process goes on:")
        async with app.worker():
            print("answer:", await run.result(timeout=60))
        steps = await run.steps()
        print(f"{len(steps)} records:", ", ".join(done.name for done in steps))


if __name__ == "__main__":
    if "--worker" in sys.argv:
        asyncio.run(app.work())
    else:
        with tempfile.TemporaryDirectory(prefix="holdfast-agent-") as folder, contextlib.chdir(folder):
            asyncio.run(main())
