"""``docs``: the documents of the version that is installed, without the web."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated

import typer

from .. import documents
from ..monitoring.text import listed
from .exits import NOT_FOUND, complain
from .options import option
from .output import say, write_json, write_table, write_text
from .session import Session


def docs(
    session: Session,
    page: Annotated[str | None, typer.Argument(help="As listed; #part: only that part.", show_default=False)] = None,
    search: Annotated[str | None, option("--search", "-s", help="List the parts that have all of these words.")] = None,
) -> None:
    """List the documents that came with this version, print one of them, or search them all."""
    if search is not None:
        _search(session, search, page)
    elif page is None:
        known = documents.pages()
        if session.json:
            write_json([{"page": name, "title": title} for name, title in known.items()])
        else:
            write_table(("page", "title"), list(known.items()))
    else:
        name, _, anchor = page.partition("#")
        name = _one(name)
        text = documents.read(name, anchor)
        if text is None:
            _refuse(f"the page {name} has no part #{anchor}")
        elif session.json:
            write_json({"page": name, "text": text})
        else:
            write_text(text)


def _search(session: Session, words: str, page: str | None) -> None:
    only = None if page is None else _one(page.partition("#")[0])
    found = [(section, line) for section, line in documents.search(words) if only in (None, section.page)]
    if session.json:
        write_json([{"page": section.name, "heading": section.heading, "line": line} for section, line in found])
    elif found:
        write_table(("page", "heading", "line"), [(section.name, section.heading, line) for section, line in found])
    else:
        say(f"no part of the documents has all of these words: {words}")


def _one(name: str) -> str:
    """The page that is meant."""
    found = documents.find(name)
    if len(found) == 1:
        return found[0]
    known = documents.pages()
    near = found or get_close_matches(name, [*known, *(each.rpartition("/")[2] for each in known)], 3)
    near = sorted({each for one in near for each in documents.find(one)})
    meant = f"; did you mean {' or '.join(near)}?" if near else "; `stepfast docs` lists them"
    _refuse(f"there is no page {name!r}{meant}" if not found else f"there are several pages {name!r}: {listed(found)}")
    raise AssertionError


def _refuse(why: str) -> None:
    complain(why)
    raise typer.Exit(NOT_FOUND)
