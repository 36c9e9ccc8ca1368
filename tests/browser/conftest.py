"""One browser and one console for all tests here; a window of its own for each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from stepfast import Stepfast
from tests.browser.looking import Complaints
from tests.browser.serving import TOKEN, Served, serving
from tests.browser.shop import World, make_shop
from tests.support.needs import CHROMIUM, need

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


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = need(CHROMIUM)
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=_ARGUMENTS)
        yield found
        found.close()


@pytest.fixture(scope="session")
def world() -> World:
    return World()


@pytest.fixture(scope="session")
def shop(world: World) -> Iterator[Served]:
    """A shop with a worker."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Stepfast]:
        async with make_shop(world) as app, app.worker(poll=0.2):
            yield app

    with serving(opened) as served:
        yield served


@pytest.fixture
def page(browser: Browser, shop: Served) -> Iterator[Page]:
    """A window that is let in, and must not complain until the test is over."""
    with browser.new_context(viewport={"width": 1280, "height": 800}) as context:
        found = context.new_page()
        found.set_default_timeout(_PATIENCE)
        complaints = Complaints(found)
        found.goto(f"{shop.url}/runs?token={TOKEN}")
        yield found
        assert complaints.found == []
