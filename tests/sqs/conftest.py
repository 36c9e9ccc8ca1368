"""Queues on a server of moto's, an application on SQLite that sends remote steps over them, and workers."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from stepfast import Settings, Stepfast
from stepfast.remote import RemoteWorker, SqsTransport
from stepfast.remote.sqs import queues
from tests.support.sqs import REGION, Account, PrivateSqs

QUICK = Settings(sweep_interval=0.2, poll_interval=0.1, backoff_base=0.01, inline_wait=0.2, lease=2)


@pytest.fixture(scope="session")
def sqs_server() -> Iterator[PrivateSqs]:
    server = PrivateSqs()
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the SDK's chain finds them first; and no long polls that outlive their test by much."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(queues, "LONG_POLL", 2)


@pytest.fixture
def account(sqs_server: PrivateSqs, credentials: None) -> Account:
    return Account(sqs_server.endpoint, f"t{uuid.uuid4().hex[:12]}")


class Scene:
    """One test's application and workers."""

    def __init__(self, account: Account, store: str) -> None:
        self.account = account
        self.store = store
        self.apps: list[Stepfast] = []

    def transport(self, **options: Any) -> SqsTransport:
        return SqsTransport(REGION, self.account.endpoint, self.account.prefix, **options)

    def app(self, settings: Settings = QUICK, **options: Any) -> Stepfast:
        self.apps.append(Stepfast(self.store, transport=self.transport(**options), settings=settings))
        return self.apps[-1]

    def url(self, **parameters: str) -> str:
        more = "".join(f"&{name}={value}" for name, value in parameters.items())
        return f"sqs://{REGION}?endpoint_url={self.account.endpoint}{more}"

    def worker(self, group: str = "echo", parameters: dict[str, str] | None = None, **options: Any) -> RemoteWorker:
        worker = RemoteWorker(self.url(**(parameters or {})), group, self.account.prefix, **options)

        @worker.handle("echo")
        async def echo(input: Any) -> Any:
            return input

        return worker


@pytest.fixture
async def scene(account: Account, sqlite_url: str) -> AsyncIterator[Scene]:
    scene = Scene(account, sqlite_url)
    yield scene
    for app in scene.apps:
        await app.close()
