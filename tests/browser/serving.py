"""A console that listens on a port of its own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from stepfast import Stepfast
from stepfast.console.app import standing_alone

TOKEN = "a-token-of-the-tests"


@asynccontextmanager
async def listening(app: Stepfast, **options: Any) -> AsyncIterator[str]:
    """Serve the console of an application; the address that it is found under."""
    console: Any = standing_alone(app, token=TOKEN, host="127.0.0.1", **options)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(console, log_level="warning", access_log=False, lifespan="off")
        config.timeout_graceful_shutdown = 1
        server = uvicorn.Server(config)
        task = asyncio.create_task(server._serve([listener]))  # without signal handlers: this is no main thread
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task
