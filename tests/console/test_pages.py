"""The pages of runs, on both databases: what they show, and that their JSON is what the command line writes."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest
import pytest_asyncio

from stepfast import Run, Stepfast
from stepfast.console import console, json_numbers
from stepfast.console.history import read_history
from stepfast.model.ids import new_id
from stepfast.monitoring.text import run_shape
from stepfast.monitoring.unreadable import UnreadablePayload
from tests.console.conftest import JSON, OWN, TOKEN, browse, shop

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Scene(NamedTuple):
    app: Stepfast
    client: httpx.AsyncClient
    runs: dict[str, Run[Any]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(shared_url: str) -> AsyncIterator[Scene]:
    async with shop(shared_url) as app:
        runs: dict[str, Run[Any]] = {
            "waiting": await app.start("order", "tea", key="o/1", tags=["vip"]),
            "failed": await app.start("breaks", 'salt & "pepper"'),
            "undone": await app.start("undone", "milk"),
            "parent": await app.start("parent", "rice", queue="slow"),
            "dag": await app.start("graph", None),
            "many": await app.start("many", 12),
        }
        await app.drain()
        async with browse(console(app, token=TOKEN)) as client:
            yield Scene(app, client, runs)


async def told(scene: Scene, address: str) -> Any:
    answer = await scene.client.get(address, headers=JSON)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def page(scene: Scene, address: str) -> str:
    answer = await scene.client.get(address)
    assert answer.status_code == 200, answer.text
    return answer.text


# -- the list


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", {"waiting", "failed", "undone", "parent", "dag", "many", "child"}),
        ("workflow=order", {"waiting", "child"}),
        ("status=failed", {"failed", "dag"}),
        ("status=compensated&reason=code", {"undone"}),
        ("queue=slow", {"parent"}),
        ("tag=vip", {"waiting"}),
        ("key=o%2F1", {"waiting"}),
        ("since=1h", {"waiting", "failed", "undone", "parent", "dag", "many", "child"}),
        ("older_than=1h", set()),
        ("text=salt+%26+%22pep", {"failed"}),
        ("text=nowhere", set()),
    ],
)
async def test_filters_stand_in_the_address(scene: Scene, query: str, found: set[str]) -> None:
    known = {run.id: name for name, run in scene.runs.items()}
    listed = {known.get(run["id"], "child") for run in await told(scene, f"/runs?{query}")}
    assert listed == found
    shown = await page(scene, f"/runs?{query}")
    for run_id, name in known.items():
        assert (f'id="r-{run_id}"' in shown) == (name in listed)


async def test_the_json_of_the_list_is_that_of_the_command_line(scene: Scene) -> None:
    (listed,) = await told(scene, "/runs?key=o%2F1")
    (info,) = await scene.app.runs(key="o/1")
    same = msgspec.to_builtins(info)
    assert listed | {"read_at": None} == msgspec.json.decode(msgspec.json.encode(same)) | {"read_at": None}


async def test_pages_go_on_by_the_last_run(scene: Scene) -> None:
    everything = [run["id"] for run in await told(scene, "/runs")]
    seen, address = [], "/runs?limit=3"
    while address:
        answer = await scene.client.get(address, headers=JSON)
        seen += [run["id"] for run in answer.json()]
        link = answer.headers.get("link", "")
        address = link.partition(">")[0].removeprefix("<")
    assert seen == everything
    oldest = [run["id"] for run in await told(scene, "/runs?sort=oldest&limit=500")]
    assert oldest == everything[::-1]
    assert "Next page" in await page(scene, "/runs?limit=3")
    assert "Next page" not in await page(scene, "/runs")


@pytest.mark.parametrize("query", ["status=none", "reason=x", "since=soon", "sort=up", "limit=0", "limit=x", "after=x"])
async def test_what_is_no_filter_is_said(scene: Scene, query: str) -> None:
    assert (await scene.client.get(f"/runs?{query}")).status_code == 400


async def test_one_box_finds_ids_parts_of_them_and_keys(scene: Scene) -> None:
    run_id = scene.runs["waiting"].id
    others = [run.id for name, run in scene.runs.items() if name != "waiting"]
    begin = next(run_id[:n] for n in range(4, 37) if not any(other.startswith(run_id[:n]) for other in others))
    for text in (run_id, run_id.upper(), run_id.replace("-", ""), begin, run_id[-12:], "o/1"):
        answer = await scene.client.get("/runs", params={"find": f" {text} "})
        if text == begin:  # the child has the time of its parent
            assert answer.status_code in (200, 303)
            continue
        assert (answer.status_code, answer.headers.get("location")) == (303, f"/runs/{run_id}"), text
    several = await scene.client.get("/runs", params={"find": run_id[:6]})
    assert several.status_code == 200 and run_id in several.text
    assert "No run has the id or the key" in (await scene.client.get("/runs", params={"find": "nobody"})).text


async def test_how_far_a_text_was_looked_for_is_said(scene: Scene) -> None:
    assert "Looked through the inputs of 1 run." in await page(scene, "/runs?text=salt&workflow=breaks")


class Backwards:
    """A codec that one can see through, if one has it."""

    def encode(self, data: bytes, /) -> bytes:
        return data[::-1]

    def decode(self, data: bytes, /) -> bytes:
        return data[::-1]


async def test_a_text_is_not_looked_for_behind_a_codec() -> None:
    async with shop("sqlite://", codec=Backwards()) as app:
        run = await app.start("breaks", "secret")
        async with browse(console(app, token=TOKEN)) as client:
            refused = await client.get("/runs?text=secret")
            assert refused.status_code == 400 and "codec" in refused.text
            assert "secret" in (await client.get(f"/runs/{run.id}/payload?what=input")).text


async def test_without_the_codec_it_says_what_it_cannot_read_and_acts_all_the_same(sqlite_url: str) -> None:
    async with shop(sqlite_url, codec=Backwards()) as app:
        failed, waiting = await app.start("breaks", "secret"), await app.start("order", "secret")
        await app.drain()
        bare = Stepfast(sqlite_url, auto_migrate=False)
        bare._payloads.stand_in = UnreadablePayload()
        async with bare, browse(console(bare, token=TOKEN)) as client:
            pages = [f"/runs/{run.id}{more}" for run in (failed, waiting) for more in ("", "/payload?what=input")]
            for address in ("/runs", *pages):
                for headers in ({}, JSON):
                    shown = await client.get(address, headers=headers)
                    assert shown.status_code == 200 and "secret" not in shown.text and "terces" not in shown.text
            assert "(sealed)" in (await client.get("/runs")).text
            form = {"name": "approved", "value": "true"}
            assert (await client.post(f"/runs/{waiting.id}/signal", data=form, headers=OWN)).status_code == 303
        await app.drain()
        assert await waiting.result() == "secret: True"


class Locked(Backwards):
    """A codec with another key."""

    def decode(self, data: bytes, /) -> bytes:
        raise ValueError(f"cannot decrypt {data!r}")


class Garbled(Backwards):
    """A codec that does not know that its key is another one."""

    def decode(self, data: bytes, /) -> bytes:
        return b"\xff" + data


@pytest.mark.parametrize("codec", [None, Locked(), pytest.param(Garbled(), marks=pytest.mark.thorough)])
async def test_what_a_codec_cannot_read_does_not_keep_the_rest_from_being_shown(sqlite_url: str, codec: Any) -> None:
    async with shop(sqlite_url, codec=Backwards()) as app:
        runs = [await app.start(name, "secret") for name in ("breaks", "order", "undone")]
        runs.append(await app.start("graph"))
        await app.drain()
        await runs[1].signal("other", "secret")
        other = Stepfast(sqlite_url, codec=codec)
        async with other, browse(console(other, token=TOKEN)) as client:
            for run in runs:
                parts = ("", "/confirm/cancel", "/confirm/signal", "/payload?what=input", "/payload?what=step")
                for address in (f"/runs/{run.id}{part}" for part in parts):
                    for headers in ({}, JSON):
                        shown = await client.get(address, headers=headers)
                        assert shown.status_code in (200, 404), (address, shown.text)
                        assert "secret" not in shown.text and "terces" not in shown.text
            assert "(sealed)" in (await client.get("/runs?workflow=order")).text
            for form in ("/start?workflow=order", f"/runs/{runs[1].id}/confirm/signal"):
                assert ("stored as readable JSON" in (await client.get(form)).text) is (codec is None)
            assert (await client.post(f"/runs/{runs[1].id}/cancel", headers=OWN)).status_code == 303


# -- one run


async def test_the_json_of_a_run_is_that_of_the_command_line(scene: Scene) -> None:
    run = scene.runs["waiting"]
    found = await told(scene, f"/runs/{run.id}")
    same = run_shape(await run.info(), found["why"], await run.steps(), [], await run.values(), [])
    expected = msgspec.json.decode(msgspec.json.encode(same))
    assert found.pop("read_at") and expected.pop("read_at")
    assert found == expected
    assert found["why"].startswith("It waits for signal 'approved'")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("waiting", ["It waits for signal", "<svg", "progress", "Send a signal", "/confirm/cancel", "pack", "vip"]),
        ("failed", ["It failed with ValueError", "Traceback", "Retry", "no salt &amp; &#34;pepper&#34; today"]),
        ("undone", ["were undone", "unpack", "compensated", "Retry from the start"]),
        ("parent", ["It waits for its child", "Children", "inside"]),
        ("dag", ["sf-graph", "the second breaks", "first", "traceback"]),
        ("many", ["It completed", "count 11", "Output"]),
    ],
)
async def test_the_page_of_a_run(scene: Scene, name: str, words: list[str]) -> None:
    shown = await page(scene, f"/runs/{scene.runs[name].id}")
    assert [word for word in words if word not in shown] == []
    assert "<script>" not in shown and " style=" not in shown and "onclick" not in shown


async def test_children_know_their_parents(scene: Scene) -> None:
    parent = scene.runs["parent"]
    (child,) = (await told(scene, f"/runs/{parent.id}"))["children"]
    shown = await page(scene, f"/runs/{child}")
    assert 'aria-label="Parents"' in shown and f"/runs/{parent.id}" in shown
    assert f"/runs/{child}" in await page(scene, f"/runs/{parent.id}")


async def test_a_step_of_a_dag_knows_its_run(scene: Scene) -> None:
    dag = scene.runs["dag"]
    steps = (await told(scene, f"/runs/{dag.id}"))["steps"]
    shown = await page(scene, f"/runs/{steps[1]['child']}")
    assert f'a step of <a class="id" href="/runs/{dag.id}"' in shown


async def test_payloads_are_loaded_when_opened_with_all_their_digits(scene: Scene) -> None:
    run_id = scene.runs["waiting"].id
    shown = await page(scene, f"/runs/{run_id}")
    address = f"/runs/{run_id}/payload?what=step&amp;position=0"
    assert f'data-load="{address}"' in shown and "12345678901234567890" not in shown
    plain = address.replace("&amp;", "&")
    loaded = await page(scene, plain)
    assert "12345678901234567890" in loaded and "0.1\n" in loaded
    assert "12345678901234567890" in (await scene.client.get(plain, headers=JSON)).text
    for what in ("input", "arguments&position=0", "value&key=progress"):
        assert "<pre>" in await page(scene, f"/runs/{run_id}/payload?what={what}")
    traceback = await page(scene, f"/runs/{scene.runs['failed'].id}/payload?what=error")
    assert "ValueError: no salt" in traceback


@pytest.mark.parametrize(
    "what",
    ["", "nothing", "step&position=99", "step&position=x", "value&key=none", "output", "error", "error&position=0"],
)
async def test_what_is_no_payload_is_said(scene: Scene, what: str) -> None:
    answer = await scene.client.get(f"/runs/{scene.runs['waiting'].id}/payload?what={what}")
    assert answer.status_code in (400, 404)


async def test_a_large_payload_is_cut(scene: Scene) -> None:
    run = await scene.app.start("breaks", "x" * 100_000, queue="nobody")
    shown = await page(scene, f"/runs/{run.id}/payload?what=input")
    assert len(shown) < 70_000 and "The first 65536 characters are shown; as it is stored, it has 100002." in shown
    refused = await scene.client.get(f"/runs/{run.id}/payload?what=input", headers=JSON)
    assert refused.status_code == 413
    assert len(await page(scene, "/runs?queue=nobody")) < 20_000
    await run.cancel()


async def test_large_payloads_keep_nobody_waiting(scene: Scene) -> None:
    """What takes long is done beside the event loop, or not at all where nobody sees it."""
    where: set[bool] = set()

    def seen(path: str, value: Any) -> Any:
        where.add(threading.current_thread() is threading.main_thread())
        return value

    run = await scene.app.start("breaks", ["x" * 100_000], queue="nobody")
    async with browse(console(scene.app, token=TOKEN, redact=seen)) as client:
        assert (await client.get(f"/runs/{run.id}/payload?what=input")).status_code == 200
    assert where == {False}
    assert (await read_history(scene.app, run.id, input_and_output=False)).info.left_out == ("input",)
    assert (await read_history(scene.app, run.id)).info.input == ["x" * 100_000]
    await run.cancel()


async def test_the_beginning_of_what_is_long_is_written() -> None:
    value = json_numbers.read('{"a": [1, 2.50, {"b": null}], "c": "d"}')
    whole = json_numbers.write(value)
    assert json_numbers.begin(value, len(whole)) == (whole, True)
    assert all(json_numbers.begin(value, most) == (whole[:most], False) for most in range(len(whole)))


async def test_a_long_history_is_shown_page_by_page(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepfast.console.request.ConsoleRequest.history.__defaults__", (None, 5))
    run_id, seen, after = scene.runs["many"].id, [], ""
    for _ in range(4):
        shape = await told(scene, f"/runs/{run_id}?after={after}")
        seen += [step["name"] for step in shape["steps"]]
        after = shape.get("after")
        if after is None:
            break
    assert seen == [f"count {n}" for n in range(12)]
    shown = await page(scene, f"/runs/{run_id}")
    assert "Next steps" in shown and "count 4" in shown and "count 5" not in shown


async def test_there_is_no_such_run(scene: Scene) -> None:
    for address, status in {"0197a1b2-0000-7000-8000-000000000000": 404, "x": 404, "..": 404}.items():
        for more in ("", "/confirm/cancel", "/payload?what=input"):
            answer = await scene.client.get(f"/runs/{address}{more}".replace("..", "%2E%2E"))
            assert answer.status_code == status, (address, answer.text)


# -- asking something of a run


async def test_what_will_happen_is_said_before(scene: Scene) -> None:
    run_id = scene.runs["waiting"].id
    said = {action: await page(scene, f"/runs/{run_id}/confirm/{action}") for action in ("cancel", "pause", "signal")}
    assert "1 completed step will be undone: &#39;pack&#39;" in said["cancel"]
    assert "held before its next step" in said["pause"]
    assert 'value="approved"' in said["signal"]
    assert (await told(scene, f"/runs/{run_id}/confirm/cancel"))["action"] == "cancel"
    assert (await scene.client.get(f"/runs/{run_id}/confirm/explode")).status_code == 404
    assert await scene.runs["waiting"].status() == "waiting"


async def test_a_run_is_held_let_go_answered_and_seen_at_once(scene: Scene) -> None:
    run = await scene.app.start("order", "salt")
    await scene.app.drain()

    async def act(action: str, status: str, **form: str) -> None:
        answer = await scene.client.post(f"/runs/{run.id}/{action}", data=form, headers=OWN)
        assert (answer.status_code, answer.headers["location"]) == (303, f"/runs/{run.id}?done={action}")
        assert f"s-{status}" in await page(scene, answer.headers["location"])

    await page(scene, f"/runs/{run.id}")
    await act("pause", "paused")
    await act("resume", "waiting")
    refused = await scene.client.post(f"/runs/{run.id}/resume", headers=OWN)
    assert refused.status_code == 409
    told_so = await scene.client.post(
        f"/runs/{run.id}/signal", data={"name": "approved", "value": "true"}, headers={**OWN, **JSON}
    )
    assert told_so.json() == {"run": run.id, "done": "signal"}
    await scene.app.drain()
    assert await run.result() == "salt: True"


async def test_a_run_that_is_not_due_yet_is_made_due(scene: Scene) -> None:
    run = await scene.app.start("order", "salt", delay=3600)
    assert "Make due now" in await page(scene, f"/runs/{run.id}")
    assert "It is due now" in await page(scene, f"/runs/{run.id}/confirm/reschedule")
    answer = await scene.client.post(f"/runs/{run.id}/reschedule", headers=OWN)
    assert (answer.status_code, (await run.info()).ready) == (303, True)
    assert "Make due now" not in await page(scene, f"/runs/{run.id}")


async def test_a_run_is_cancelled_and_tried_again(scene: Scene) -> None:
    run = await scene.app.start("breaks", "sugar", queue="nobody")
    for action, status in (("cancel", "cancelled"), ("retry", "queued"), ("cancel", "cancelled")):
        assert (await scene.client.post(f"/runs/{run.id}/{action}", headers=OWN)).status_code == 303
        assert await run.status() == status
    answer = await scene.client.post(f"/runs/{run.id}/retry", data={"from_start": "1"}, headers=OWN)
    other = answer.headers["location"].partition("?")[0].rpartition("/")[2]
    assert other != run.id and (await scene.app.get(other).info()).origin == run.id
    await scene.app.get(other).cancel()


# -- what no database can hold


@pytest.mark.parametrize(
    "address",
    [
        *(f"/runs?{name}=a%00b" for name in ("workflow", "queue", "tag", "key", "text", "find", "status", "since")),
        *(f"/runs?{name}=%ff%fe" for name in ("workflow", "queue", "tag", "key", "text", "find", "sort", "after")),
        *(f"/runs?since={much}" for much in ("1e300", "9" * 30 + "d", "inf", "-1")),
        *(f"/runs?older_than={much}" for much in ("1e300", "9" * 30 + "d", "inf", "-1")),
        *(f"/runs/ID/payload?what={what}" for what in ("value&key=%00", "step&branch=%00", "error&position=999999999")),
        *(f"/runs/ID?after={after}" for after in ("0@%00", "999999999@", "-999999999@x", "9999999999@", "x@", "@")),
        "/runs/%00", "/runs/ID/confirm/%00", "/%00", "/runs?limit=%00", "/runs?" + "x" * 5000,
    ],
)  # fmt: skip
async def test_what_no_database_can_hold_is_no_mistake_of_ours(scene: Scene, address: str) -> None:
    for headers in ({}, JSON):
        answer = await scene.client.get(address.replace("ID", scene.runs["waiting"].id), headers=headers)
        assert answer.status_code in (200, 400, 404), answer.text


async def test_no_form_has_what_no_database_can_hold(scene: Scene) -> None:
    run_id = scene.runs["waiting"].id
    for form in ({"name": "a\0"}, {"name": "a", "value": "\0"}, {"a\0": "b"}, {"name": "x" * 1000, "value": "1"}):
        answer = await scene.client.post(f"/runs/{run_id}/signal", data=form, headers=OWN)
        assert answer.status_code == 400, answer.text


# -- streams and logs


async def test_what_a_run_has_sent_and_logged(shared_url: str) -> None:
    async with shop(shared_url, run_logs="INFO") as app:
        run, quiet = await app.start("talks", 620), await app.start("order", "tea")
        await app.drain()
        async with browse(console(app, token=TOKEN)) as client:
            scene = Scene(app, client, {})
            about = await page(scene, f"/runs/{run.id}")
            assert f"/runs/{run.id}/logs" in about and f"/runs/{run.id}/streams" in about
            assert f"/runs/{quiet.id}/logs" not in await page(scene, f"/runs/{quiet.id}")
            assert "Nothing was logged" in await page(scene, f"/runs/{quiet.id}/logs")
            assert "has sent nothing" in await page(scene, f"/runs/{quiet.id}/streams")

            shown = await page(scene, f"/runs/{run.id}/logs")
            assert "token 619 &lt;b&gt;" in shown and "token 100 " not in shown and 'data-again="' in shown
            last = await told(scene, f"/runs/{run.id}/logs")
            assert len(last["lines"]) == 500 and last["lines"][-1]["step"] == "warn" and last["before"] == 122
            earlier = await told(scene, f"/runs/{run.id}/logs?before=122")
            assert [earlier["lines"][i]["message"] for i in (0, -1)] == ["token 0 <b>", "token 120 <b>"]
            warned = await told(scene, f"/runs/{run.id}/logs?level=WARNING")
            assert [line["message"] for line in warned["lines"]] == ["it is late"]
            found = await told(scene, f"/runs/{run.id}/logs?text=TOKEN+61")
            assert len(found["lines"]) == 11
            assert "No line fits" in await page(scene, f"/runs/{run.id}/logs?text=nowhere")

            assert "tokens (620)" in await page(scene, f"/runs/{run.id}/streams")
            tokens = await told(scene, f"/runs/{run.id}/streams?name=tokens")
            assert tokens["streams"] == {"large": 2, "tokens": 620}
            assert [tokens["items"][i]["value"] for i in (0, -1)] == [{"token": 520}, {"token": 619}]
            first = await told(scene, f"/runs/{run.id}/streams?name=tokens&before=3")
            assert [item["number"] for item in first["items"]] == [1, 2] and first["before"] is None
            large = await page(scene, f"/runs/{run.id}/streams?name=large")
            assert "5 kB" in large and "the end of the stream" in large and "xxxx" not in large
            assert (await client.get(f"/runs/{new_id()}/logs")).status_code == 404
            assert (await client.get(f"/runs/{new_id()}/streams")).status_code == 404


async def test_the_pages_of_a_chain_lead_from_run_to_run(shared_url: str) -> None:
    async with shop(shared_url) as app:
        run = await app.start("talks on", 2)
        await app.drain()
        second = (await run.this.info()).continued_by
        last = (await run.info()).id
        async with browse(console(app, token=TOKEN)) as client:
            scene = Scene(app, client, {})
            about = await page(scene, f"/runs/{run.id}")
            assert f'/runs/{second}">' in about and f'the last is <a class="id" href="/runs/{last}">' in about
            assert "the last is" not in await page(scene, f"/runs/{second}")
            for name in ("streams", "logs"):
                shown = await page(scene, f"/runs/{second}/{name}")
                assert f'/runs/{run.id}/{name}">' in shown and f'/runs/{last}/{name}">' in shown
