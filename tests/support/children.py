"""What tests of children share."""

from __future__ import annotations

from stepfast import Stepfast
from tests.store.scene import Rows
from tests.support.engine import Calls


def add_double(app: Stepfast, calls: Calls) -> None:
    """A child that anybody can have."""

    @app.task
    async def double(number: int) -> int:
        calls.hit("double")
        return number * 2


async def all_delivered(app: Stepfast) -> bool:
    rows = Rows(await app.store(), app.namespace, app.url.text)
    try:
        return not await rows.fetch("SELECT id FROM [mailbox] WHERE NOT delivered")
    finally:
        await rows.close()
