"""What must not be seen is not sent: in no page, JSON, payload or error, and in no error of another run."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from stepfast import Backoff, Context, NonRetryableError, Settings, Stepfast
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
    [["card.number", "card.digits"], ["card"], ["CARD"], ["*"], ["card.*", "card"], hide],
)  # fmt: skip
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


# -- errors of one run that quote what only another holds


CARD_NUMBER = "se-cret-zwq-xy"


def fetched() -> Any:
    return {"card": {"number": CARD_NUMBER}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def quoting() -> AsyncIterator[Stepfast]:
    made = Stepfast("sqlite://", settings=Settings(inline_wait=0))

    @made.workflow(max_attempts=1)
    async def child(ctx: Context, number: int) -> None:
        found = await ctx.step(fetched)
        raise NonRetryableError(f"no money on {found['card']['number']}")

    @made.workflow(max_attempts=1)
    async def parent(ctx: Context, number: int) -> None:
        await (await ctx.start(child, number)).result()

    @made.workflow(max_attempts=1)
    async def setter(ctx: Context, number: int) -> None:
        await ctx.set("card", {"number": CARD_NUMBER})
        await ctx.step("refuse", refuse)

    def refuse() -> None:
        raise NonRetryableError(f"no money on {CARD_NUMBER}")

    @made.workflow(max_attempts=1)
    async def named(ctx: Context, given: Any) -> None:
        raise NonRetryableError(f"no money on {next(iter(given['card']))}")

    dag = made.dag("graph")

    @dag.step(retries=5, backoff=Backoff(base=3600, max=3600))
    async def once_more(ctx: Any) -> None:
        found = await ctx.step("fetched", fetched)
        raise ValueError(f"no money on {found['card']['number']}")

    @dag.step
    async def gives(ctx: Any) -> Any:
        return fetched()

    @dag.step(after=["gives"])
    async def takes(ctx: Any) -> None:
        raise NonRetryableError(f"no money on {ctx.outputs['gives']['card']['number']}")

    async with made:
        for workflow, given in (("parent", 1), ("setter", 1), ("named", {"card": {CARD_NUMBER: 1}}), ("graph", None)):
            await made.start(workflow, given)
        await made.drain()
        await made.put_schedule("nightly", "named", every=3600, input={"card": {"number": CARD_NUMBER}})
        yield made


async def addresses_elsewhere(quoting: Stepfast) -> list[str]:
    """All that shows something of these runs, and of the runs that are their steps."""
    ids = [run.id for run in await quoting.runs()]
    ids += [step.child for run in list(ids) for step in await quoting.get(run).steps() if step.child]
    found = ["/runs", "/failures", "/schedules", "/schedules/confirm/trigger?schedule=nightly"]
    for run in dict.fromkeys(ids):
        found += [f"/runs/{run}", f"/runs/{run}/confirm/retry"]
        found += [f"/runs/{run}/payload?what=error{more}" for more in ("", "&position=0", "&position=1", "&position=2")]
    return found


@pytest.mark.parametrize("redact", [["card"], lambda path, value: "-" if "card" in path else value])
async def test_errors_that_quote_what_is_not_at_hand(quoting: Stepfast, redact: Any) -> None:
    sent = {}
    async with browse(console(quoting, token=TOKEN, redact=redact)) as client:
        for address in await addresses_elsewhere(quoting):
            for headers in ({}, JSON):
                sent[address] = (await client.get(address, headers=headers)).text
                assert CARD_NUMBER not in sent[address], address
    assert any(f"no money on {HIDDEN}" in text for text in sent.values())  # where all is at hand, it is struck out


async def test_a_star_stands_for_a_name_with_dots_in_it() -> None:
    given = {"card": {"a.b": CARD_NUMBER, "c\0d": CARD_NUMBER, "e": {"f": CARD_NUMBER}}, "other": {"number": "seen"}}
    shown = Redactor(rule_of(["card.*"])).value(given, "input")
    assert shown == {"card": {"a.b": HIDDEN, "c\0d": HIDDEN, "e": HIDDEN}, "other": {"number": "seen"}}
    assert Redactor(rule_of(["a.b"])).value({"a.b": 1, "a": {"b": 2, "c": 3}}, "input") == {
        "a.b": HIDDEN, "a": {"b": HIDDEN, "c": 3},
    }  # fmt: skip


async def test_a_function_is_given_paths_with_dots() -> None:
    paths: list[str] = []

    def rule(path: str, value: Any) -> Any:
        paths.append(path)
        return value

    Redactor(rule_of(rule)).value({"a": [{"b": 1}]}, "input")
    assert paths == ["input", "input.a", "input.a", "input.a.b"]


async def test_what_is_nested_deeply_is_veiled_too() -> None:
    deep: Any = CARD_NUMBER
    for _ in range(900):
        deep = [deep]
    redactor = Redactor(rule_of(["card"]))
    assert CARD_NUMBER not in str(redactor.value({"card": deep, "other": deep}, "input"))
    assert redactor.text(f"it is {CARD_NUMBER}") == f"it is {HIDDEN}"


async def test_nothing_hidden_is_in_streams_and_logs() -> None:
    app = Stepfast("sqlite://", run_logs="INFO", settings=Settings(inline_wait=0))

    @app.workflow
    async def talks(ctx: Context, given: dict[str, Any]) -> None:
        ctx.log.info("charging %s", given["card"]["number"])
        ctx.stream("cards").send(given)
        await ctx.wait_signal("go")

    async with app:
        run = await app.start(talks, CARD)
        await app.drain()
        async with browse(console(app, token=TOKEN, redact=["card.number", "digits"])) as client:
            for page in ("logs", "streams"):
                for headers in ({}, JSON):
                    sent = (await client.get(f"/runs/{run.id}/{page}", headers=headers)).text
                    assert HIDDEN in sent and "zwq-xy" not in sent and str(DIGITS) not in sent, sent
