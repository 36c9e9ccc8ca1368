"""Mounted in another application, under any prefix; and served by itself behind a proxy that adds one."""

from __future__ import annotations

import re
import runpy
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from stepfast import Stepfast, StepfastError
from stepfast.console import console
from stepfast.console.app import prefixed
from stepfast.console.refusals import Refused
from tests.console.conftest import JSON, OWN, TOKEN, browse
from tests.docs.pages import ROOT


@pytest.fixture
async def app() -> AsyncIterator[Stepfast]:
    async with Stepfast("sqlite://") as made:

        @made.task
        async def job(given: str) -> None: ...

        yield made


def under(prefix: str, served: Any) -> Any:
    """As a server does that is told of a prefix, and as frameworks do that mount."""

    async def asgi(scope: Any, receive: Any, send: Any) -> None:
        await served({**scope, "root_path": prefix}, receive, send)

    return asgi


@pytest.mark.parametrize("prefix", ["/stepfast", "/deep/er", "/a b"])
async def test_every_link_has_the_prefix(app: Stepfast, prefix: str) -> None:
    run = await app.start("job", "x")
    outer = Starlette(routes=[Mount(prefix, console(app, token=TOKEN))])
    shown = prefix.replace(" ", "%20")
    async with browse(outer, token=None) as client:
        answer = await client.get(f"{shown}/runs?token={TOKEN}")
        assert answer.headers["location"] == f"{shown}/runs"
        assert f"Path={shown}/;" in answer.headers["set-cookie"]
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        for address in ("/runs", f"/runs/{run.id}", f"/runs/{run.id}/confirm/cancel", "/nothing"):
            page = (await client.get(f"{shown}{address}")).text
            links = re.findall(r'(?:href|src|action|data-load)="([^"]*)"', page)
            assert links and all(link.startswith((f"{shown}/", "#")) for link in links)
            for link in links:
                if "/static/" in link:
                    assert (await client.get(link)).status_code == 200
        done = await client.post(f"{shown}/runs/{run.id}/cancel", headers=OWN)
        assert done.headers["location"] == f"{shown}/runs/{run.id}?done=cancel"
        assert (await client.get(shown + "/")).headers["location"] == f"{shown}/runs"


async def test_a_server_that_is_told_of_the_prefix(app: Stepfast) -> None:
    async with browse(under("/stepfast", console(app, token=TOKEN))) as client:
        for address in ("/stepfast/runs", "/runs"):
            page = await client.get(address)
            assert page.status_code == 200 and 'action="/stepfast/runs"' in page.text


@pytest.mark.parametrize("given", ["/stepfast", "stepfast", "/stepfast/"])
async def test_a_proxy_may_take_the_prefix_off_or_hand_it_on(app: Stepfast, given: str) -> None:
    served = prefixed(console(app, token=TOKEN), given)
    async with browse(served) as client:
        for address in ("/stepfast/runs", "/runs", "/runs/", "/stepfast/runs/"):
            page = await client.get(address)
            assert page.status_code == 200 and 'action="/stepfast/runs"' in page.text
        for address in ("/", "/stepfast", "/stepfast/"):
            assert (await client.get(address, params={"token": TOKEN})).headers["location"] == "/stepfast/"
        assert (await client.get("/stepfastruns")).status_code == 404


async def test_a_prefix_that_is_also_a_page(app: Stepfast) -> None:
    async with browse(prefixed(console(app, token=TOKEN), "/runs")) as client:
        assert (await client.get("/queues")).status_code == 200
        assert 'action="/runs/runs"' in (await client.get("/runs")).text


async def test_a_name_with_a_slash_is_one_part(app: Stepfast) -> None:
    async with browse(console(app, token=TOKEN)) as client:
        one, two = await client.get("/runs/a%2Fb"), await client.get("/runs/a/b")
        assert (one.status_code, two.status_code) == (404, 404)
        assert "that is not a run id" in one.text  # the page of a run was asked for
        assert "there is no such page" in two.text
        assert (await client.get("/runs/")).status_code == 200
        run = await app.start("job", "x")
        sent = await client.post(f"/runs/{run.id}%2Fcancel", headers=OWN)
        assert sent.status_code == 405 and (await run.info()).status == "queued"
        assert (await client.get("/%72uns")).status_code == 200  # another way to write the same address


async def test_errors_of_an_application_around_it_are_not_needed(app: Stepfast) -> None:
    outer = Starlette(routes=[Mount("/c", console(app, token=TOKEN))])
    async with browse(outer) as client:
        answer = await client.get("/c/runs/0197a1b2-0000-7000-8000-000000000000/cancel")
        assert answer.status_code == 405 and "content-security-policy" in answer.headers


async def test_errors_do_not_reach_an_application_around_it(app: Stepfast) -> None:
    def handle(request: Any, error: Exception) -> Any:
        raise AssertionError("an error of the console is answered by the console")

    handlers: Any = dict.fromkeys((404, 405, 500, StepfastError, Refused, Exception), handle)
    outer = Starlette(routes=[Mount("/c", console(app, token=TOKEN))], exception_handlers=handlers)
    async with browse(outer) as client:
        run = "0197a1b2-0000-7000-8000-000000000000"
        for address, status in ((f"/c/runs/{run}", 404), ("/c/nothing", 404), ("/c/runs?limit=0", 400)):
            answer = await client.get(address, headers=JSON)
            assert answer.status_code == status and answer.json()["error"]
            assert "content-security-policy" in answer.headers
        assert (await client.put("/c/runs", headers=OWN)).status_code == 405


@pytest.mark.parametrize(("prefix", "path"), [("/ä", "/%c3%a4"), ("/ä", "/%C3%A4"), ("/a b", "/%61%20b")])
async def test_a_prefix_may_be_encoded_in_any_way(app: Stepfast, prefix: str, path: str) -> None:
    outer = Starlette(routes=[Mount(prefix, console(app, token=TOKEN))])
    async with browse(outer) as client:
        assert (await client.get(f"{path}/runs")).status_code == 200
        assert "there is no such page" in (await client.get(f"{path}/runs/a%2Fb/c")).text


async def test_the_example_in_fastapi_serves_its_requests_and_the_console() -> None:
    """Its worker lives as long as the application does, and its console knows whom the proxy names."""
    example = runpy.run_path(str(ROOT / "examples" / "fastapi_app.py"))
    async with example["lifespan"](None), browse(example["api"], token=None) as client:
        run_id = (await client.post("/pictures/cat.png")).json()["run"]
        await example["app"].get(run_id).result(timeout=30)
        assert (await client.get(f"/runs/{run_id}")).json()["status"] == "completed"
        page = f"/stepfast/runs/{run_id}"
        assert (await client.get(page)).status_code == 401
        seen = await client.get(page, headers={"x-forwarded-user": "bob"})
        assert seen.status_code == 200 and "thumbnails" in seen.text
        for name, status in (("bob", 403), ("ada", 303)):
            answer = await client.post(
                f"{page}/retry", headers={**OWN, "x-forwarded-user": name}, data={"from_start": "1"}
            )
            assert answer.status_code == status, name
