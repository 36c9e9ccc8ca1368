"""Work that a request leaves behind, and that survives the process: a dependency of FastAPI."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Depends, FastAPI
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool

from stepfast import Stepfast
from stepfast.web import Starter, lifespan, starter
from tests.support.engine import PATIENCE


def client_of(api: FastAPI) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=api, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://shop")


def shop(url: str) -> tuple[Stepfast, Any]:
    app = Stepfast(url)

    @app.task
    async def mail(address: str) -> str:
        return f"mail to {address}"

    return app, mail


async def test_a_request_leaves_a_run_behind(sqlite_url: str) -> None:
    app, mail = shop(sqlite_url)
    api = FastAPI(lifespan=lifespan(app))

    @api.post("/sign-up/{address}")
    async def sign_up(address: str, later: Annotated[Starter, Depends(starter(app))]) -> str:
        return (await later(mail, address, key=address)).id

    async with api.router.lifespan_context(api), client_of(api) as client:
        first, again = [(await client.post("/sign-up/ada")).json() for _ in range(2)]
        assert first == again
        assert await app.get(first).result(timeout=PATIENCE) == "mail to ada"


async def test_it_joins_the_transaction_of_the_request(postgres_url: str) -> None:
    app, _ = shop(postgres_url)
    engine = create_async_engine(postgres_url.replace("postgresql://", "postgresql+asyncpg://"), poolclass=NullPool)

    async def session() -> AsyncIterator[AsyncSession]:
        async with AsyncSession(engine) as session, session.begin():
            yield session

    api = FastAPI()

    @api.post("/sign-up/{address}")
    async def sign_up(address: str, later: Annotated[Starter, Depends(starter(app, session))]) -> str:
        run = await later("mail", address)
        if address == "eve":
            raise ZeroDivisionError
        return run.id

    async with app, client_of(api) as client:
        assert (await client.post("/sign-up/eve")).status_code == 500
        kept = (await client.post("/sign-up/ada")).json()
        assert [run.id for run in await app.runs()] == [kept]


async def test_a_test_puts_another_in_its_place(sqlite_url: str) -> None:
    app, mail = shop(sqlite_url)
    later = starter(app)
    api, sent = FastAPI(), list[Any]()

    @api.post("/sign-up/{address}")
    async def sign_up(address: str, start: Annotated[Starter, Depends(later)]) -> None:
        await start(mail, address)

    class Noted(Starter):
        async def __call__(self, workflow: Any, input: Any = None, **options: Any) -> Any:
            sent.append((workflow.name, input))

    api.dependency_overrides[later] = lambda: Noted(app)
    async with client_of(api) as client:
        assert (await client.post("/sign-up/ada")).status_code == 200
    assert sent == [("mail", "ada")]


@pytest.mark.parametrize("role", ["operate", None])
async def test_the_console_is_mounted_with_the_access_of_the_application(sqlite_url: str, role: str | None) -> None:
    from stepfast.console import console

    app, mail = shop(sqlite_url)

    async def who(request: Any) -> tuple[str, str] | None:
        return None if role is None else (request.headers["x-user"], role)

    api = FastAPI(lifespan=lifespan(app, worker=False))
    api.mount("/stepfast", console(app, auth=who))
    async with api.router.lifespan_context(api), client_of(api) as client:
        run = await app.start(mail, "ada", delay=60)
        page = await client.get(f"/stepfast/runs/{run.id}", headers={"x-user": "ada"})
        assert page.status_code == (401 if role is None else 200)
        assert (run.id in page.text) is (role is not None)
