"""What people do with the console, in a real browser."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

from stepfast import Run
from tests.browser.backstage import in_browser
from tests.browser.conftest import Scene
from tests.browser.looking import expect
from tests.browser.shop import Order
from tests.support.engine import eventually

if TYPE_CHECKING:
    from playwright.async_api import Page


async def started(scene: Scene, name: str, input: Any, wanted: str) -> str:
    """A run that has come so far."""
    run = await scene.app.start(name, input)
    await until(run, wanted)
    return run.id


async def until(run: Run[Any], wanted: str) -> None:
    """Wait until a run stands so."""
    while await run.status() != wanted:
        await asyncio.sleep(0.02)


@in_browser
async def test_a_failed_run_is_found_and_retried(page: Page, scene: Scene) -> None:
    failed = await started(scene, "send-mail", "bounce@example.org", "failed")
    await page.goto(f"{scene.url}/runs?status=failed")
    await page.get_by_role("link", name=failed).click()
    await expect(page.locator("#why")).to_contain_text("does not answer")
    await page.get_by_role("link", name="Retry", exact=True).click()
    await page.get_by_role("button", name="Retry").click()
    await expect(page).to_have_url(re.compile(f"/runs/{failed}"))
    await expect(page.locator("[role=status]")).to_contain_text("Queued again")


@in_browser
async def test_a_waiting_run_is_approved(page: Page, scene: Scene) -> None:
    waiting = await started(scene, "checkout", Order("o-1", 120_000), "waiting")
    scene.world.remote_dispatcher.set()
    await page.goto(f"{scene.url}/runs/{waiting}")
    await expect(page.locator("#why")).to_contain_text("approved")
    await page.get_by_role("link", name="Send a signal").click()
    await page.get_by_label("value").fill("true")
    await page.get_by_role("button", name="Send").click()
    await expect(page.locator("[role=status]")).to_contain_text("signal was sent")
    await expect(page.locator("#state")).to_contain_text("completed")
    assert await scene.app.get(waiting).result() == "receipt o-1"


@in_browser
async def test_a_run_goes_on_before_ones_eyes(page: Page, scene: Scene) -> None:
    scene.world.remote_dispatcher.clear()
    run = await scene.app.start("checkout", Order("o-2", 100))
    await page.goto(f"{scene.url}/runs/{run.id}")
    await expect(page.locator("#timeline svg")).to_contain_text("charge_card")
    await expect(page.locator("#live")).to_be_visible()
    scene.world.remote_dispatcher.set()
    await expect(page.locator("#state")).to_contain_text("completed")
    await expect(page.locator("#timeline svg")).to_contain_text("send-mail")
    await expect(page.locator("#live")).to_be_hidden()  # what has ended is not asked for again


@in_browser
async def test_many_are_cancelled_at_once(page: Page, scene: Scene) -> None:
    runs = [await scene.app.start("checkout", Order(f"b-{n}", 120_000), tags=["bulk"]) for n in range(3)]
    other = await started(scene, "checkout", Order("b-9", 120_000), "waiting")
    for run in runs:
        await until(run, "waiting")
    await page.goto(f"{scene.url}/runs?tag=bulk")
    await page.get_by_role("link", name="Cancel all…").click()
    await expect(page.locator(".why")).to_contain_text("3 chosen by tag bulk")
    await page.get_by_role("button", name="Cancel 3 runs").click()
    await expect(page.get_by_role("status")).to_contain_text("3 runs cancelled of 3")
    for run in runs:
        await until(run, "compensated")
    assert await scene.app.get(other).status() == "waiting"
    await page.get_by_role("link", name="Audit").first.click()
    await expect(page.locator("#audit")).to_contain_text("bulk.cancel")


@in_browser
async def test_keys(page: Page, scene: Scene) -> None:
    for number in range(3):
        await scene.app.start("nightly-report", f"day {number}")
    await page.goto(f"{scene.url}/runs?workflow=nightly-report")
    await page.keyboard.press("j")
    await page.keyboard.press("j")
    rows = page.locator("[data-row]")
    await expect(rows.nth(1)).to_have_class(re.compile("marked"))
    await page.keyboard.press("k")
    await expect(rows.nth(0)).to_have_class(re.compile("marked"))
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog")).to_contain_text("find a run")
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_be_hidden()
    await page.keyboard.press("/")
    await expect(page.get_by_role("searchbox")).to_be_focused()
    await page.keyboard.press("Escape")
    run = (await scene.app.runs(workflow="nightly-report", limit=1))[0]
    await page.get_by_role("searchbox").fill(run.id)
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(re.compile(f"/runs/{run.id}"))


@in_browser
async def test_a_hidden_tab_requests_nothing(page: Page, scene: Scene) -> None:
    """Neither news nor pages, for however long; and at once again when it is shown. The browser's clock stands still
    unless it is moved, so that no request is under way when the tab is hidden, as a browser says it."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    show = """(seen) => {
        Object.defineProperty(document, "hidden", { configurable: true, get: () => !seen });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    await page.clock.install(time=0)
    await page.clock.pause_at(60_000)
    await page.goto(f"{scene.url}/runs")
    await page.evaluate(show, False)
    asked.clear()
    await page.clock.run_for(600_000)
    assert asked == []
    async with page.expect_response(lambda answer: "/runs" in answer.url):
        await page.evaluate(show, True)
    asked.clear()

    async def asks_again() -> list[str]:
        """The next turn is only scheduled when the page has shown the response, which takes it some time."""
        await page.clock.run_for(60_000)
        return asked

    await eventually(asks_again)
