"""A chat that lasts for days: one run for each conversation, which streams its answers to a browser.

A message starts the run of its conversation, or reaches the one that lives (`unique=`, `signal=`). The agent answers
word by word; a page shows the words as they come. It may be closed and opened, or lose its connection: it reads on
where it was. After a few answers the run continues as another with the end of the history (`ctx.continue_as`), so that
it may go on for ever; the page still follows the first id that it was given.

The model is a fake one that needs no key; replace `words_of` by a call to yours.

    pip install 'stepfast[web]' httpx uvicorn
    python examples/chat_session.py             a conversation in the terminal
    python examples/chat_session.py --serve     a page at http://127.0.0.1:8000
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route

import stepfast
from stepfast import Context, SignalTimeout, Stepfast, step
from stepfast.web import streams

app = Stepfast(os.environ.get("STEPFAST_URL", "sqlite://"))
PAUSE = 0.05
"""Seconds between two words of the fake model."""
ANSWERS = 3
"""Answers after which a run continues as another. A thousand, in production."""


@dataclass
class Talk:
    """The input of a run: the end of what was said, and how often the run has continued as another."""

    history: list[str] = field(default_factory=list)
    parts: int = 1


async def words_of(history: list[str], part: int) -> AsyncIterator[str]:
    """What the model says, word by word."""
    for word in f"You said: {history[-1]} (part {part}, {len(history)} lines known)".split():
        await asyncio.sleep(PAUSE)
        yield word


@step(retries=5)
async def answer(history: list[str], part: int) -> str:
    """Words reach readers while the step works. If it is called again, the first word of that call says so."""
    out, said = stepfast.stream("chat"), list[str]()
    async for word in words_of(history, part):
        said.append(word)
        out.send({"word": word})
    return " ".join(said)


@app.workflow
async def chat(ctx: Context, talk: Talk) -> str:
    """One conversation, or a part of it. It ends after three days of silence, or with a "bye"."""
    history = talk.history
    for _ in range(ANSWERS):
        try:
            text = await ctx.wait_signal("message", type=str, timeout=3 * 86400)
        except SignalTimeout:
            return "it fell asleep"
        ctx.stream("chat").send({"you": text})
        if text == "bye":
            return f"it ended in part {talk.parts}"
        history.append(text)
        history.append(await ctx.step(answer, history, talk.parts))
        ctx.stream("chat").send({"said": True})
    return ctx.continue_as(Talk(history[-4:], talk.parts + 1))


async def say(request: Request) -> Response:
    """A message: the run of the conversation gets it, or is started with it."""
    given = await request.json()
    name = request.path_params["name"]
    run = await app.start(chat, Talk(), unique=name, signal=("message", str(given["text"])[:1000]))
    return JSONResponse({"run": run.id, "goes_on": run.existed})


async def may_read(request: Request, run_id: str) -> bool:
    """Look up your user here."""
    return True


PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><link rel="icon" href="data:,"><title>Chat</title>
<main id="lines"></main>
<form id="form"><input id="text" autocomplete="off" aria-label="message"><button>Send</button></form>
<script>
const name = location.hash.slice(1) || "me", lines = document.getElementById("lines");
let source, run, line;
function add(who, text) {
  line = document.createElement("p");
  line.className = who;
  line.textContent = text;
  lines.append(line);
}
function show(item, again) {
  if (item.you !== undefined) { add("you", item.you); add("agent", ""); }
  else if (item.word !== undefined) line.textContent = ((again ? "" : line.textContent) + " " + item.word).trim();
  else line.dataset.complete = "yes";
}
function follow(id) {
  if (id === run && source && source.readyState !== EventSource.CLOSED) return;
  if (id !== run) lines.replaceChildren();
  run = id;
  localStorage.setItem("run " + name, id);
  source = new EventSource("/streams/" + id + "/chat");
  source.onmessage = (event) => show(JSON.parse(event.data), false);
  source.addEventListener("restarted", (event) => show(JSON.parse(event.data), true));
  source.addEventListener("end", () => source.close());
}
document.getElementById("form").onsubmit = async (event) => {
  event.preventDefault();
  const text = document.getElementById("text");
  const body = JSON.stringify({ text: text.value });
  text.value = "";
  const told = await (await fetch("/chats/" + name, { method: "POST", body })).json();
  if (!run || !told.goes_on || source.readyState === EventSource.CLOSED) follow(told.run);
};
if (localStorage.getItem("run " + name)) follow(localStorage.getItem("run " + name));
</script></html>
"""


@contextlib.asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    """The worker is in this process here; it may be in any other."""
    async with app, app.worker():
        yield


web = Starlette(
    routes=[
        Route("/", lambda request: HTMLResponse(PAGE)),
        Route("/chats/{name}", say, methods=["POST"]),
        Mount("/streams", routes=streams(app, authorize=may_read)),
    ],
    lifespan=lifespan,
)


async def main() -> None:
    """A conversation, and a reader who loses its connection now and then."""
    browser = httpx.AsyncClient(transport=httpx.ASGITransport(web), base_url="http://chat")
    async with lifespan(web), browser:

        async def post(text: str) -> str:
            told = (await browser.post("/chats/ada", json={"text": text})).json()
            print(f"Ada says {text!r}: the conversation", "goes on" if told["goes_on"] else "begins")
            return str(told["run"])

        run_id = await post("hello")
        for text in ("how are you", "tell me more", "and then", "bye"):
            await post(text)
        seen, after = 0, None
        while True:  # each time it reads a few items, and comes back where it was
            ended, items = True, app.get(run_id).stream("chat", after=after, timeout=30)
            async for item in items:
                seen, after = seen + 1, item.offset
                if "you" in item.value:
                    print(f"> {item.value['you']}")
                print(item.value.get("word", "\n" if "said" in item.value else ""), end=" ")
                if seen % 7 == 0:
                    ended = False
                    break
            await items.aclose()
            if ended:
                break
        print(f"\n{await app.get(run_id).result()}, read as {seen} items by one id")


if __name__ == "__main__":
    if "--serve" in sys.argv:
        import uvicorn

        uvicorn.run(web, host="127.0.0.1", port=8000)
    else:
        asyncio.run(main())
