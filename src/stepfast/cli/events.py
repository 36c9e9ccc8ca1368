"""``publish`` and ``events``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from ..engine.events import time_of
from ..events import EventInfo
from ..monitoring.text import ago, count
from .command import Session, json_argument, option
from .output import say, write_json, write_table


async def publish(
    session: Session,
    name: Annotated[str, typer.Argument(help="The name of the event.")],
    data: Annotated[str | None, typer.Argument(metavar="[JSON]", help="Its data (- reads stdin).")] = None,
    key: Annotated[str | None, option("--key", help="What it is about, such as an order.")] = None,
    id: Annotated[str | None, option("--id", help="Under the same name and id it is published once.")] = None,
) -> None:
    """Publish an event, for runs that wait for it and workflows that it starts, and print its id."""
    given = json_argument(data, "the data")
    async with session.writing() as app:
        event_id = await app.publish(name, given, key=key, id=id)
    write_json({"id": event_id, "name": name, "key": key}) if session.json else print(event_id)


async def events(
    session: Session,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Only events of this name.")] = None,
    key: Annotated[str | None, option("--key", help="Only events of this key.")] = None,
    limit: Annotated[int, option("--limit", "-n", help="How many. (50)")] = 50,
) -> None:
    """List events, the newest first: which runs took them, and what they started. With --json their data too."""
    async with session.looking() as app:
        found = await app.events(name=name, key=key, limit=limit)
        now = (await (await app.store()).tick("", [], False)).now_ms if found and not session.json else 0
    if session.json:
        write_json([asdict(event) for event in found])
    elif found:
        columns = ("event", "key", "id", "published", "taken by", "starts")
        write_table(columns, [_row(event, now) for event in found])
        for error in {error: None for event in found for error in event.errors}:
            say(f"a start failed: {error}")
    else:
        say("no events")


def _row(event: EventInfo, now_ms: int) -> list[str]:
    parts = [count(len(event.started), "run")] if event.started else []
    parts += [f"{workflow} is due" for workflow in event.to_start]
    taken = str(len(event.taken_by)) if event.matched else "not seen yet"
    return [event.name, event.key or "", event.id, ago(event.published_at, time_of(now_ms)), taken, ", ".join(parts)]
