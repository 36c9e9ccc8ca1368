"""``init`` and ``skill``: a new project that runs, and what a coding assistant has to know of Stepfast."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from .. import documents
from .command import Session
from .exit_codes import FAILED, USAGE, complain
from .output import say, write_json, write_text

_APP = '''"""A shop: each order is a durable workflow."""

import asyncio
from dataclasses import dataclass

from stepfast import Backoff, Context, Stepfast, step

app = Stepfast()  # STEPFAST_URL, else the file stepfast.db in this folder


@dataclass
class Order:
    id: str
    cents: int


@step(retries=5, timeout=10, backoff=Backoff(base=0.5, max=30))
async def charge(order: Order, key: str) -> str:
    return f"receipt for {order.id}"  # call your payment service here, with the key


def pack(order: Order) -> str:
    return f"parcel {order.id}"


@app.workflow
async def checkout(ctx: Context, order: Order) -> str:
    receipt = await ctx.step(charge, order, ctx.step_key)  # recorded before the next line runs
    parcel = await ctx.step(pack, order)
    return f"{parcel}, {receipt}"


async def main() -> None:
    async with app, app.worker():
        run = await app.start(checkout, Order("o-1", 999), key="o-1")  # same key: the same run
        print(await run.result(timeout=30))


if __name__ == "__main__":
    asyncio.run(main())
'''

_TEST = '''"""Run by pytest: the workflow ends alike wherever its worker dies."""

import asyncio

from app import Order, app, charge, checkout
from stepfast.testing import Lab, crash_everywhere


async def fake_charge(order: Order, key: str) -> str:
    return f"receipt for {order.id}"


async def first_try_fails() -> None:
    async with Lab(app) as lab:
        lab.replace(charge, fake_charge)
        lab.fail(charge, times=1)
        run = await lab.start(checkout, Order("o-1", 999))
        await lab.advance(60)  # the pause before the second try takes no time here
        assert await run.result() == "parcel o-1, receipt for o-1"
        assert lab.calls(charge) == 2


def test_a_charge_that_fails_is_tried_again() -> None:
    asyncio.run(first_try_fails())


def test_an_order_ends_alike_wherever_its_worker_dies() -> None:
    asyncio.run(crash_everywhere(app, checkout, Order("o-1", 999), replace={charge: fake_charge}))
'''

_README = """# {name}

    python app.py                    start an order here, with a worker in the same process
    stepfast runs                    list the runs
    stepfast show RUN                what a run has done, step by step
    stepfast worker app:app          a worker of its own, as in production
    stepfast start checkout '{{"id": "o-2", "cents": 500}}' --wait
    stepfast console                 runs, queues and workers in a browser
    pytest                           the tests

Runs are kept in `stepfast.db` in this folder. For Postgres, set `STEPFAST_URL=postgresql://user@host/database`.
`stepfast docs` lists the documents.
"""

_FILES = {
    "app.py": _APP,
    "test_app.py": _TEST,
    "README.md": _README,
    "requirements.txt": "stepfast[cli,console,postgres]\npytest\n",
    ".gitignore": "stepfast.db*\n__pycache__/\n.venv/\n",
}
_COMMANDS = ("python app.py", "stepfast runs")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


def init(
    session: Session,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Made if it does not exist; must be empty.")],
) -> None:
    """Make a small project that runs: a workflow, its tests, and a README. Prints the two commands to try it."""
    folder = folder.absolute()
    if not _NAME.fullmatch(folder.name):
        complain(f"{folder.name!r} is no name for a project: letters, digits, _, - and . are")
        raise typer.Exit(USAGE)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            complain(f"the folder {folder} is not empty: name another one, nothing was written")
            raise typer.Exit(FAILED)
        for name, text in _FILES.items():
            filled = text.format(name=folder.name) if name == "README.md" else text
            (folder / name).write_text(filled, encoding="utf-8")
    except OSError as error:
        complain(f"the project could not be written: {error}")
        raise typer.Exit(FAILED) from None
    if session.json:
        write_json({"folder": str(folder), "files": list(_FILES), "commands": list(_COMMANDS)})
        return
    say(f"made {', '.join(_FILES)} in {folder}; there, try:")
    write_text("\n".join(_COMMANDS))


_HEAD = """---
name: stepfast
description: Write, test and operate durable workflows with stepfast for Python (durable execution on Postgres, \
SQLite). Use when code imports stepfast, or when work must survive crashes and run exactly once.
---

"""
_PAGE = "assistants"


def skill(
    session: Session,
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FOLDER]", help="Write FOLDER/stepfast/SKILL.md, as in .claude/skills.", show_default=False
        ),
    ] = None,
) -> None:
    """Print what a coding assistant has to know of Stepfast, in the form of an agent skill, or write it to a folder."""
    text = _HEAD + (documents.read(_PAGE) or "")
    if folder is None:
        if session.json:
            write_json({"name": "stepfast", "text": text})
        else:
            write_text(text)
        return
    file = folder / "stepfast" / "SKILL.md"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        complain(f"the skill could not be written: {error}")
        raise typer.Exit(FAILED) from None
    if session.json:
        write_json({"name": "stepfast", "file": str(file)})
    else:
        say(f"wrote {file}")
