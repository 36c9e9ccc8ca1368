"""Sessions in the database of an application: what the SDK asks of a session, and that runs write each item once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from agents import Agent, RunConfig, set_tracing_disabled
from agents import Runner as PlainRunner
from agents.memory import Session, SessionSettings
from agents.testing import ScriptedModel, assistant_message

from stepfast import ConfigurationError, Context, PayloadError, RunFailed, Stepfast
from stepfast.openai_agents import Runner, StepfastSession
from stepfast.testing import Lab, crash_everywhere

set_tracing_disabled(True)


@pytest.fixture(params=["postgres", "mariadb", "sqlite"])
async def app(request: pytest.FixtureRequest) -> AsyncIterator[Stepfast]:
    async with Stepfast(request.getfixturevalue(f"{request.param}_url")) as app:
        yield app


def said(*texts: str) -> list[Any]:
    return [{"role": "user" if n % 2 == 0 else "assistant", "content": text} for n, text in enumerate(texts)]


async def test_items_are_added_read_taken_and_cleared(app: Stepfast) -> None:
    session, other = StepfastSession("s-1", app), StepfastSession("s-2", app)
    assert isinstance(session, Session)
    assert (await session.get_items(), await session.pop_item()) == ([], None)
    odd = said("O'Reilly", "Robert'); DROP TABLE students;--", "こんにちは 😊", "", "NUL \0")
    await session.add_items([])
    await session.add_items(odd[:2])
    await session.add_items(odd[2:])
    await other.add_items(said("other"))
    assert await session.get_items() == odd
    assert [await session.get_items(limit) for limit in (0, 2, 99)] == [[], odd[-2:], odd]
    assert [await session.pop_item() for _ in range(3)] == odd[:1:-1]
    await session.add_items(odd[:1])
    assert await session.get_items() == [*odd[:2], odd[0]]
    await session.clear_session()
    assert (await session.get_items(), await other.get_items()) == ([], said("other"))


async def test_many_writers_leave_batches_whole(app: Stepfast) -> None:
    session = StepfastSession("s-3", app)
    await asyncio.gather(*(session.add_items(said(f"{n} a", f"{n} b")) for n in range(12)))
    texts: list[str] = [str(item["content"]) for item in await session.get_items()]  # type: ignore[typeddict-item]
    assert [text.split()[1] for text in texts] == ["a", "b"] * 12
    assert [a.split()[0] == b.split()[0] for a, b in zip(texts[::2], texts[1::2], strict=True)] == [True] * 12
    taken = await asyncio.gather(*(session.pop_item() for _ in range(24)))
    assert len({str(item) for item in taken}) == 24


@pytest.mark.parametrize("method", ["run", "run_sync", "run_streamed"])
async def test_the_runner_of_the_sdk_remembers(sqlite_url: str, method: str) -> None:
    async with Stepfast(sqlite_url) as app:
        session = StepfastSession("s-4", app)
        model = ScriptedModel([[assistant_message("San Francisco")], [assistant_message("California")]])
        agent = Agent("test", model=model)

        async def ask(text: str) -> Any:
            if method == "run":
                return (await PlainRunner.run(agent, text, session=session)).final_output
            if method == "run_sync":
                return (await asyncio.to_thread(PlainRunner.run_sync, agent, text, session=session)).final_output
            result = PlainRunner.run_streamed(agent, text, session=session)
            async for _ in result.stream_events():
                pass
            return result.final_output

        assert [await ask("What city?"), await ask("What state?")] == ["San Francisco", "California"]
        given: Any = model.calls[-1].input
        assert [item["role"] for item in given] == ["user", "assistant", "user"]


async def test_settings_limit_what_a_run_gets(sqlite_url: str) -> None:
    async with Stepfast(sqlite_url) as app:
        session = StepfastSession("s-5", app, session_settings={"limit": 3})
        await session.add_items(said(*(f"turn {n}" for n in range(10))))
        assert [len(await session.get_items(limit)) for limit in (None, 5)] == [3, 5]
        model = ScriptedModel([[assistant_message("ok")]])
        config = RunConfig(session_settings=SessionSettings(limit=2))
        await PlainRunner.run(Agent("test", model=model), "new", session=session, run_config=config)
        assert len(model.calls[-1].input) == 3


async def test_a_process_that_dies_anywhere_adds_each_item_once() -> None:
    app = Stepfast("sqlite://")

    @app.workflow
    async def chat(ctx: Context, text: str) -> list[str]:
        session = StepfastSession(ctx.run_id, app)
        model = ScriptedModel([[assistant_message("Hello.")]])
        await Runner.run(Agent("chat", model=model), text, session=session)

        async def read() -> list[str]:
            return [str(item["role"]) for item in await session.get_items()]  # type: ignore[typeddict-item]

        return await ctx.step("read", read)

    report = await crash_everywhere(app, chat, "Hi.")
    assert report.result == ["user", "assistant"]


async def test_sessions_are_deleted_by_their_age(app: Stepfast) -> None:
    session = StepfastSession("s-6", app)
    await session.add_items(said("hello"))
    assert await StepfastSession.delete_older(app, 3600) == 0
    assert await StepfastSession.delete_older(app, 0) == 1
    assert await session.get_items() == []


async def test_bad_input_is_refused_by_name() -> None:
    app = Stepfast("sqlite://")
    with pytest.raises(ConfigurationError, match="application of Stepfast"):
        StepfastSession("s-7", "sqlite://")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="201 characters"):
        StepfastSession("s" * 201, app)
    async with app:
        with pytest.raises(PayloadError, match="an item of a session"):
            await StepfastSession("s-7", app).add_items([object()])  # type: ignore[list-item]

    @app.workflow
    async def chat(ctx: Context, text: str) -> Any:
        return await StepfastSession("s-7", app).get_items()

    async with Lab(app) as lab:
        with pytest.raises(RunFailed, match="a runner that takes the session"):
            await (await lab.start(chat, "Hi.")).result()
