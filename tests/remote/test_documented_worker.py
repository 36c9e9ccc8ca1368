"""The worker in PHP that the documents show: its statements, played one after the other, serve a step."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stepfast.remote import SqlTransport, Task
from tests.remote.tables import Tables

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "remote-steps.md"
CLOCK, CLAIM, STAMP, DELETE, INSERT = re.findall(
    r"ask\('([A-Z][^']+)'", re.findall(r"```php\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
)


@pytest.mark.parametrize("url", ["mariadb"], indirect=True)
async def test_its_statements_serve_a_step(transport: SqlTransport, tables: Tables) -> None:
    await transport.dispatch([Task("run:0", "run", 0, "upper", "text", '"a"')])
    [(now,)] = await tables.fetch(CLOCK)
    [(step_id, run_id, seq, name, given, attempt)] = await tables.fetch(CLAIM, "text", now - 30000)
    assert (name, given, attempt) == ("upper", '"a"', 1)
    await tables.fetch(STAMP, "php-1", now, step_id)
    assert await tables.fetch(CLAIM, "text", now - 30000) == []
    await tables.fetch(DELETE, step_id, attempt, "php-2")
    assert await tables.tasks() == [step_id]
    await tables.fetch(DELETE, step_id, attempt, "php-1")
    assert await tables.tasks() == []
    for _ in range(2):  # a second result is passed over
        await tables.fetch(INSERT, step_id, run_id, seq, "completed", '"A"', None, now, now)
    [result] = await transport.results([step_id])
    assert (result.status, result.output, result.error, result.started_at) == ("completed", '"A"', None, now)
