"""Closed by default: tokens and cookies, roles, read-only, hosts and origins; and that one gate is before them all."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from starlette.datastructures import Headers
from starlette.requests import Request

from stepfast import ConfigurationError, Settings, Stepfast
from stepfast.console import console
from stepfast.console.app import ROUTES
from stepfast.console.refusals import Refused
from stepfast.console.request import read_form
from stepfast.console.security import SECURITY_HEADERS, Hosts, is_loopback, names_for
from tests.console.conftest import JSON, OWN, TOKEN, browse

RUN = "0197a1b2-0000-7000-8000-000000000000"


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STEPFAST_CONSOLE_TOKEN", raising=False)


@pytest.fixture
async def app() -> Any:
    async with Stepfast("sqlite://", settings=Settings(inline_wait=0)) as made:
        yield made


def addresses() -> Iterator[tuple[str, str]]:
    """Every route with its method, and a few addresses that there are not."""
    for route in ROUTES:
        method = "GET" if "GET" in (route.methods or ()) else "POST"
        yield method, route.path.replace("{id}", RUN).replace("{action}", "cancel").replace("{name}", "n")
    yield from [("GET", "/static/console.css"), ("GET", "/nothing"), ("POST", "/nothing"), ("DELETE", "/runs")]


# -- the token


@pytest.mark.parametrize("token", [None, ""])
async def test_without_a_token_nobody_comes_in(app: Stepfast, token: str | None) -> None:
    async with browse(console(app, token=token), token=None) as client:
        for method, address in addresses():
            for given in ("", "?token=", "?token=None", "?token=x"):
                answer = await client.request(method, address + given, headers=OWN)
                assert answer.status_code == 401, address
                assert given.partition("=")[2] not in answer.text or not given.partition("=")[2]


async def test_a_stranger_is_told_nothing(app: Stepfast) -> None:
    async with browse(console(app, token=TOKEN), token="wrong") as client:
        answers = [await client.request(m, f"{a}?secret=77aa99", headers=OWN) for m, a in addresses()]
        assert {answer.status_code for answer in answers} == {401}
        assert len({answer.text for answer in answers}) == 1
        assert "77aa99" not in answers[0].text and RUN not in answers[0].text
        assert (await client.get("/runs", headers=JSON)).json()["error"].startswith("This console is closed")


@pytest.mark.parametrize("address", ["/runs?status=failed&workflow=a%2Fb", "/", "/system", f"/runs/{RUN}"])
async def test_the_token_is_replaced_by_a_cookie(app: Stepfast, address: str) -> None:
    async with browse(console(app, token=TOKEN), token=None) as client:
        sign = "&" if "?" in address else "?"
        answer = await client.get(f"{address}{sign}token={TOKEN}")
        assert answer.status_code == 303
        assert answer.headers["location"] == address
        cookie = answer.headers["set-cookie"].lower()
        assert "samesite=strict" in cookie and "httponly" in cookie and "path=/" in cookie and "secure" not in cookie
        assert TOKEN not in answer.headers["set-cookie"]
        assert (await client.get("/runs")).status_code == 200
    async with browse(console(app, token=TOKEN), token=None, base="https://testserver") as client:
        assert "secure" in (await client.get("/runs", params={"token": TOKEN})).headers["set-cookie"].lower()
        wrong = await client.get("/runs", params={"token": TOKEN + "x"})
        assert wrong.status_code == 200  # the cookie is there already
        assert (await client.get("/runs", headers={"Cookie": "stepfast_console_x=1"})).status_code == 401


@pytest.mark.parametrize(
    ("said", "secure"),
    [("https, http", True), ("HTTPS", True), ("https,http,http", True), ("http, https", False), ("", False)],
)
async def test_behind_several_proxies_the_first_says_how_the_browser_came(
    app: Stepfast, said: str, secure: bool
) -> None:
    """Its cookie goes over an encrypted connection alone if that one is."""
    async with browse(console(app, token=TOKEN), token=None) as client:
        answer = await client.get("/runs", params={"token": TOKEN}, headers={"X-Forwarded-Proto": said})
        assert ("; secure" in answer.headers["set-cookie"].lower()) == secure


async def test_the_cookie_of_one_console_opens_no_other(app: Stepfast) -> None:
    async with browse(console(app, token=TOKEN), token=None) as client:
        cookie = (await client.get("/", params={"token": TOKEN})).headers["set-cookie"].partition(";")[0]
    async with browse(console(app, token="another"), token=None) as client:
        assert (await client.get("/runs", headers={"Cookie": cookie})).status_code == 401


async def test_the_environment_has_the_token(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPFAST_CONSOLE_TOKEN", "from outside")
    async with browse(console(app), token="from outside") as client:
        assert (await client.get("/runs")).status_code == 200


async def test_a_token_leads_to_no_other_site(app: Stepfast) -> None:
    async with browse(console(app, token=TOKEN), token=None) as client:
        for address in ("//evil.example/", "/%2Fevil.example", "/\\evil.example", "/%5Cevil.example"):
            answer = await client.get(f"http://testserver{address}?token={TOKEN}")
            location = answer.headers.get("location", "/")
            assert location.startswith("/") and not location.startswith(("//", "/\\")), location


# -- roles, and read-only


ROLES = [
    ("view", False, 403),
    ("operate", True, 403),
    ("operate", False, None),
]


@pytest.mark.parametrize(("role", "read_only", "refused"), ROLES)
async def test_one_gate_is_before_every_unsafe_method(
    app: Stepfast, role: str, read_only: bool, refused: int | None
) -> None:
    served = console(app, auth=lambda request: ("ada", role), read_only=read_only)
    async with browse(served, token=None) as client:
        for _, address in addresses():
            for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW"):
                answer = await client.request(method, address, headers=OWN)
                assert (answer.status_code == 403) == (refused == 403), (method, address, answer.text)
                assert answer.status_code >= 300


async def test_a_get_of_an_action_is_405(app: Stepfast) -> None:
    async with browse(console(app, token=TOKEN)) as client:
        for action in ("cancel", "pause", "resume", "reschedule", "retry", "signal"):
            answer = await client.get(f"/runs/{RUN}/{action}")
            assert answer.status_code == 405 and answer.headers["allow"] == "POST"


async def test_a_405_names_every_method_of_the_address(app: Stepfast) -> None:
    async with browse(console(app, token=TOKEN)) as client:
        for address, allowed in (("/start", "GET, HEAD, POST"), ("/runs", "GET, HEAD"), ("/queues/pause", "POST")):
            answer = await client.put(address, headers=OWN)
            assert answer.status_code == 405 and answer.headers["allow"] == allowed


async def test_static_files_are_cached_by_their_content(app: Stepfast) -> None:
    async with browse(console(app, token=TOKEN)) as client:
        page = (await client.get("/runs")).text
        for name, kind in (
            ("console.css", "text/css"),
            ("diagrams.css", "text/css"),
            ("console.js", "text/javascript"),
        ):
            found = re.search(rf'"(/static/{name}\?v=([0-9a-f]{{12}}))"', page)
            assert found is not None
            answer = await client.get(found[1])
            assert hashlib.sha256(answer.content).hexdigest().startswith(found[2])
            assert answer.headers["content-type"] == f"{kind}; charset=utf-8"
            assert answer.headers["cache-control"] == "private, max-age=31536000, immutable"
            head = await client.head(found[1])
            assert head.status_code == 200 and head.content == b""
        for name in ("nothing.css", "..%2Fapp.py", "%2Fetc%2Fpasswd", "app.py", "console.css/", "x/console.css"):
            answer = await client.get(f"/static/{name}")
            assert answer.status_code == (200 if name == "console.css/" else 404), name
            assert (await client.post(f"/static/{name}", headers=OWN)).status_code in (404, 405)


async def test_viewers_are_offered_nothing(app: Stepfast) -> None:
    @app.workflow
    async def waits(ctx: Any) -> None:
        await ctx.wait_signal("go")

    run = await app.start(waits)
    await app.drain()
    async with browse(console(app, auth=lambda request: ("ada", "view")), token=None) as client:
        page = (await client.get(f"/runs/{run.id}")).text
        assert "/confirm/" not in page and "view only" in page
        assert 'method="post"' not in (await client.get(f"/runs/{run.id}/confirm/cancel")).text
    async with browse(console(app, token=TOKEN)) as client:
        assert f"/runs/{run.id}/confirm/cancel" in (await client.get(f"/runs/{run.id}")).text


async def test_the_function_may_wait_and_may_know_nobody(app: Stepfast) -> None:
    async def auth(request: Any) -> tuple[str, str] | None:
        return ("ada", "view") if request.headers.get("x-user") == "ada" else None

    async with browse(console(app, auth=auth), token=TOKEN) as client:
        assert (await client.get("/runs", params={"token": TOKEN})).status_code == 401
        page = await client.get("/runs", headers={"x-user": "ada"})
        assert page.status_code == 200 and "ada" in page.text


async def test_a_role_that_there_is_not_lets_nobody_in(app: Stepfast) -> None:
    async with browse(console(app, auth=lambda request: ("ada", "admin"))) as client:
        assert (await client.get("/runs")).status_code == 400


def test_what_cannot_be_a_console() -> None:
    app: Any = Stepfast("sqlite://")
    for wrong in ({"auth": "ada"}, {"hosts": "example.com"}, {"redact": "password"}, {"redact": [""]}):
        with pytest.raises(ConfigurationError):
            console(app, **wrong)
    with pytest.raises(ConfigurationError, match="Stepfast application"):
        console(console)  # type: ignore[arg-type]


# -- from where


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 404),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "none"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://testserver"}, 403),
        ({"Origin": "http://testserver"}, 404),
        ({"Origin": "https://testserver"}, 404),
        ({"Origin": "http://testserver:80"}, 404),
        ({"Origin": "http://testserver:8080"}, 403),
        ({"Origin": "http://testserver.evil.example"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://testserver@evil.example"}, 403),
        ({"Origin": "http://[::1"}, 403),
        ({"Origin": "file://testserver"}, 403),
        ({"Referer": "http://testserver/runs"}, 403),
    ],
)
async def test_an_action_comes_from_a_page_of_ours(app: Stepfast, headers: dict[str, str], status: int) -> None:
    async with browse(console(app, token=TOKEN)) as client:
        assert (await client.post(f"/runs/{RUN}/cancel", headers=headers)).status_code == status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200), ("localhost:8710", 200), ("127.0.0.1:8710", 200), ("[::1]:8710", 200), ("LOCALHOST", 200),
        ("evil.example", 400), ("localhost.evil.example", 400), ("127.0.0.1.evil.example", 400), ("10.0.0.7", 400),
        ("localhost@evil.example", 400), ("", 400), ("localhost:8710:1", 400), ("[::1", 400), ("a b", 400),
    ],
)  # fmt: skip
async def test_the_host_must_be_known(app: Stepfast, host: str, status: int) -> None:
    async with browse(console(app, token=TOKEN, hosts=names_for("127.0.0.1"))) as client:
        answer = await client.get("/runs", headers={"Host": host})
        assert answer.status_code == status
        assert "evil" not in answer.text


async def test_beyond_loopback_addresses_are_known_and_names_are_named(app: Stepfast) -> None:
    assert is_loopback("127.0.0.1") and is_loopback("::1") and is_loopback("localhost") and is_loopback("127.8.8.8")
    assert not is_loopback("0.0.0.0") and not is_loopback("example.com") and not is_loopback("")
    hosts = Hosts([*names_for("0.0.0.0"), "console.example.com"], addresses=True)
    known = {"10.0.0.7:8710": True, "[fe80::1]": True, "console.example.com": True, "evil.example": False}
    assert {name: hosts.allows(Headers({"host": name})) for name in known} == known


def test_one_host_is_named_and_no_other_by_a_wildcard() -> None:
    hosts = Hosts(["localhost", "*.example.com"])
    assert hosts.allows(Headers(raw=[(b"host", b"localhost")]))
    assert not hosts.allows(Headers(raw=[(b"host", b"localhost"), (b"host", b"evil.example")]))
    assert not hosts.allows(Headers(raw=[]))
    assert not hosts.allows(Headers({"host": "shop.example.com"}))


# -- what every answer has


async def test_every_answer_has_the_headers(app: Stepfast) -> None:
    async with browse(console(app, token=TOKEN)) as client:
        answers = [await client.request(m, a, headers=OWN) for m, a in addresses()]
        answers.append(await client.get("/runs", headers={"Authorization": ""}))
        answers.append(await client.get("/", params={"token": TOKEN}))
        answers.append(await client.head("/runs"))
    assert {answer.status_code for answer in answers} >= {200, 303, 401, 404}
    for answer in answers:
        assert {name: answer.headers.get(name) for name in SECURITY_HEADERS} == SECURITY_HEADERS
        assert answer.headers["cache-control"] in ("no-store", "private, max-age=31536000, immutable")
    policy = SECURITY_HEADERS["Content-Security-Policy"]
    assert "script-src 'self'" in policy and "unsafe" not in policy and "default-src 'none'" in policy


async def test_a_head_has_no_body(app: Stepfast) -> None:
    async with browse(console(app, token=TOKEN)) as client:
        assert (await client.head("/runs")).content == b""


async def test_forms_are_bounded(app: Stepfast) -> None:
    async with browse(console(app, token=TOKEN)) as client:
        address, kind = f"/runs/{RUN}/signal", "application/x-www-form-urlencoded"
        cases = [
            (b"name=" + b"x" * 1_000_001, kind, 413), (b"&".join(b"a=1" for _ in range(300)), kind, 400),
            (b"name=%ff", kind, 400), (b"{}", "application/json", 415), (b"", "", 400), (b"name=x&value={", kind, 400),
            (b"name=x", f"{kind}; charset=utf-8", 404),
            (b"name=x&value=" + b"[" * 5000, kind, 400),
        ]  # fmt: skip
        for body, given, status in cases:
            answer = await client.post(address, content=body, headers={**OWN, "Content-Type": given})
            assert answer.status_code == status, (body[:20], answer.text)


async def test_a_mistake_of_ours_is_told_to_the_log_alone(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the secret is 4711")

    async with browse(console(app, token=TOKEN)) as client:
        monkeypatch.setattr("stepfast.console.pages.runs.list_runs", broken)
        answer = await client.get("/runs")
        assert answer.status_code == 500 and "4711" not in answer.text
        assert "4711" in caplog.text


async def test_there_are_no_websockets(app: Stepfast) -> None:
    served, sent = console(app, token=TOKEN), []

    async def send(message: Any) -> None:
        sent.append(message)

    await served({"type": "websocket", "path": "/"}, nothing, send)
    assert [message["type"] for message in sent] == ["websocket.close"]


async def test_a_form_that_never_ends_is_given_up(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepfast.console.request.PATIENCE", 0.05)

    async def slow() -> AsyncIterator[bytes]:
        yield b"queue="
        await asyncio.Event().wait()

    scope = {"type": "http", "method": "POST", "headers": []}
    parts = slow()

    async def receive() -> Any:
        return {"type": "http.request", "body": await anext(parts), "more_body": True}

    with pytest.raises(Refused, match="did not come to its end") as refused:
        await read_form(Request(scope, receive))
    assert refused.value.status == 408


@pytest.mark.parametrize(("token", "opens"), [("  ", False), ("\n", False), (" köy \n", True)])
async def test_what_is_around_a_token_is_no_part_of_it(app: Stepfast, token: str, opens: bool) -> None:
    async with browse(console(app, token=token), token=None) as client:
        bearer = {b"Authorization": b"Bearer " + token.strip().encode()}
        assert (await client.get("/runs", headers=bearer)).status_code == (200 if opens else 401)
        assert (await client.get("/runs", params={"token": token})).status_code == (303 if opens else 401)


async def nothing() -> Any:
    raise AssertionError("nothing is to be read")


async def test_it_disconnects_where_it_stands_by_itself() -> None:
    app, heard, sent = Stepfast("sqlite://"), iter(["lifespan.startup", "lifespan.shutdown"]), []

    async def receive() -> Any:
        return {"type": next(heard)}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await console(app, token=TOKEN)({"type": "lifespan"}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
