"""A graph of LangGraph whose process is killed in the middle of a node; another process continues.

Needs `pip install 'stepfast[langgraph]'`. The nodes only write down that they were called.
"""

from __future__ import annotations

import asyncio
import operator
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, TypedDict

from langgraph.graph import START, StateGraph
from langgraph.types import Send, interrupt

from stepfast import Context, Stepfast
from stepfast.langgraph import durable

FOLDER = Path(os.environ.get("AGENT_FOLDER", "."))
app = Stepfast(f"sqlite:///{FOLDER / 'agent.db'}")


class State(TypedDict, total=False):
    city: str
    found: Annotated[list[str], operator.add]
    approved: bool


def note(what: str) -> None:
    with (FOLDER / "notes").open("a") as file:
        file.write(f"{what}\n")


async def plan(state: State) -> State:
    note("plan")
    return {}


def each_city(state: State) -> list[Send]:
    return [Send("weather", {"city": city}) for city in ("Oslo", "Rome")]


async def weather(state: State) -> State:
    city = state["city"]
    note(city)
    if city == "Rome" and os.environ.get("KILLED"):
        await asyncio.sleep(0.5)  # Oslo has been recorded by now
        os.kill(os.getpid(), signal.SIGKILL)
    return {"found": [f"{city} {4 if city == 'Oslo' else 21}"]}


async def approve(state: State) -> State:
    return {"approved": interrupt("send it?")}


builder = StateGraph(State)
for node in (plan, weather, approve):
    builder.add_node(node)
builder.add_edge(START, "plan")
builder.add_conditional_edges("plan", each_city, ["weather"])
builder.add_edge("weather", "approve")
graph = builder.compile()


@app.workflow
async def ask(ctx: Context, question: str) -> str:
    state = await durable(graph).ainvoke({})
    return f"{', '.join(state['found'])}: {'sent' if state['approved'] else 'kept back'}"


async def work(question: str) -> None:
    async with app, app.worker(lease=2):
        run = await app.start(ask, question, key="the-question")
        await run.signal("interrupt:approve", True)
        print(await run.result(timeout=60))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"AGENT_FOLDER": folder}
        for killed in ("yes", ""):
            child = [sys.executable, __file__, "Where is it warm?"]
            done = subprocess.run(child, env=environment | {"KILLED": killed}, capture_output=True, text=True)
            print("killed in the middle of a node" if done.returncode < 0 else done.stdout.strip() or done.stderr)
        notes = (Path(folder) / "notes").read_text().split()
        print(f"planned {notes.count('plan')} time, Oslo {notes.count('Oslo')}, Rome {notes.count('Rome')}")


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1])) if sys.argv[1:] else main()
