"""The health port while the database is away: alive, not ready, and ready again when it is back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from stepfast import Settings, Stepfast
from stepfast.telemetry import HealthPort, Metrics
from tests.support.engine import PATIENCE
from tests.support.postgres import PrivatePostgres
from tests.support.proxy import Proxy
from tests.telemetry.scraping import ask, parsed, value

SETTINGS = Settings(
    lease=1, sweep_interval=0.2, poll_interval=0.2, outage_backoff_max=0.2, command_timeout=1, connect_timeout=1,
    metrics_cache=0, live_lag=30,
)  # fmt: skip


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await condition():
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("silent", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["refused", "silent"])
async def test_an_outage_makes_no_worker_dead(
    postgres_url: str, postgres_server: PrivatePostgres, silent: bool
) -> None:
    """Rule 57: a restart would not help, so liveness does not ask the database; readiness says that it is away. A
    network that says nothing is the harder case: whoever asked would wait."""

    async def ready() -> bool:
        return (await ask(health.port, "/ready"))[0] == 200

    async def not_ready() -> bool:
        return not await ready()

    async with Proxy("127.0.0.1", postgres_server.port) as proxy:
        app = Stepfast(proxy.url(postgres_url), observers=[Metrics()], settings=SETTINGS)
        async with app, HealthPort(app, 0) as health, app.worker():
            await until(ready)
            if silent:
                proxy.stall()
            else:
                proxy.refuse()
                proxy.cut()
            await until(not_ready)
            code, text, _ = await ask(health.port, "/live")
            assert code == 200, text
            samples = parsed((await ask(health.port, "/metrics"))[1])
            assert samples.get(("stepfast_database_up", ()), 0) == 0
            assert value(samples, "stepfast_leases_lost_total") == 0
            proxy.resume()
            proxy.refuse(False)
            await until(ready)
