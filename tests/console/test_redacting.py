"""What must not be seen is not sent: neither in a page, nor as JSON, nor when a payload is opened, nor in an error."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from stepfast import Context, NonRetryableError, Settings, Stepfast
from stepfast.console import console, json_numbers
from stepfast.console.redaction import HIDDEN, Redactor, rule_of
from tests.console.conftest import JSON, TOKEN, browse

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRET, DIGITS = 'se"cret-zwq-xy', 378282246310005
CARD = {"owner": "Ada", "card": {"number": SECRET, "digits": DIGITS}}


class Scene(NamedTuple):
    app: Stepfast
    failed: str
    waiting: str
    large: str
    dag: str


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene() -> AsyncIterator[Scene]:
    app = Stepfast("sqlite://", settings=Settings(inline_wait=0))

    def charge(given: dict[str, Any]) -> dict[str, Any]:
        return {"charged": given, "list": [given, [given]]}

    @app.workflow(max_attempts=1)
    async def fails(ctx: Context, given: dict[str, Any]) -> None:
        await ctx.set("card", given["card"])
        await ctx.step(charge, given)
        ctx.progress(f"charging {given['card']['number']}", given)
        await ctx.options(retries=1).step("refuse", refuse, given)

    def refuse(given: dict[str, Any]) -> None:
        raise NonRetryableError(f"no money on {given['card']['number']!r} or {given['card']['digits']}")

    @app.workflow(max_attempts=1)
    async def waits(ctx: Context, given: dict[str, Any]) -> Any:
        await ctx.wait_signal("go")

    @app.workflow(max_attempts=1)
    async def large(ctx: Context, size: int) -> None:
        made: Any = await ctx.step("make", lambda: {"filling": "x" * size, "card": {"number": "made-" + SECRET}})
        raise NonRetryableError(f"no money on {made['card']['number']}")

    dag = app.dag("graph")

    @dag.step
    async def only(ctx: Any) -> None:
        raise NonRetryableError(f"no money on {ctx.input['card']['number']}")

    async with app:
        failed, waiting = await app.start(fails, CARD), await app.start(waits, CARD)
        huge, graph = await app.start(large, 20_000), await app.start("graph", CARD)
        await app.drain()
        await waiting.signal("other", CARD)
        yield Scene(app, failed.id, waiting.id, huge.id, graph.id)


def addresses(scene: Scene) -> list[str]:
    runs = [scene.failed, scene.waiting, scene.large, scene.dag]
    found = ["/runs", f"/runs?find={scene.failed}", *(f"/runs/{run}" for run in runs)]
    found += [f"/runs/{run}/confirm/cancel" for run in runs]
    for run in runs:
        found += [f"/runs/{run}/payload?what={what}" for what in ("input", "output", "error", "value&key=card")]
        for position in range(3):
            found += [f"/runs/{run}/payload?what={what}&position={position}" for what in ("step", "arguments", "error")]
    return found


async def everything(scene: Scene, redact: Any) -> tuple[str, set[int]]:
    """All that the console sends about these runs."""
    parts, statuses = [], set()
    async with browse(console(scene.app, token=TOKEN, redact=redact)) as client:
        for address in addresses(scene):
            for headers in ({}, JSON):
                answer = await client.get(address, headers=headers)
                parts.append(answer.text)
                statuses.add(answer.status_code)
    return "\n".join(parts), statuses


def hide(path: str, value: Any) -> Any:
    return "-" if str(value) in (SECRET, str(DIGITS), "made-" + SECRET) else value


@pytest.mark.parametrize(
    "redact",
    [
        ["card.number", "card.digits"],
        ["card"],
        ["CARD"],
        ["*"],
        ["card.*", "card"],
        hide,
    ],
)
async def test_what_is_hidden_is_sent_nowhere(scene: Scene, redact: Any) -> None:
    sent, statuses = await everything(scene, redact)
    assert statuses <= {200, 303, 404} and 200 in statuses
    for secret in (SECRET, "zwq-xy", str(DIGITS), "se&#34;cret"):
        assert secret not in sent, sent[max(0, sent.find(secret) - 300) :][:600]
    if redact != ["*"]:
        assert "Ada" in sent and "no money on" in sent


async def test_without_it_all_is_sent(scene: Scene) -> None:
    sent, _ = await everything(scene, None)
    assert sent.count("zwq-xy") > 20 and str(DIGITS) in sent


async def test_no_text_is_looked_for_where_parts_are_hidden(scene: Scene) -> None:
    async with browse(console(scene.app, token=TOKEN, redact=["card"])) as client:
        answers = [await client.get("/runs", params={"text": text}) for text in (SECRET, "nothing")]
        assert {answer.status_code for answer in answers} == {400}
        assert answers[0].text == answers[1].text


@pytest.mark.parametrize(
    ("paths", "hidden"),
    [
        (["number"], {"a.number", "b.number", "list.number"}),
        (["a.number"], {"a.number"}),
        (["a.*"], {"a.number", "a.name"}),
        (["*.name"], {"a.name"}),
        (["input.b"], {"b.number"}),
        (["list"], {"list.number"}),
        (["n"], set()),
        (["umber"], set()),
    ],
)
async def test_paths(paths: list[str], hidden: set[str]) -> None:
    value = {"a": {"number": "1a", "name": "2a"}, "b": {"number": "1b"}, "list": [[{"number": "1c"}]]}
    shown = json_numbers.write(Redactor(rule_of(paths)).value(value, "input"))
    parts = {"a.number": "1a", "a.name": "2a", "b.number": "1b", "list.number": "1c"}
    assert {name for name, part in parts.items() if part not in shown} == hidden


async def test_what_was_hidden_is_struck_out_of_texts() -> None:
    redactor = Redactor(rule_of(["secret"]))
    redactor.value(json_numbers.read('{"secret": ["longer one", "one", 12.50, true, null, "ab"]}'), "input")
    assert (
        redactor.text("the longer one is 12.50; one of ab is true")
        == f"the {HIDDEN} is {HIDDEN}; {HIDDEN} of ab is true"
    )
    assert redactor.fresh().text("one") == "one"


@pytest.mark.parametrize(
    "text",
    ["0.10", "1e400", "-0", "12345678901234567890123", "[1,2]", '{"a":[]}', '"\\ud83d\\ude00"', "1.0", "9" * 5000],
)
async def test_numbers_keep_their_digits(text: str) -> None:
    assert "".join(json_numbers.write(json_numbers.read(text)).split()) == text.replace('"\\ud83d\\ude00"', '"😀"')


async def test_functions_are_given_numbers() -> None:
    seen: dict[str, type] = {}

    def look(path: str, value: Any) -> Any:
        seen[path] = type(value) if type(value) in (int, str, dict) else type(value).__base__ or object
        return value

    text = '{"whole": 12345678901234567890123, "part": 0.10, "huge": 1e400, "long": ' + "9" * 5000 + "}"
    shown = Redactor(rule_of(look)).value(json_numbers.read(text), "input")
    assert json_numbers.write(shown).replace("\n", "").replace("  ", "") == text.replace(", ", ",")
    assert seen == {"input": dict, "input.whole": int, "input.part": float, "input.huge": float, "input.long": float}


async def test_what_is_nested_too_deeply_is_cut_or_refused() -> None:
    assert "…" in json_numbers.write(json_numbers.read("[" * 500 + "]" * 500))
    with pytest.raises(ValueError):
        json_numbers.read("[" * 200_000)


async def test_nothing_is_hidden_in_the_event_loop(scene: Scene) -> None:
    """A payload of megabytes takes seconds, and other requests are to be answered meanwhile."""
    threads: dict[str, set[int]] = {}

    def hide(path: str, value: Any) -> Any:
        threads.setdefault(path.partition(".")[0], set()).add(threading.get_ident())
        return HIDDEN if "number" in path else value

    async with browse(console(scene.app, token=TOKEN, redact=hide)) as client:
        for address in ("/runs", f"/runs/{scene.failed}", f"/runs/{scene.failed}/confirm/retry", "/schedules"):
            for headers in ({}, JSON):
                assert (await client.get(address, headers=headers)).status_code == 200
    assert {"input", "output", "arguments", "values"} <= threads.keys()
    assert not any(threading.get_ident() in found for found in threads.values())
