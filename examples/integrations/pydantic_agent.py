"""An agent of pydantic-ai whose process is killed in the middle of a tool call; another process continues.

Needs `pip install 'stepfast[pydantic-ai]'`. A function stands in for the model, so that it runs anywhere.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from stepfast import Context, Stepfast
from stepfast.pydantic_ai import StepfastDurability

FOLDER = Path(os.environ.get("AGENT_FOLDER", "."))
app = Stepfast(f"sqlite:///{FOLDER / 'agent.db'}")


def note(what: str) -> None:
    with (FOLDER / "notes").open("a") as file:
        file.write(f"{what}\n")


def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    note("model")
    seen = [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
    if not seen:
        return ModelResponse(parts=[ToolCallPart("weather", {"city": city}, city) for city in ("Oslo", "Rome")])
    return ModelResponse(parts=[TextPart(", ".join(f"{part.tool_call_id} {part.content}" for part in seen))])


async def weather(city: str) -> int:
    """How warm it is in a city."""
    note(city)
    if city == "Rome" and os.environ.get("KILLED"):
        await asyncio.sleep(0.5)  # Oslo has been recorded by now
        os.kill(os.getpid(), signal.SIGKILL)
    return {"Oslo": 4, "Rome": 21}[city]


agent = Agent(FunctionModel(model), name="forecast", tools=[weather], capabilities=[StepfastDurability()])


@app.workflow
async def ask(ctx: Context, question: str) -> str:
    return (await agent.run(question)).output


async def work(question: str) -> None:
    async with app, app.worker(lease=2):
        run = await app.start(ask, question, key="the-question")
        print(await run.result(timeout=60))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"AGENT_FOLDER": folder}
        for killed in ("yes", ""):
            child = [sys.executable, __file__, "Where is it warm?"]
            done = subprocess.run(child, env=environment | {"KILLED": killed}, capture_output=True, text=True)
            print("killed in the middle of a tool call" if done.returncode < 0 else done.stdout.strip())
        notes = (Path(folder) / "notes").read_text().split()
        print(f"asked the model {notes.count('model')} times, Oslo {notes.count('Oslo')}, Rome {notes.count('Rome')}")


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1])) if sys.argv[1:] else main()
