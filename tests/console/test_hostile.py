"""Hostile values change nothing but text: the page is the same as with a harmless one, element by element."""

from __future__ import annotations

from collections.abc import AsyncIterator
from html.parser import HTMLParser
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import pytest
import pytest_asyncio

from stepfast import Context, NonRetryableError, Settings, StepFailed, Stepfast
from stepfast.console import console
from stepfast.console.responses import plain
from tests.console.conftest import JSON, OWN, browse
from tests.console.hostile import HOSTILE

pytestmark = pytest.mark.asyncio(loop_scope="module")

HARMLESS = "harmless"
_LINKS = ("href", "src", "action", "data-load", "formaction")
_DRAWN = {"a", "circle", "defs", "g", "line", "path", "pattern", "rect", "text", "title", "tspan"}


class Outline(HTMLParser):
    """The elements of a page with the names of their attributes; its text; and where its links lead. What a drawing is
    made of depends on how long everything took: of that only the kinds of elements are told."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Any] = []
        self.texts: list[str] = []
        self.links: list[str] = []
        self.drawn: set[str] = set()
        self._drawing = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in _LINKS]
        assert not any(name.startswith("on") or name == "style" for name, _ in attrs)
        if self._drawing:
            self.drawn.add(tag)
        else:
            self.elements.append((tag, *sorted(name for name, _ in attrs)))
        self._drawing = self._drawing or tag == "svg"

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        self._drawing = self._drawing and tag != "svg"
        if not self._drawing:
            self.elements.append(f"/{tag}")

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        self.elements.append("comment")

    def handle_pi(self, data: str) -> None:
        self.elements.append("instruction")

    def unknown_decl(self, data: str) -> None:
        self.elements.append("declaration")


class Scene(NamedTuple):
    client: httpx.AsyncClient
    runs: dict[str, str]
    """Value → a run that is full of it."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene() -> AsyncIterator[Scene]:
    app = Stepfast("sqlite://", settings=Settings(inline_wait=0))

    @app.workflow(max_attempts=1)
    async def full(ctx: Context, value: str) -> None:
        def fail() -> None:
            raise type(f"Error{value}", (NonRetryableError,), {})(value)

        await ctx.set(value, value)
        await ctx.step(value, lambda: {value: [value]})
        try:
            await ctx.step(f"{value} fails", fail)
        except StepFailed:
            await ctx.wait_signal(value.replace(",", ""))

    async with app:
        runs = {
            value: (await app.start(full, value, key=value, tags=[value], concurrency_key=value)).id
            for value in (HARMLESS, *HOSTILE)
        }
        await app.drain()
        for value, run_id in runs.items():
            await app.get(run_id).signal(f"another {value}".replace(",", ""), value)
        async with browse(console(app, auth=lambda request: (HARMLESS, "operate"))) as client:
            yield Scene(client, runs)


async def outlines(scene: Scene, value: str) -> dict[str, Outline]:
    """Every page about a run that is full of a value, and a few that are asked for by it."""
    run_id, asked = scene.runs[value], quote(value, safe="")
    addresses = {
        "run": f"/runs/{run_id}?done={asked}",
        "confirm": f"/runs/{run_id}/confirm/signal",
        "payload": f"/runs/{run_id}/payload?what=step&position=0",
        "traceback": f"/runs/{run_id}/payload?what=error&position=1",
        "filters": f"/runs?workflow={asked}&queue={asked}&tag=x{asked}&reason=&since=",
        "nothing": f"/{asked}",
    }
    found = {}
    for name, address in addresses.items():
        answer = await scene.client.get(address)
        assert answer.status_code == (404 if name == "nothing" else 200), (name, answer.text)
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        found[name] = Outline(answer.text)
    return found


async def test_a_hostile_value_is_only_text(scene: Scene) -> None:
    harmless = await outlines(scene, HARMLESS)
    for value in HOSTILE:
        for name, outline in (await outlines(scene, value)).items():
            assert outline.elements == harmless[name].elements, (value, name)
            assert outline.drawn <= _DRAWN
            assert all(link.startswith(("/", "#")) and not link.startswith(("//", "/\\")) for link in outline.links)
            if name == "run":
                assert str(plain(value)).strip() in "".join(outline.texts), value


async def test_a_list_of_hostile_runs_has_a_line_for_each(scene: Scene) -> None:
    page = (await scene.client.get("/runs?limit=500")).text
    rows = [Outline(row) for row in page.partition("<tbody>")[2].partition("</tbody>")[0].split("</tr>")[:-1]]
    assert len(rows) == len(scene.runs)
    assert all(row.elements == rows[0].elements for row in rows)
    listed = (await scene.client.get("/runs?limit=500", headers=JSON)).json()
    assert {run["key"] for run in listed} == {run["input"] for run in listed} == {HARMLESS, *HOSTILE}


async def test_a_hostile_box_or_form_does_no_more_than_another(scene: Scene) -> None:
    for value in HOSTILE:
        run_id = scene.runs[value]
        answer = await scene.client.get("/runs", params={"find": f" {value} "})
        assert answer.headers.get("location") in (None, f"/runs/{run_id}")
        sent = await scene.client.post(
            f"/runs/{run_id}/cancel{quote(value, safe='')}", data={value: value}, headers=OWN
        )
        assert sent.status_code == 404
        form = {"name": value, "value": f"{{{value}"}
        refused = await scene.client.post(f"/runs/{run_id}/signal", data=form, headers={**OWN, **JSON})
        assert refused.status_code == 400 and refused.headers["content-type"].startswith("application/json")


async def test_there_are_enough_of_them() -> None:
    assert len(set(HOSTILE)) == len(HOSTILE) >= 60
