"""Queues, workers, schedules, failures, the system and the audit; and that whatever is done leaves a line."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from stepfast import Context, Rate, Stepfast
from stepfast.console import console
from stepfast.console.app import ROUTES
from stepfast.monitoring.changes import seen_anew
from tests.console.conftest import JSON, OWN, browse, shop

pytestmark = pytest.mark.enough_on("sqlite")
CONFIRMS = [f"/queues/confirm/{action}?queue=order" for action in ("pause", "resume", "limits")]


class Scene:
    """An application, and somebody who looks at it."""

    def __init__(self, app: Stepfast, client: httpx.AsyncClient) -> None:
        self.app = app
        self.client = client

    async def page(self, address: str) -> str:
        answer = await self.client.get(address)
        assert answer.status_code == 200, answer.text
        return answer.text

    async def json(self, address: str) -> Any:
        answer = await self.client.get(address, headers=JSON)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def post(self, address: str, expected: int = 200, **form: str) -> Any:
        answer = await self.client.post(address, data=form, headers=OWN | JSON)
        assert answer.status_code == expected, answer.text
        return answer.json()

    async def audit(self) -> list[tuple[str, ...]]:
        return [(line["what"], line["which"], line["outcome"], line["said"]) for line in await self.json("/audit")]


@pytest.fixture
async def scene(url: str) -> AsyncIterator[Scene]:
    async with shop(url) as app:
        served = console(app, auth=lambda request: ("ada <b>", "operate"))
        async with browse(served, token=None) as client:
            yield Scene(app, client)
            await served._state.jobs.close()


async def test_queues_are_shown_paused_limited_and_resumed(scene: Scene) -> None:
    await scene.app.start("order", "tea")
    assert '<a href="/runs?queue=order">order</a>' in await scene.page("/queues")
    [row] = [row for row in await scene.json("/queues") if row["queue"] == "order"]
    assert (row["ready"], row["paused"], row["served_by"]) == (1, False, [])
    assert "1 run that is ready now will stay" in await scene.page("/queues/confirm/pause?queue=order")
    assert (await scene.post("/queues/pause", queue="order")) == {"queue": "order", "paused": True}
    assert ">paused</span>" in await scene.page("/queues")
    await scene.page("/queues/confirm/limits?queue=order")
    await scene.post("/queues/limits", queue="order", concurrency="5", rate="10/1m")
    [info] = [info for info in await scene.app.queues() if info.name == "order"]
    assert (info.paused, info.concurrency, info.rate) == (True, 5, Rate(10, per=60))
    assert "5 at once (set), 10 per 1 min (set)" in await scene.page("/queues")
    refused = await scene.post("/queues/limits", 400, queue="order", rate="often")
    assert "no rate" in refused["error"]
    await scene.post("/queues/limits", 400, queue="order")
    await scene.post("/queues/limits", queue="order", reset="1")
    assert "Workers claim its runs again" in await scene.page("/queues/confirm/resume?queue=order")
    await scene.post("/queues/resume", queue="order")
    assert [line[:3] for line in await scene.audit()] == [
        ("queue.resume", "order", "done"), ("queue.limits", "order", "done"), ("queue.limits", "order", "refused"),
        ("queue.limits", "order", "refused"), ("queue.limits", "order", "done"), ("queue.pause", "order", "done"),
    ]  # fmt: skip


async def test_workers_and_the_system(scene: Scene) -> None:
    assert "No workers" in await scene.page("/workers")
    system, page = await scene.json("/system"), await scene.page("/system")
    well = all(check["ok"] for check in system["checks"])  # a server of the tests may be set up for speed
    assert ("All is well" if well else "Something is wrong") in page
    assert {check["check"] for check in system["checks"]} >= {"connection", "schema", "workers"}
    assert "runs" in {table["name"] for table in system["tables"]}
    async with scene.app.worker(concurrency=7):
        await seen_anew(scene.app)
        assert "0 of 7" in await scene.page("/workers")
        [worker] = await scene.json("/workers")
        assert (worker["concurrency"], worker["state"]) == (7, "live")


async def test_schedules_are_shown_paused_resumed_and_triggered(scene: Scene) -> None:
    assert "No schedules" in await scene.page("/schedules")
    await scene.app.put_schedule("a/b <i>", "order", cron="0 3 * * *", input="tea")
    await seen_anew(scene.app)
    [shape] = await scene.json("/schedules")
    assert shape["cron"] == "0 3 * * *" and len(shape["times"]) == 5
    page = await scene.page("/schedules")
    assert "a/b &lt;i&gt;" in page and page.count("03:00") == 5
    assert "A run of order is started now" in await scene.page("/schedules/confirm/trigger?schedule=a%2Fb+%3Ci%3E")
    started = await scene.post("/schedules/trigger", schedule="a/b <i>")
    assert await scene.app.get(started["id"]).status() == "queued"
    await scene.post("/schedules/pause", schedule="a/b <i>")
    assert (await scene.json("/schedules"))[0]["paused"] is True
    await scene.post("/schedules/resume", schedule="a/b <i>")
    await scene.post("/schedules/pause", 404, schedule="nothing")
    said = {line[0]: line for line in await scene.audit()}
    assert said["schedule.trigger"] == ("schedule.trigger", "a/b <i>", "done", f"run {started['id']}")
    assert said["schedule.resume"][2] == "done"


async def test_failures_are_grouped_and_retried_all_at_once(scene: Scene) -> None:
    assert "Nothing has failed" in await scene.page("/failures")
    for what in ("milk", "tea", "milk"):
        await scene.app.start("breaks", what)
    await scene.app.drain()
    page = await scene.page("/failures?since=2h")
    link = "/failures/retry?workflow=breaks&amp;reason=code&amp;error=ValueError&amp;since=2h"
    assert "ValueError" in page and link in page
    found = await scene.json("/failures?since=3h")
    assert (found["since"], found["complete"]) == (10800.0, True)
    told = dataclasses.asdict(await scene.app.stats(10800))
    assert [group.keys() for group in found["failures"]] == [group.keys() for group in told["failures"]]
    assert found.keys() - {"complete"} <= told.keys(), "as `stepfast stats --json` has them"
    [group] = found["failures"]
    assert (group["workflow"], group["error_type"], group["reason"]) == ("breaks", "ValueError", "code")
    assert group["count"] == 3
    assert 0 <= group["last"] <= group["first"] < 60
    assert (await scene.client.get("/failures?since=never")).status_code == 400
    listed = await scene.page("/runs?workflow=breaks&status=failed")
    assert "3 runs" in listed and "/bulk/retry?workflow=breaks&amp;status=failed" in listed
    assert "/bulk/cancel?" not in listed
    ask = await scene.page("/bulk/retry?workflow=breaks&status=failed&reason=code")
    assert 'href="/runs?workflow=breaks&amp;status=failed&amp;reason=code">Back' in ask
    assert "3 chosen by workflow breaks, status failed, reason code. Each is queued again" in ask
    dry = await scene.json("/bulk/retry?workflow=breaks")
    assert dry == {"found": 3, "more": False, "retried": 0, "refused": []}
    begun = await scene.post("/bulk/retry", workflow="breaks", status="failed")
    done = await ended(scene, begun["job"])
    assert (done["found"], done["retried"], done["refused"]) == ("3", 3, [])
    assert "3 runs retried of 3" in await scene.page(f"/bulk/jobs/{begun['job']}")
    assert await scene.audit() == [("bulk.retry", "workflow=breaks&status=failed", "done", "3 runs retried")]
    assert [info.status for info in await scene.app.runs(workflow="breaks")] == ["queued"] * 3


async def test_no_more_of_a_group_are_retried_than_are_shown(scene: Scene) -> None:
    @scene.app.task(max_attempts=1)
    async def mixed(what: str) -> None:
        raise {"value": ValueError, "key": KeyError}[what]("no")

    @scene.app.workflow(name="stepwise", max_attempts=1)
    async def stepwise(ctx: Context, what: str) -> None:
        await ctx.step(f"take {what}", json.loads, what)

    meant = [await scene.app.start("mixed", "value") for _ in range(2)]
    others = [await scene.app.start("mixed", "key"), await scene.app.start("undone", "tea")]
    steps = [await scene.app.start("stepwise", what) for what in ("one", "two", "two")]
    await scene.app.drain()
    address = "/failures/retry?workflow=mixed&reason=code&error=ValueError&since=1h"
    assert "2 failed within 1h by workflow mixed, reason code, error ValueError. Each is" in await scene.page(address)
    assert (await scene.json(address))["found"] == 2
    begun = await scene.post("/failures/retry", workflow="mixed", reason="code", error="ValueError", since="1h")
    done = await ended(scene, begun["job"])
    assert (done["found"], done["retried"], done["refused"]) == ("2", 2, [])
    assert [(await run.info()).status for run in meant] == ["queued"] * 2
    assert [(await run.info()).status for run in others] == ["failed", "compensated"]
    line = ("failures.retry", "workflow=mixed&reason=code&error=ValueError&since=1h", "done", "2 runs retried")
    assert await scene.audit() == [line]

    same = {"workflow": "stepwise", "reason": "code", "error": "json.decoder.JSONDecodeError"}
    done = await ended(scene, (await scene.post("/failures/retry", 200, **same, step="take two"))["job"])
    assert done["retried"] == 2 and (await steps[0].info()).status == "failed"
    await scene.post("/failures/retry", 409, **same)
    await scene.post("/failures/retry", 409, workflow="undone", reason="code", error="ValueError")
    await scene.post("/failures/retry", 400)
    assert "No run is left that failed" in await scene.page("/failures/retry?workflow=undone&reason=code")
    assert (await scene.client.get("/failures/retry")).status_code == 400


async def ended(scene: Scene, job: str) -> Any:
    async with asyncio.timeout(20):
        while not (shape := await scene.json(f"/bulk/jobs/{job}"))["ended"]:
            await asyncio.sleep(0.02)
    return shape


async def test_runs_are_not_chosen_by_nothing_or_by_a_text(scene: Scene) -> None:
    for address in ("/bulk/cancel", "/bulk/cancel?text=tea", "/bulk/cancel?sort=oldest", "/bulk/cancel?status=odd"):
        assert (await scene.client.get(address)).status_code == 400, address
    assert (await scene.client.get("/bulk/delete?workflow=order")).status_code == 404
    await scene.post("/bulk/cancel", 400)
    assert "No run is chosen" in await scene.page("/bulk/cancel?workflow=order")
    assert (await scene.client.get("/bulk/jobs/none")).status_code == 404


async def test_a_run_is_started_from_a_form(scene: Scene) -> None:
    assert "No workflow is known" in await scene.page("/start")
    await scene.app.start("order", "tea")
    await seen_anew(scene.app)
    assert 'name="field."' in await scene.page("/start?workflow=order")
    filled: Any = {"field.": "milk", "key": "k-1", "tags": "eu, vip", "delay": "5m"}
    first = await scene.post("/start", workflow="order", **filled)
    info = await scene.app.get(first["id"]).info()
    assert (info.input, info.key, info.tags, info.status) == ("milk", "k-1", ["eu", "vip"], "queued")
    second = await scene.post("/start", workflow="order", input='"as JSON"', priority="7")
    info = await scene.app.get(second["id"]).info()
    assert (info.input, info.priority) == ("as JSON", 7)
    form: Any
    for form in ({"input": "{"}, {"input": "7"}, {"priority": "high"}, {"delay": "soon"}):
        await scene.post("/start", 400, workflow="order", **form)
    await scene.post("/start", 404, workflow="unheard of")
    lines = [line for line in await scene.json("/audit") if line["outcome"] == "done"]
    assert [line["said"] for line in lines] == [f"run {second['id']}", f"run {first['id']}"]
    assert lines[1]["detail"] == {"key": "k-1", "delay": "5m", "tags": "eu, vip"}
    assert "milk" not in str(lines)


async def test_actions_on_runs_leave_lines_without_payloads(scene: Scene) -> None:
    run = await scene.app.start("order", "tea")
    await scene.app.drain()
    await scene.post(f"/runs/{run.id}/signal", name="approved", value="false")
    await scene.post(f"/runs/{run.id.upper()}/cancel")
    await scene.post(f"/runs/{run.id}/pause", 409)
    [paused, cancelled, signalled] = await scene.json(f"/audit?which={run.id}")
    assert (paused["what"], paused["outcome"]) == ("run.pause", "refused")
    assert "is cancelled" in paused["said"] or "is compensat" in paused["said"]
    assert (cancelled["what"], cancelled["outcome"]) == ("run.cancel", "done")
    assert (signalled["detail"], signalled["who"]) == ({"name": "approved"}, "ada <b>")
    assert signalled["origin"] == "127.0.0.1"
    page = await scene.page("/audit")
    assert "ada &lt;b&gt;" in page and "ada <b>" not in page


class Fields(HTMLParser):
    """What a browser sends of the form on a page: its fields, with line ends as HTML wants them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.sent: dict[str, Any] = {}
        self._acts = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self._acts = given.get("method") == "post" if tag == "form" else self._acts
        if self._acts and tag == "input":
            self.sent[given["name"]] = given.get("value", "").replace("\n", "\r\n")


