"""One browser and one console for all tests here; a window of its own for each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

import pytest

from stepfast import Stepfast
from tests.browser.backstage import Backstage
from tests.browser.looking import Complaints
from tests.browser.serving import TOKEN, listening
from tests.browser.shop import World, make_shop
from tests.support.needs import CHROMIUM, need

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page, ViewportSize

_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
]
_PATIENCE = 15_000
"""Milliseconds that a click or an expectation waits, on a machine with much to do."""


DESK: ViewportSize = {"width": 1280, "height": 800}
PHONE: ViewportSize = {"width": 360, "height": 740}


class Scene(NamedTuple):
    """A shop with a worker, and its console."""

    app: Stepfast
    world: World
    url: str


@pytest.fixture(scope="package")
def backstage() -> Iterator[Backstage]:
    made = Backstage()
    yield made
    made.close()


@asynccontextmanager
async def launched(path: str) -> AsyncIterator[Browser]:
    """A browser without a window. What steers it is imported only now: every test process reads these files, and one
    runs them."""
    from playwright.async_api import async_playwright, expect

    expect.set_options(timeout=_PATIENCE)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=_ARGUMENTS)
        yield browser
        await browser.close()


@pytest.fixture(scope="package")
def browser(backstage: Backstage) -> Iterator[Browser]:
    path = need(CHROMIUM)
    with backstage.holding(lambda: launched(path)) as found:
        yield found


@asynccontextmanager
async def _opened() -> AsyncIterator[Scene]:
    world = World()
    async with make_shop(world) as app, app.worker(poll_interval=0.2), listening(app) as url:
        yield Scene(app, world, url)


@pytest.fixture(scope="package")
def scene(backstage: Backstage) -> Iterator[Scene]:
    with backstage.holding(_opened) as found:
        yield found


@asynccontextmanager
async def window(browser: Browser, url: str) -> AsyncIterator[Page]:
    """A window that is let in, and must not complain until it is closed."""
    context = await browser.new_context(viewport=DESK, color_scheme="light")
    page = await context.new_page()
    page.set_default_timeout(_PATIENCE)
    complaints = Complaints(page)
    await page.goto(f"{url}/runs?token={TOKEN}")
    yield page
    await context.close()
    assert complaints.found == []


@pytest.fixture
def page(backstage: Backstage, browser: Browser, scene: Scene) -> Iterator[Page]:
    with backstage.holding(lambda: window(browser, scene.url)) as found:
        yield found
