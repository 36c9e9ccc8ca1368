"""Actions: their pages, the line each leaves in the audit, bulk jobs, and actions that are given up."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode

import asyncpg
import httpx
import pytest

from stepfast import Context, Rate, Settings, Stepfast, bulk
from stepfast.console import console
from stepfast.console.app import ROUTES, Console
from stepfast.model.bulk_actions import CANCEL
from stepfast.monitoring import audit
from stepfast.monitoring.changes import forget_cached
from stepfast.store import answers
from stepfast.store.lock_timeout import RowsHeld, brief
from tests.console.conftest import JSON, OWN, TOKEN, browse, shop

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
    assert "not a rate" in refused["error"]
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
        await forget_cached(scene.app)
        assert "0 of 7" in await scene.page("/workers")
        [worker] = await scene.json("/workers")
        assert (worker["concurrency"], worker["state"]) == (7, "live")


async def test_events_are_shown_with_who_took_them_and_who_waits(scene: Scene) -> None:
    @scene.app.workflow
    async def hears(ctx: Context) -> None:
        await ctx.wait_event("paid <i>", key="k")
        await ctx.wait_event("paid <i>")

    assert "No events" in await scene.page("/events")
    run = await scene.app.start(hears)
    await scene.app.publish("paid <i>", {"cents": 5}, key="k", id="e-1")
    await forget_cached(scene.app)
    assert "not seen yet" in await scene.page("/events")
    await scene.app.drain()
    await forget_cached(scene.app)
    told = await scene.json("/events?name=paid+%3Ci%3E")
    assert [(event["id"], event["taken_by"]) for event in told["events"]] == [("e-1", [run.id])]
    assert told["waiting"] == [{"name": "paid <i>", "key": "", "run": run.id}]
    page = await scene.page("/events")
    assert "paid &lt;i&gt;" in page and page.count(run.id) >= 2
    assert (await scene.json("/events?name=other"))["events"] == []


async def test_pages_of_events_and_callbacks_lead_to_the_next(scene: Scene) -> None:
    tokens: list[str] = []

    @scene.app.workflow
    async def pays(ctx: Context, name: str) -> None:
        callback = await ctx.callback(name, timeout=3600, heartbeat=60)
        tokens.append(callback.token)
        await callback.result()

    for number in range(53):
        await scene.app.publish("many", number)
    runs = [await scene.app.start(pays, f"pay <{number}>") for number in range(53)]
    await scene.app.drain()
    for page, name in (("events", "events"), ("callbacks", "callbacks")):
        first = await scene.client.get(f"/{page}", headers=JSON)
        older = first.headers["link"].partition(">")[0].removeprefix("<")
        second = await scene.client.get(older, headers=JSON)
        assert [len(answer.json()[name]) for answer in (first, second)] == [50, 3], second.text
    await scene.app.complete(tokens[0], {"cents": 5})
    await runs[1].cancel()
    shown = await scene.page("/callbacks")
    assert "pay &lt;52&gt;" in shown and not any(token in shown for token in tokens)
    for state, count in (("open", 50), ("completed", 1), ("ended", 1), ("failed", 0)):
        found = (await scene.json(f"/callbacks?state={state}"))["callbacks"]
        assert [each["state"] for each in found] == [state] * count
    [done] = (await scene.json("/callbacks?state=completed"))["callbacks"]
    assert done["outcome"] == {"cents": 5} and done["due_at"] is None and done["run"] in {run.id for run in runs}
    assert len((await scene.json("/callbacks?name=pay+%3C7%3E"))["callbacks"]) == 1
    assert (await scene.client.get("/callbacks?state=x")).status_code == 400
    assert (await scene.client.get("/callbacks?before=1@x")).status_code == 200


async def test_schedules_are_shown_paused_resumed_and_triggered(scene: Scene) -> None:
    assert "No schedules" in await scene.page("/schedules")
    await scene.app.put_schedule("a/b <i>", "order", cron="0 3 * * *", input="tea")
    await forget_cached(scene.app)
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
    assert (await scene.client.get("/bulk/melt?workflow=order")).status_code == 404
    await scene.post("/bulk/cancel", 400)
    assert "No run is chosen" in await scene.page("/bulk/cancel?workflow=order")
    assert (await scene.client.get("/bulk/jobs/none")).status_code == 404


async def test_a_run_is_started_from_a_form(scene: Scene) -> None:
    assert "No workflow is known" in await scene.page("/start")
    await scene.app.start("order", "tea")
    await forget_cached(scene.app)
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


# -- bulk jobs that are interrupted, sent twice, or overtaken by new runs


class Halfway:
    """Holds a job after its first batch of two."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.come = asyncio.Event()
        self.go_on = asyncio.Event()
        whole = bulk.Bulk._batch

        async def batch(bulk: bulk.Bulk, ids: Any) -> None:
            await whole(bulk, ids)
            self.come.set()
            await self.go_on.wait()

        monkeypatch.setattr(bulk, "_BATCH", 2)
        monkeypatch.setattr(bulk, "_PATIENCE", 0.01)
        monkeypatch.setattr(bulk.Bulk, "_batch", batch)