async def test_forms_send_names_as_they_are(scene: Scene) -> None:
    """They are shown with what a screen would obey spelled out; sent so, they would name another queue."""
    names = ["\u200fשלום", "two\nlines", "\ufeffbom\x9f", "\\u200f", '"<&']
    for name in names:
        await scene.app.start("order", "tea", queue=name, key=name)
        await scene.app.put_schedule(name, "order", cron="0 3 * * *", input="tea")
        fields = Fields(await scene.page(f"/queues/confirm/pause?{urlencode({'queue': name})}")).sent
        await scene.post("/queues/pause", **fields)
        fields = Fields(await scene.page(f"/schedules/confirm/pause?{urlencode({'schedule': name})}")).sent
        await scene.post("/schedules/pause", **fields)
        fields = Fields(await scene.page(f"/bulk/cancel?{urlencode({'key': name})}")).sent
        assert (await ended(scene, (await scene.post("/bulk/cancel", **fields))["job"]))["cancelled"] == 1
    assert {info.name for info in await scene.app.queues() if info.paused} == set(names)


async def test_the_audit_goes_back_page_by_page(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepfast.console.pages.admin.PAGE", 2)
    for queue in "abc":
        await scene.post("/queues/pause", queue=queue)
    first = await scene.client.get("/audit", headers=JSON)
    assert [line["which"] for line in first.json()] == ["c", "b"]
    older = first.headers["link"].partition(">")[0].removeprefix("<")
    assert [line["which"] for line in await scene.json(older)] == ["a"]
    assert "Older" in await scene.page("/audit") and "Newest" in await scene.page(older)


async def test_every_unsafe_route_leaves_a_line(scene: Scene) -> None:
    """Whatever becomes of it: here all of them are refused."""
    unsafe = [route for route in ROUTES if route.methods == {"POST"}]
    assert len(unsafe) >= 13 and all("." in route.name for route in unsafe)
    for route in unsafe:
        address = route.path.replace("{id}", "0197a1b2-0000-7000-8000-000000000000").replace("{action}", "cancel")
        answer = await scene.client.post(address, headers=OWN)
        assert 400 <= answer.status_code < 500, (address, answer.text)
    lines = await scene.json("/audit")
    assert len(lines) == len(unsafe)
    assert {line["outcome"] for line in lines} == {"refused"}


async def test_who_may_only_look_is_offered_nothing(url: str) -> None:
    async with shop(url) as app:
        await app.start("order", "tea")
        async with browse(console(app, auth=lambda request: ("bob", "view")), token=None) as client:
            for address in ("/queues", "/schedules", "/failures", "/workers", "/system", "/audit"):
                assert 'class="button" href="/queues/confirm' not in (await client.get(address)).text
            for address in (*CONFIRMS, "/bulk/cancel?workflow=order", "/start?workflow=order"):
                page = await client.get(address)
                assert "You may look, but not act" in page.text, address
                assert '<form class="confirm"' not in page.text, address
        assert await (await app.store()).audit() == []
