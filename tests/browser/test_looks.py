"""Every page can be read, in light and dark, and fits a phone. `make screenshots` keeps pictures of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.backstage import Backstage, in_browser
from tests.browser.conftest import DESK, PHONE, window
from tests.browser.looking import contrasts, cut_options, overhang, shown_twice
from tests.browser.story import Told, told

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

_PICTURES = os.environ.get("STEPFAST_SCREENSHOTS")
"""The folder that pictures are written to; none: they are not taken."""
_TALLEST = 940
"""Pixels of a page that are pictured; what comes below is more of the same."""

_BOTTOM = """
24 + Math.max(...[...document.querySelectorAll("main > *")].map((part) => part.getBoundingClientRect().bottom))
"""
_TWICE = ("run",)
"""Pages that are also pictured in the dark, and on a phone."""
_PARTS = {"run-undone": "#timeline"}
"""Pages of which one part is pictured."""
_UNSEEN = ("failed", "run-failed", "run-map")
"""Pages that are measured, and no document shows."""


@pytest.fixture(scope="module")
def shop(backstage: Backstage, browser: Browser) -> Iterator[Told]:
    with backstage.holding(told) as found:
        yield found


async def picture(page: Page, name: str) -> None:
    """Keep what is seen, if somebody wants to."""
    if _PICTURES is None or name in _UNSEEN:
        return
    path = Path(_PICTURES) / f"console-{name}.png"
    if name in _PARTS:
        await page.locator(_PARTS[name]).screenshot(path=path, animations="disabled")
        return
    size = page.viewport_size
    assert size is not None
    height = int(await page.evaluate(_BOTTOM))
    await page.set_viewport_size({"width": size["width"], "height": min(height, _TALLEST)})
    await page.screenshot(path=path, animations="disabled")
    await page.set_viewport_size(size)


@in_browser
async def test_every_page_can_be_read_and_fits(browser: Browser, shop: Told) -> None:
    async with window(browser, shop.url) as page:
        for name, path in shop.pages.items():
            answer = await page.goto(shop.url + path)
            assert answer is not None and answer.status == 200, name
            for theme in ("light", "dark"):
                await page.emulate_media(color_scheme=theme)
                found = await contrasts(page)
                assert len(found) > 10, name
                assert [text for text in found if not text.enough] == [], f"{name}, {theme}"
                assert await overhang(page) <= 0, name
                if theme == "light" or name in _TWICE:
                    await picture(page, name if theme == "light" else f"{name}-dark")
            assert await cut_options(page) == [], name
            await page.emulate_media(color_scheme="light")
            await page.set_viewport_size(PHONE)
            assert await overhang(page) <= 0, f"{name}, on a phone"
            assert await shown_twice(page) == 0, f"{name}, on a phone"
            assert await cut_options(page) == [], f"{name}, on a phone"
            if name in _TWICE:
                await picture(page, f"{name}-phone")
            await page.set_viewport_size(DESK)


@in_browser
async def test_somebody_chooses_dark(browser: Browser, shop: Told) -> None:
    async with window(browser, shop.url) as page:
        ground = "getComputedStyle(document.body).backgroundColor"
        light = await page.evaluate(ground)
        await page.get_by_role("button", name="Light or dark").click()
        dark = await page.evaluate(ground)
        assert light != dark
        await page.reload()  # it is remembered, and there from the first paint on
        assert await page.evaluate(ground) == dark
        assert [text for text in await contrasts(page) if not text.enough] == []
