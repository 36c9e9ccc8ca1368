"""Columns sent to Postgres as single texts arrive as they were, or are refused beforehand."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepfast.store.postgres.flush import ids, numbers, texts
from tests.store.scene import Scene, step

AWKWARD = st.sampled_from(["", "\x1f", "\x1e", "a\x1fb", "{}", ",", '"', "\\", "NULL", "null", "ä€😀", "\n"])
WORDS = AWKWARD | st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5)


@pytest.fixture
async def connection(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(WORDS, max_size=6))
async def test_texts_arrive_as_they_were_or_are_refused(
    connection: asyncpg.Connection, column: list[str | None]
) -> None:
    text = texts(column)
    if text is None:
        assert any(item in ("", None) or "\x1f" in item or "\x1e" in item for item in column)
    else:
        assert await connection.fetchval("SELECT string_to_array($1, chr(31), chr(30))", text) == column


@pytest.mark.parametrize("column", [["\x1f"], ["a", "b\x1fc"], ["\x1e"], [None, "\x1e"], [""]])
def test_what_could_be_taken_for_something_else_is_refused(column: list[str | None]) -> None:
    assert texts(column) is None


async def test_numbers_and_ids_arrive_as_they_were(connection: asyncpg.Connection) -> None:
    many = [0, 1, -1, 2**31 - 1]
    for column in ([], [7], many):
        assert await connection.fetchval("SELECT $1::text::integer[]", numbers(column)) == column
    uuids = ["01890000-0000-7000-8000-000000000001", "01890000-0000-7000-8000-000000000002"]
    for chosen in ([], uuids[:1], uuids):
        assert [str(i) for i in await connection.fetchval("SELECT $1::text::uuid[]", ids(chosen))] == chosen


@pytest.mark.parametrize("name", ["one\x1ftwo", "\x1e", "plain"])
async def test_steps_with_awkward_names_are_recorded_among_others(scene: Scene, name: str) -> None:
    first, second = await scene.running(), await scene.running()
    answer = await scene.flush(step(first, 0, "1", name="usual"), step(second, 0, "2", name=name))
    assert not answer.lost
    assert [(record.name, record.output) for record in await scene.store.steps(first.id)] == [("usual", "1")]
    assert [(record.name, record.output) for record in await scene.store.steps(second.id)] == [(name, "2")]