@pytest.fixture
async def halfway(monkeypatch: pytest.MonkeyPatch) -> Halfway:
    return Halfway(monkeypatch)


@pytest.fixture
async def app(sqlite_url: str) -> AsyncIterator[Stepfast]:
    async with shop(sqlite_url) as app:
        await app.start_many("order", ["tea"] * 5)
        yield app


@pytest.fixture
def served(app: Stepfast) -> Console:
    return console(app, auth=lambda request: ("ada", "operate"))


async def asked(served: Console, **form: str) -> str:
    """Send a bulk cancel; the id of its job."""
    async with browse(served, token=None) as client:
        answer = await client.post("/bulk/cancel", data=form or {"workflow": "order"}, headers=OWN | JSON)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["job"])


async def lines(app: Stepfast) -> list[tuple[str, str | None]]:
    return [(line.outcome, line.said) for line in await (await app.store()).audit()]


async def left(app: Stepfast) -> int:
    return len(await app.runs(workflow="order", status="queued"))


INTERRUPTED = ("interrupted", "2 runs cancelled; then the console was stopped. Ask again for the rest")


async def test_a_job_of_a_mounted_console_ends_with_its_application(
    app: Stepfast, served: Console, halfway: Halfway
) -> None:
    await asked(served)
    await halfway.come.wait()
    await app.close()
    assert await lines(app) == [INTERRUPTED]
    assert await left(app) == 3
    async with browse(served, token=None) as client:
        page = (await client.get("/audit")).text
        assert 'href="/bulk/cancel?workflow=order">Ask again</a>' in page
    halfway.go_on.set()
    job = served._state.jobs.get(await asked(served))
    assert job._task is not None
    await job._task
    assert (await lines(app))[0] == ("done", "3 runs cancelled")


async def test_the_rest_of_a_group_of_failures_is_asked_for_by_a_link_to_that_group(
    app: Stepfast, served: Console, halfway: Halfway
) -> None:
    await app.start_many("breaks", ["milk"] * 3)
    await app.drain(queues=["breaks"])
    async with browse(served, token=None) as client:
        group = {"workflow": "breaks", "reason": "code", "error": "ValueError", "since": "2h"}
        assert (await client.post("/failures/retry", data=group, headers=OWN)).status_code == 303
        await halfway.come.wait()
        await app.close()
        page = (await client.get("/audit")).text
        assert "2 runs retried; then the console was stopped" in page
        link = "/failures/retry?workflow=breaks&amp;reason=code&amp;error=ValueError&amp;since=2h"
        assert f'href="{link}">Ask again</a>' in page


async def test_a_job_of_a_server_that_stops_says_how_far_it_came(
    app: Stepfast, served: Console, halfway: Halfway
) -> None:
    await asked(served)
    await halfway.come.wait()
    told = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def receive() -> Any:
        return next(told)

    async def send(_: Any) -> None: ...

    await served({"type": "lifespan"}, receive, send)
    assert await lines(app) == [INTERRUPTED]


