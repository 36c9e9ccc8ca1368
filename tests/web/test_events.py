"""CloudEvents over HTTP: published once, in each mode, and only by who may."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import httpx
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from stepfast import ConfigurationError, Event, Stepfast
from stepfast.web import SIGNATURE, cloud_event, events

pytestmark = pytest.mark.enough_on("sqlite")

PAID = Event("evt-9 é%", "order.paid", "o-1", {"cents": 5}, datetime(2026, 1, 1, tzinfo=UTC))


def client(app: Stepfast, **options: Any) -> httpx.AsyncClient:
    web = Starlette(routes=[Mount("/events", routes=events(app, **options))])
    return httpx.AsyncClient(transport=httpx.ASGITransport(web), base_url="http://test/events/")


@pytest.mark.parametrize("binary", [False, True], ids=["structured", "binary"])
async def test_an_event_goes_out_and_comes_in_once(url: str, binary: bool) -> None:
    async with Stepfast(url) as app, client(app, secret="s3cret") as http:
        headers, body = cloud_event(PAID, source="https://shop", binary=binary, secret="s3cret")
        for _ in range(2):
            answer = await http.post("", headers=headers, content=body)
            assert (answer.status_code, answer.json()) == (200, {"id": "https://shop evt-9 é%"})
        [found] = await app.events()
        assert (found.name, found.key, found.data) == ("order.paid", "o-1", {"cents": 5})
        forged = headers | ({"ce-type": "order.lost"} if binary else {})
        assert (await http.post("", headers=forged, content=body + b" ")).status_code == 401
        del headers[SIGNATURE]
        assert (await http.post("", headers=headers, content=body)).status_code == 401


async def test_batches_and_other_data(url: str) -> None:
    def may(request: Any, name: str) -> bool:
        return name != "secret"

    async with Stepfast(url) as app, client(app, authorize=may) as http:
        one = {"specversion": "1.0", "type": "a", "source": "s", "id": "1", "data_base64": "AAE="}
        batch = [one, one | {"id": "2" * 300, "data": None}]
        kind = {"content-type": "application/cloudevents-batch+json; charset=utf-8"}
        answer = await http.post("", headers=kind, content=msgspec.json.encode(batch))
        assert answer.json()["ids"][0] == "s 1"
        assert answer.json()["ids"][1].startswith("sha256:")
        named = {"ce-specversion": "1.0", "ce-type": "b", "ce-source": "s", "ce-id": "1"}
        for content_type, body in (("text/plain", b"hello"), ("image/png", b"\x00\x01")):
            answer = await http.post(
                "", headers=named | {"content-type": content_type, "ce-id": body.hex()}, content=body
            )
            assert answer.status_code == 200
        assert sorted(str(found.data) for found in await app.events()) == ["AAE=", "AAE=", "None", "hello"]
        kind = {"content-type": "application/cloudevents+json"}
        for given, code in (
            (b"{", 400), (b"[]", 400), (msgspec.json.encode(one | {"specversion": "0.3"}), 400),
            (msgspec.json.encode({"specversion": "1.0", "type": "a", "source": "s"}), 400),
            (msgspec.json.encode(one | {"subject": 5}), 400), (msgspec.json.encode(one | {"type": "a,b"}), 422),
            (msgspec.json.encode(one | {"type": "secret"}), 403), (b" " * 1_000_001, 413),
        ):  # fmt: skip
            assert (await http.post("", headers=kind, content=given)).status_code == code, given[:60]
        assert (await http.post("", content=b"{}")).status_code == 400
        with pytest.raises(ConfigurationError, match="open to anyone"):
            events(app)
