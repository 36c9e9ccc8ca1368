"""Runs that talk: streams, questions, events, signals with ids, names that one run has; and those who talk with them.

The code plays a program, which is its input. Whatever it takes, and whatever those outside are told, is noted in the
ledger, for the judge (tests/judge/talking.py). Storms and the simulation have the same code and the same talkers.

    python -m tests.faults.talking work JSON        a worker of a storm, until it is killed
    python -m tests.faults.talking talk JSON        publishes events and opens sessions, until it is killed
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import secrets
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import stepfast
from stepfast import (
    AlreadyRunning,
    Backoff,
    Context,
    EventTimeout,
    InvalidState,
    QuestionRefused,
    QuestionTimeout,
    RunEnded,
    RunNotFound,
    SignalTimeout,
    Stepfast,
)
from stepfast.settings import Settings
from tests.faults import workload
from tests.faults.bystanders import TROUBLE
from tests.judge.ledger import Ledger, now

NOTES = "talk"
TALK, SESSION, BEGUN = "talk", "session", "begun"
WORKFLOWS = (TALK, SESSION, BEGUN)
GO, NEWS = "go", "news"
"""Events: what starts runs, and what runs wait for."""
QUICK = Backoff(base=0.05, factor=1, max=0.05, jitter=False)
_REFUSED = "not now"

Op = dict[str, Any]


class Talker:
    """What the code of one execution says and takes."""

    def __init__(self, note: Callable[..., None]) -> None:
        self._note = note
        self.said: Counter[str] = Counter()

    async def line(self, ctx: Context, program: list[Op]) -> None:
        """One op after the other."""
        for op in program:
            await getattr(self, "_" + op["do"])(ctx, op)

    def _took(self, ctx: Context, place: str, what: str, thing: str, **more: Any) -> None:
        self._note("took", what=what, run=ctx.run_id, place=place, thing=thing, **more)

    async def _say(self, ctx: Context, op: Op) -> None:
        out, branch = ctx.stream(op["stream"]), ctx._cursor.branch
        for _ in range(op["items"]):
            said = f"{op['stream']}|{branch}"
            out.send({"by": branch, "n": self.said[said]})
            self.said[said] += 1
        if op.get("flush"):
            await out.flush()

    async def _speak(self, ctx: Context, op: Op) -> None:
        how: Any = {"retries": 40, "backoff": QUICK}
        await ctx.options(**how).step(_speak, _place(ctx), op)

    async def _sleep(self, ctx: Context, op: Op) -> None:
        await ctx.sleep(op["seconds"])

    async def _stumble(self, ctx: Context, op: Op) -> None:
        if ctx.attempt == 1:
            raise RuntimeError("not at this attempt")

    async def _branches(self, ctx: Context, op: Op) -> None:
        await ctx.gather(*(ctx.branch(self.line, each) for each in op["lines"]))

    async def _listen(self, ctx: Context, op: Op) -> None:
        place = _place(ctx)
        try:
            if op.get("race"):
                waits: Any = {"asked": ctx.wait_question(op["name"]), "late": ctx.sleep(op["race"])}
                winner, question = await ctx.first(**waits)
                if winner == "late":
                    return
            else:
                question = await ctx.wait_question(op["name"], timeout=op["timeout"])
        except QuestionTimeout:
            return
        self._took(ctx, place, "question", question.value, id=question.id)
        if op.get("refuses"):
            await question.refuse(_REFUSED)
        else:
            await question.answer(answer_of(question.value, ctx.run_id))
        self._note("gave", thing=question.value)

    async def _hear(self, ctx: Context, op: Op) -> None:
        place, key = _place(ctx), op.get("key")
        try:
            event = await ctx.wait_event(NEWS, key=key, timeout=op["timeout"])
        except EventTimeout:
            self._note("missed", run=ctx.run_id, place=place, key=key)
            return
        self._took(ctx, place, "event", event.data, key=key)

    async def _word(self, ctx: Context, op: Op) -> None:
        place = _place(ctx)
        try:
            self._took(ctx, place, "word", await ctx.wait_signal("word", type=str, timeout=op["timeout"]))
        except SignalTimeout:
            return


def answer_of(value: str, run_id: str) -> str:
    """What a run answers."""
    return f"{value} heard by {run_id}"


def _place(ctx: Context) -> str:
    return f"{ctx._cursor.branch}:{ctx._cursor.position}"


async def _speak(place: str, op: Op) -> None:
    """A step that sends, and fails now and then, before, amid or after it."""
    out = stepfast.stream(op["stream"])
    falls = random.randrange(op["items"] + 1) if random.random() < op["risk"] else None
    for number in range(op["items"]):
        if number == falls:
            raise ValueError("no more")
        out.send({"step": place, "n": number})
        await asyncio.sleep(op.get("pause", 0))
    if falls is not None:
        raise ValueError("too late")


def add_to(app: Stepfast, ledger: Callable[[], Ledger]) -> None:
    """Declare the code."""

    def note(kind: str, **more: Any) -> None:
        ledger().append(NOTES, {"kind": kind, "at": now(), **more})

    @app.workflow(name=TALK, max_attempts=20, backoff=QUICK)
    async def talk(ctx: Context, input: dict[str, Any]) -> None:
        talker = Talker(note)
        await talker.line(ctx, input["program"])
        note("finished", run=ctx.run_id, said=dict(talker.said))
        if input.get("left"):
            ctx.continue_as({**input, "left": input["left"] - 1})

    @app.workflow(name=SESSION, max_attempts=20, backoff=QUICK)
    async def session(ctx: Context, input: dict[str, Any]) -> None:
        for _ in range(input["messages"]):
            place = _place(ctx)
            try:
                message = await ctx.wait_signal("message", type=str, timeout=input["linger"])
            except SignalTimeout:
                break
            note("took", what="message", run=ctx.run_id, place=place, thing=message)
            if input.get("pause"):
                await ctx.sleep(input["pause"])
        else:
            if input.get("left"):
                ctx.continue_as({**input, "left": input["left"] - 1})

    @app.task(name=BEGUN, max_attempts=20, backoff=QUICK)
    async def begun(nonce: str) -> str:
        return nonce

    app.on(GO, begun)


class Talkers:
    """Those who talk with runs. What they are told is noted."""

    def __init__(self, app: Stepfast, ledger: Ledger) -> None:
        self._app = app
        self._ledger = ledger

    def _note(self, kind: str, **more: Any) -> None:
        self._ledger.append(NOTES, {"kind": kind, "at": now(), **more})

    async def ask(self, run_id: str, name: str, id: str | None = None, timeout: float | None = None) -> None:
        """Ask a run something. With an id, an asker who does not know whether it was heard asks again."""
        given = None if id is None else f"{name} {id}"
        value = secrets.token_hex(8) if given is None else f"{given} of {run_id}"
        self._note("asks", run=run_id, value=value)
        answer: Any = None
        while True:
            try:
                answer, how = await self._app.get(run_id).ask(name, value, id=given, timeout=timeout), "answered"
            except QuestionRefused:
                how = "refused"
            except RunEnded:
                how = "ended"
            except (RunNotFound, InvalidState):
                how = "not asked"
            except TROUBLE as error:
                if given is not None and timeout is None:
                    await asyncio.sleep(0.3)
                    continue
                how = "timeout" if isinstance(error, TimeoutError) else "trouble"
            break
        self._note("told", run=run_id, value=value, how=how, answer=answer)

    async def publish(self, name: str, key: str | None = None, id: str | None = None) -> None:
        """Publish an event, whose data is its nonce; again after a trouble, if it has an id."""
        given = None if id is None else f"{id} {key}"
        nonce = secrets.token_hex(8) if given is None else f"event {name} {given}"
        self._note("publishes", name=name, key=key, nonce=nonce)
        while True:
            try:
                await self._app.publish(name, nonce, key=key, id=given)
                self._note("published", name=name, key=key, nonce=nonce)
            except TROUBLE:
                if id is not None:
                    await asyncio.sleep(0.3)
                    continue
            return

    async def word(self, run_id: str, id: str) -> None:
        """Send a signal with an id; those of the same id are one."""
        word = f"{id} of {run_id}"
        self._note("sends", run=run_id, nonce=word)
        while True:
            try:
                await self._app.signal(run_id, "word", word, id=id)
                self._note("sent", run=run_id, nonce=word)
            except (InvalidState, RunNotFound):
                pass
            except TROUBLE:
                await asyncio.sleep(0.3)
                continue
            return

    async def open(self, name: str, on_conflict: Any, input: Op) -> Any:
        """Start a session by its name, or send it a message; the handle, if it is known."""
        nonce = secrets.token_hex(8)
        self._note("opens", name=name, nonce=nonce)
        try:
            run = await self._app.start(SESSION, input, unique=name, on_conflict=on_conflict, signal=("message", nonce))
        except AlreadyRunning:
            self._note("refused", nonce=nonce)
            return None
        except TROUBLE:
            return None
        self._note("opened", name=name, nonce=nonce, run=run.id, existed=run.existed)
        return run

    async def read(self, run_id: str, stream: str) -> None:
        """Read a stream to its end, as a page does that comes back where it was."""
        items: list[Any] = []
        after = None
        while True:
            try:
                async for item in self._app.get(run_id).stream(stream, after=after):
                    items.append([item.offset, item.value, item.restarted])
                    after = item.offset
            except TROUBLE:
                await asyncio.sleep(0.2)
                continue
            break
        self._note("read", run=run_id, stream=stream, items=items)


# -- for storms --------------------------------------------------------------------------------------------------------


def make_app(url: str, ledger: Ledger, settings: Settings, **options: Any) -> Stepfast:
    """The application that every process of such a storm has."""
    app = Stepfast(url, settings=settings, **options)
    add_to(app, lambda: ledger)
    return app


def program(chance: random.Random, timeouts: tuple[float, ...], depth: int = 1) -> list[Op]:
    """A program that ends by itself: every wait has its time."""
    return [_op(chance, timeouts, depth) for _ in range(chance.randint(2, 5))]


def _op(chance: random.Random, timeouts: tuple[float, ...], depth: int) -> Op:
    do = chance.choice(("say", "say", "speak", "speak", "listen", "listen", "hear", "hear", "word", "sleep", "stumble",
                        *(["branches"] if depth else [])))  # fmt: skip
    stream, name, timeout = chance.choice("st"), chance.choice("qr"), chance.choice(timeouts)
    items = chance.choice((1, 2, 3, 30))
    if do == "say":
        return {"do": do, "stream": stream, "items": items, "flush": chance.random() < 0.3}
    if do == "speak":
        pause = chance.choice((0, 0, 0.01))
        return {"do": do, "stream": stream, "items": items, "risk": chance.choice((0, 0.5)), "pause": pause}
    if do == "listen":
        race = {"race": chance.choice((0.1, 1.0))} if chance.random() < 0.3 else {}
        return {"do": do, "name": name, "timeout": timeout, "refuses": chance.random() < 0.2, **race}
    if do == "hear":
        return {"do": do, "key": chance.choice((None, "k", "l")), "timeout": timeout}
    if do == "word":
        return {"do": do, "timeout": timeout}
    if do == "branches":
        return {"do": do, "lines": [program(chance, timeouts, 0)[:3] for _ in range(2)]}
    return {"do": do, "seconds": chance.choice((0.05, 0.5))}


def session_input(chance: random.Random) -> Op:
    """How long a session lives, and how it goes on."""
    return {
        "messages": chance.choice((1, 2, 5)), "linger": chance.choice((0.2, 1.0, 2.0)),
        "left": chance.choice((0, 0, 1, 2)), "pause": chance.choice((0, 0, 0.3)),
    }  # fmt: skip


POLICIES = ("return", "return", "return", "raise", "queue", "cancel")


async def say_something(talkers: Talkers) -> None:
    """Publish an event, or open a session."""
    if random.random() < 0.5:
        name, key = random.choice((NEWS, NEWS, GO)), random.choice((None, "k", "l"))
        await talkers.publish(name, key, random.choice((None, f"e{random.randrange(50)}")))
    else:
        await talkers.open(random.choice("mnop"), random.choice(POLICIES), session_input(random.Random()))


async def _talk(app: Stepfast, ledger: Ledger, arguments: dict[str, Any]) -> None:
    """Publish and open sessions, until killed."""
    await workload.until_connected(app)
    async with app:
        ledger.append("ready", {"pid": os.getpid()})
        while True:
            await say_something(Talkers(app, ledger))
            await asyncio.sleep(random.random() * 0.2)


def main(which: str, arguments: dict[str, Any]) -> None:
    """A process of a storm."""
    workload.die_with_the_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    ledger = Ledger(Path(arguments["folder"]))
    app = make_app(arguments["url"], ledger, Settings(**arguments["settings"]), logger=logging.getLogger("worker"))
    asyncio.run({"work": workload.work, "talk": _talk}[which](app, ledger, arguments))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