async def test_what_the_batch_in_hand_did_is_counted(
    app: Stepfast, served: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed = asyncio.Event()
    store = await app.store()
    whole = store.apply_bulk

    async def apply_bulk(*arguments: Any) -> Any:
        outcome = await whole(*arguments)
        committed.set()
        await asyncio.sleep(0.01)  # the answer takes its time
        return outcome

    monkeypatch.setattr(store, "apply_bulk", apply_bulk)
    monkeypatch.setattr(bulk, "_BATCH", 2)
    await asked(served)
    await committed.wait()
    await app.close()
    assert await lines(app) == [INTERRUPTED]
    assert await left(app) == 3


async def test_the_line_of_a_job_whose_process_was_killed_does_not_stay_begun(
    app: Stepfast, served: Console, halfway: Halfway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepfast.console.bulk_jobs._REPORT_INTERVAL", 0.01)
    await asked(served)
    await halfway.come.wait()
    async with asyncio.timeout(20):
        while (await lines(app)) != [("begun", "2 runs cancelled so far")]:
            await asyncio.sleep(0.01)
    monkeypatch.setattr(answers, "_SILENT", -1)  # as if nothing had been heard for a minute
    assert await lines(app) == [("unknown", "2 runs cancelled so far; then nothing was heard of it any more")]
    [line] = await (await app.store()).audit()
    assert line.detail is None
    halfway.go_on.set()


async def test_a_job_ends_though_runs_that_fit_are_started_faster(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = bulk.Bulk._batch

    async def batch(bulk: bulk.Bulk, ids: Any) -> None:
        await whole(bulk, ids)
        await app.start_many("order", ["more tea"] * len(ids))

    monkeypatch.setattr(bulk.Bulk, "_batch", batch)
    monkeypatch.setattr(bulk, "_SLACK", 0.1)  # enough for the runs that were started just before
    job = bulk.Bulk(app, CANCEL)
    async with asyncio.timeout(10):
        await job.run(
            [{"workflow": "order", "status": "queued"}, {"workflow": "order", "status": "paused"}], None, print
        )
    assert len(await app.runs(workflow="order", status="cancelled", limit=1000)) >= 5
    assert await left(app) > 0


async def test_a_second_click_joins_the_job_that_is_under_way(app: Stepfast, served: Console, halfway: Halfway) -> None:
    first, second = await asyncio.gather(asked(served), asked(served))
    other = await asked(served, tag="another")
    assert first == second != other
    halfway.go_on.set()
    job = served._state.jobs.get(first)
    assert job._task is not None
    await job._task
    outcomes = await lines(app)
    assert ("done", "5 runs cancelled") in outcomes
    assert ("done", "the same was under way already") in outcomes


# -- actions that the database does not carry out in time


def hurried(url: str, seconds: float = 0.6) -> Stepfast:
    app = Stepfast(url, settings=Settings(inline_wait=0, act_timeout=seconds))
    app.task(name="noop")(lambda given: None)
    return app


@asynccontextmanager
async def held(url: str, statement: str, *arguments: Any) -> AsyncIterator[None]:
    """Somebody's transaction that has taken a lock, and does not end."""
    other = await asyncpg.connect(url)
    try:
        async with other.transaction():
            await other.execute(statement, *arguments)
            yield
    finally:
        await other.close()


async def outcomes(client: Any) -> list[tuple[str, str]]:
    lines = (await client.get("/audit", headers=JSON)).json()
    return [(line["outcome"], line["said"] or "") for line in lines]


ROW = "SELECT FROM stepfast.runs WHERE id = $1 FOR UPDATE"


async def test_a_run_that_somebody_holds_is_left_alone(postgres_url: str) -> None:
    async with hurried(postgres_url, 3) as app, browse(console(app, token=TOKEN)) as client:
        run = await app.start("noop", 1)
        async with held(postgres_url, ROW, run.id):
            for action in ("cancel", "pause"):
                answer = await client.post(f"/runs/{run.id}/{action}", headers=OWN)
                assert answer.status_code == 503
                assert "nothing was done: another transaction locked its rows for more than 1.5 s" in answer.text
        assert (await run.info()).status == "queued"
        [(outcome, said), _] = await outcomes(client)
        assert outcome == "refused" and said.startswith("nothing was done")
        assert (await client.post(f"/runs/{run.id}/cancel", headers=OWN)).status_code == 303
        assert (await run.info()).status == "cancelled"


async def test_without_a_line_in_the_audit_nothing_is_done(postgres_url: str) -> None:
    async with hurried(postgres_url) as app, browse(console(app, token=TOKEN)) as client:
        run = await app.start("noop", 1)
        async with held(postgres_url, "LOCK TABLE stepfast.audit IN ACCESS EXCLUSIVE MODE"):
            answer = await client.post(f"/runs/{run.id}/cancel", headers=OWN | JSON)
        assert answer.status_code == 503
        assert answer.json()["error"].startswith("nothing was done: its entry could not be written into the audit")
        assert (await run.info()).status == "queued" and await outcomes(client) == []


async def test_a_file_that_somebody_holds_is_left_alone(sqlite_url: str) -> None:
    async with hurried(sqlite_url) as app, browse(console(app, token=TOKEN)) as client:
        run = await app.start("noop", 1)
        other = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        answer = await client.post(f"/runs/{run.id}/cancel", headers=OWN)
        other.execute("ROLLBACK")
        other.close()
        assert answer.status_code == 503 and "nothing was done" in answer.text
        assert (await run.info()).status == "queued"


async def test_what_may_have_been_done_is_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    bounded = audit._bounded
    monkeypatch.setattr(audit, "_bounded", lambda act, _: bounded(act, 0.1))
    async with hurried("sqlite://", 10) as app, browse(console(app, token=TOKEN)) as client:

        async def never(name: str) -> None:
            await asyncio.Event().wait()

        setattr(app, "pause_queue", never)  # noqa: B010
        answer = await client.post("/queues/pause", data={"queue": "mail"}, headers=OWN)
        assert answer.status_code == 504 and "it may have been done, now or a little later" in answer.text
        assert await outcomes(client) == [("failed", "given up; it may have been done")]


async def test_a_bulk_job_does_not_wait_for_one_run(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "_HELD", 0.2)
    async with hurried(postgres_url, 10) as app, browse(console(app, token=TOKEN)) as client:
        runs = [await app.start("noop", n) for n in range(3)]
        async with held(postgres_url, ROW, runs[1].id):
            form = {"workflow": "noop", "status": "queued"}
            begun = (await client.post("/bulk/cancel", data=form, headers=OWN | JSON)).json()
            async with asyncio.timeout(20):
                while not (shape := (await client.get(f"/bulk/jobs/{begun['job']}", headers=JSON)).json())["ended"]:
                    await asyncio.sleep(0.02)
        assert shape["cancelled"] == 2 and shape["error"] is None
        [refused] = shape["refused"]
        assert refused["id"] == runs[1].id and "another transaction holds" in refused["error"]


async def test_only_the_task_that_said_so_is_hurried(postgres_url: str) -> None:
    """One that an action happens to start may work for others, and for long."""
    async with hurried(postgres_url) as app:
        run = await app.start("noop", 1)
        async with held(postgres_url, ROW, run.id):
            with brief(0.1):
                cancelling = asyncio.create_task(run.cancel())
                with pytest.raises(RowsHeld):
                    await run.cancel()
            done, _ = await asyncio.wait([cancelling], timeout=0.3)
            assert not done
        await cancelling
        assert (await run.info()).status == "cancelled"


async def test_a_run_is_executed_again_from_one_of_its_steps(scene: Scene) -> None:
    @scene.app.workflow(name="stepwise")
    async def stepwise(ctx: Context) -> None:
        await ctx.step("pack", lambda: 1)

    run_id = (await scene.app.start(stepwise)).id
    await scene.app.drain()
    step = (await scene.app.get(run_id).steps())[0]
    link = f"/runs/{run_id}/again?position={step.position}&amp;step={step.name}"
    assert link in await scene.page(f"/runs/{run_id}")
    asked = await scene.page(link.replace("&amp;", "&"))
    assert "Fork</button>" in asked and "Rewind</button>" in asked
    fields: dict[str, Any] = {"branch": "", "position": str(step.position), "step": step.name}
    fork = await scene.post(f"/runs/{run_id}/fork", **fields)
    assert (await scene.app.get(fork["run"]).info()).origin == run_id
    await scene.post(f"/runs/{run_id}/rewind", **fields)
    assert await scene.app.get(run_id).status() == "queued"
    await scene.post(f"/runs/{run_id}/rewind", 409, **fields)
    assert [(what, outcome) for what, _, outcome, _ in await scene.audit()] == [
        ("run.rewind", "refused"), ("run.rewind", "done"), ("run.fork", "done"),
    ]  # fmt: skip
