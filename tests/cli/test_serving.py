"""`stepfast console`: closed, known by its own names, and served until it is told to stop."""

from __future__ import annotations

import json
import signal
import socket
import urllib.error
import urllib.request
from typing import Any

import pytest

from stepfast.console import Console, server
from tests.cli.conftest import Shop, Verbs
from tests.cli.processes import Processes

pytestmark = pytest.mark.enough_on("sqlite")


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(server.TOKEN, raising=False)


def ask(address: str, **headers: str) -> tuple[int, Any]:
    """Status and JSON of an answer; redirects are followed with the cookies they set."""
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    request = urllib.request.Request(address, headers={"Accept": "application/json", **headers})
    try:
        with opener.open(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_the_link_that_it_prints_opens_it(shop: Shop, spawn: Processes) -> None:
    run_id = shop.start("nothing")
    process = spawn("console", "--port", "0")
    said, _, link = process.next_line().partition(": ")
    assert said == "Stepfast console" and link.startswith("http://127.0.0.1:") and "/?token=" in link
    base = link.partition("?")[0]
    assert ask(f"{base}runs")[0] == 401
    assert ask(f"{base}runs?{link.partition('?')[2]}x")[0] == 401
    status, listed = ask(f"{base}runs?{link.partition('?')[2]}")
    assert (status, [run["id"] for run in listed]) == (200, [run_id])
    assert ask(link, Host="evil.example")[0] == 400
    process.send(signal.SIGINT)
    assert process.ended() == 130


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.com"])
def test_beyond_loopback_it_wants_a_token_of_yours(stepfast: Verbs, shop: Shop, host: str) -> None:
    said = stepfast.error("console", "--host", host, code=2)
    assert server.TOKEN in said and host in said


def test_blanks_are_no_token(stepfast: Verbs, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(server.TOKEN, " \n")
    assert server.TOKEN in stepfast.error("console", "--host", "0.0.0.0", code=2)


def test_a_token_of_yours_is_not_printed(stepfast: Verbs, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.start("nothing")
    given: dict[str, Any] = {}

    async def serve(console: Any, listener: socket.socket, root_path: str) -> None:
        given.update(console=console, root_path=root_path)

    monkeypatch.setattr(server, "serve", serve)
    monkeypatch.setenv(server.TOKEN, "open sesame")
    printed = stepfast("console", "shop:app", "--host", "0.0.0.0", "--port", "0", "--root-path", "/ops/").stdout
    assert "sesame" not in printed and "token" not in printed and printed.endswith("/ops/\n")
    assert given["root_path"] == "/ops/" and isinstance(given["console"], Console)


def test_what_keeps_it_from_being_served_is_said_at_once(
    stepfast: Verbs, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "stepfast migrate" in stepfast.error("console", "--port", "0", "--url", "sqlite:///none.db", code=1)
    shop.start("nothing")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"127.0.0.1:{port}" in stepfast.error("console", "--port", port, code=2)
    assert "paths" in stepfast.error("console", "--port", "0", "--redact", "", code=2)
    monkeypatch.setenv(server.TOKEN, "open sesame")
    assert "no such host" in stepfast.error("console", "--host", "..", code=2)
