"""What tests of remote workers share: a worker that looks often, and waiting for what it has done."""

from __future__ import annotations

from typing import Any

from stepfast.remote import RemoteWorker
from tests.remote.tables import Tables
from tests.support.engine import Gate, eventually


def quick_worker(url: str, **options: Any) -> RemoteWorker:
    """A worker of the group ``echo`` that has a handler of that name."""
    options = {"poll_interval": 0.02, "group": "echo", **options}
    worker = RemoteWorker(url, **options)

    @worker.handle("echo")
    async def echo(input: Any) -> Any:
        return input

    return worker


def slow_worker(url: str, gate: Gate, calls: list[Any] | None = None, **options: Any) -> RemoteWorker:
    """The same with a handler ``slow``, which passes a gate; it notes what it is given."""
    worker = quick_worker(url, **options)

    @worker.handle("slow")
    async def slow(input: Any) -> str:
        if calls is not None:
            calls.append(input)
        await gate.passing()
        return "done"

    return worker


async def result_of(tables: Tables, step_id: str) -> dict[str, Any]:
    async def there() -> dict[str, Any] | None:
        return (await tables.results()).get(step_id)

    found: dict[str, Any] = await eventually(there)
    return found


async def results_of(tables: Tables, count: int) -> dict[str, dict[str, Any]]:
    """Wait until so many results are there."""

    async def there() -> dict[str, dict[str, Any]] | None:
        found = await tables.results()
        return found if len(found) >= count else None

    found: dict[str, dict[str, Any]] = await eventually(there)
    return found
