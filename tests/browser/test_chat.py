"""The page of examples/chat_session.py in a real browser: it loses its server in the middle of an answer and reads on,
follows a conversation over several runs, and shows all of it when it is opened again."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn

from tests.browser.backstage import Backstage
from tests.browser.conftest import DESK
from tests.browser.looking import Complaints, expect

if TYPE_CHECKING:
    from playwright.async_api import Browser

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "chat_session.py"


def _example() -> Any:
    """The example, with an application of its own."""
    spec = importlib.util.spec_from_file_location("chat_session_in_a_browser", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    return module


@contextlib.asynccontextmanager
async def _served(web: Any, port: int) -> AsyncIterator[int]:
    """A server that ends when it is told to, with its open connections."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        config = uvicorn.Config(
            web, log_level="critical", access_log=False, lifespan="off", timeout_graceful_shutdown=0
        )
        server = uvicorn.Server(config)
        task = asyncio.create_task(server._serve([listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = server.force_exit = True
            await task


def test_a_page_follows_a_conversation_through_restarts(backstage: Backstage, browser: Browser) -> None:
    backstage.do(_talk(browser, _example()))


async def _talk(browser: Browser, example: Any) -> None:
    example.PAUSE = 0.05
    context = await browser.new_context(viewport=DESK)
    page = await context.new_page()
    complaints, line = Complaints(page), page.locator("#lines p.agent")

    async def post(text: str) -> None:
        await page.get_by_label("message").fill(text)
        await page.get_by_role("button", name="Send").click()

    async with example.app, example.app.worker():
        async with _served(example.web, 0) as port:
            await page.goto(f"http://127.0.0.1:{port}/#ada")
            await post("hello")
            await expect(line.first).to_have_text("You said: hello (part 1, 1 lines known)")
            example.PAUSE = 0.3
            await post("more")
            await expect(line.nth(1)).to_contain_text("You said:")
        example.PAUSE = 0.01  # the rest of the answer comes while there is no server
        async with _served(example.web, port):
            await expect(line.nth(1)).to_have_text("You said: more (part 1, 3 lines known)")
            for text in ("a third", "a fourth"):
                await post(text)
            await expect(line.nth(3)).to_have_text("You said: a fourth (part 2, 5 lines known)")
            shown = await page.locator("#lines").inner_text()
            await page.reload()
            await expect(line.nth(3)).to_have_text("You said: a fourth (part 2, 5 lines known)")
            await expect(line.nth(3)).to_have_attribute("data-complete", "yes")
            assert await page.locator("#lines").inner_text() == shown
            await post("bye")
            await expect(page.locator("#lines p.you")).to_have_count(5)
            await post("hello again")  # the conversation has ended: this begins another
            await expect(line).to_have_text(["You said: hello again (part 1, 1 lines known)"])
            await context.close()
    lost = [said for said in complaints.found if "ERR_CONNECTION_REFUSED" not in said and "ERR_INCOMPLETE" not in said]
    assert lost == []
