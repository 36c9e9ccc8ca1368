"""Values that go into runs and steps and come back typed, the same live and replayed, on every database."""

from __future__ import annotations

import asyncio
import enum
import math
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

from stepfast import (
    ConfigurationError,
    Context,
    InvalidInput,
    NonRetryableError,
    PayloadError,
    RunNotFound,
    Settings,
    StepFailed,
    Stepfast,
    step,
)
from stepfast.model.ids import new_id
from stepfast.model.records import Look
from tests.engine.conftest import WAITS, MakeApp
from tests.support.both_kinds import KINDS, workflow_of
from tests.support.codecs import Backwards
from tests.support.engine import (
    PATIENCE,
    Calls,
    Gate,
    ThreadGate,
    drained,
    failure,
    finished,
    interrupt,
    outcome,
    replayed,
)
from tests.support.waiting import count, doomed, reached
from tests.support.workflows import calling, task

pytestmark = pytest.mark.enough_on("sqlite")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Line:
    article: str
    cents: int
    notes: list[str] = field(default_factory=list)


@dataclass
class Order:
    id: UUID
    lines: list[Line]
    total: Decimal
    at: datetime
    colour: Colour = Colour.RED


class Parcel(msgspec.Struct):
    weight: float
    label: bytes
    sent: date | None = None


class Address(TypedDict):
    street: str
    number: int


class Point(NamedTuple):
    x: int
    y: int


class Customer(pydantic.BaseModel):
    name: str
    age: int = pydantic.Field(ge=0)
    tags: set[str] = set()


ORDER = Order(
    UUID("12345678-1234-5678-1234-567812345678"),
    [Line("pen", 120, ["blue"]), Line("ink", 5)],
    Decimal("1.10"),
    datetime(2026, 2, 28, 23, 59, 59, 123456, tzinfo=timezone(timedelta(hours=5, minutes=30))),
    Colour.BLUE,
)

TYPED = [
    (Order, ORDER),
    (list[Order], [ORDER, ORDER]),
    (Parcel, Parcel(1.5, b"\x00\xff\x10", date(2026, 1, 1))),
    (Address, {"street": "Ringstraße", "number": 7}),
    (Point, Point(1, 2)),
    (Customer, Customer(name="Ann", age=30, tags={"vip"})),
    (dict[str, Customer], {"a": Customer(name="Ann", age=30)}),
    (datetime, datetime(2026, 1, 1, tzinfo=UTC)),
    (date, date(2026, 1, 1)),
    (time, time(12, 30)),
    (timedelta, timedelta(days=1, seconds=3, microseconds=7)),
    (UUID, UUID(int=7)),
    (Decimal, Decimal("0.10000000000000000000000000001")),
    (Colour, Colour.BLUE),
    (Level, Level.HIGH),
    (bytes, bytes(range(256))),
    (tuple[int, str], (1, "a")),
    (tuple[int, ...], (1, 2, 3)),
    (set[int], {1, 2, 3}),
    (frozenset[str], frozenset({"a"})),
    (dict[int, str], {1: "one", -2: "two"}),
    (dict[UUID, Colour], {UUID(int=1): Colour.RED}),
    (int | None, None),
    (Order | None, None),
    (float, 0.1 + 0.2),
    (list[tuple[int, dict[int, bytes]]], [(1, {2: b"x"})]),
]
IDS = [str(getattr(kind, "__name__", kind)) + str(number) for number, (kind, _) in enumerate(TYPED)]


@pytest.mark.parametrize(("kind", "value"), TYPED, ids=IDS)
async def test_typed_values_round_trip_live_and_replayed(app: Stepfast, kind: Any, value: Any) -> None:
    """Rule 13: as input, result of a step, and result of the run; the annotation decides."""
    gate = Gate()
    seen: list[Any] = []

    async def same(given: kind) -> kind:
        return given

    same.__annotations__ = {"given": kind, "return": kind}

    async def order(ctx: Context, given: Any) -> Any:
        seen.append(given)
        seen.append(await ctx.step(same, given))
        await ctx.step(gate.passing)
        return given

    order.__annotations__ = {"ctx": Context, "given": kind, "return": kind}
    declared = app.workflow(order)
    run = await replayed(app, gate, declared, value)
    result = await run.result()
    assert [*seen, result] == [value] * 5
    assert {type(found) for found in [*seen, result]} == {type(value)}


PLAIN = [
    None, False, True, 0, -0.0, 1.0, "", "null", [], {}, [None, False, 0, ""], {"a": None}, {"": 0},
    "a\0b", {"k\0": "\0"}, "\u2028 \U0001f600 \x7f \\ \" '", 2**63, -(2**63) - 1, 2**64, 2**200, [10**300],
    1e308, 5e-324, 1e16, 123456789.123456789, "x" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=[f"{i} {v!r:.20}" for i, v in enumerate(PLAIN)])
async def test_plain_values_round_trip_exactly(app: Stepfast, calls: Calls, value: Any) -> None:
    gate = Gate()
    seen: list[Any] = []

    def give() -> Any:
        calls.hit("give")
        return value

    @app.workflow
    async def order(ctx: Context, given: Any) -> Any:
        seen.append(given)
        seen.append(await ctx.step(give))
        await ctx.step(gate.passing)
        return value

    run = await replayed(app, gate, order, value)
    seen += [await run.result(), await app.get(run.id).result(), (await run.info()).input, (await run.info()).output]
    seen.append((await run.steps())[0].output)
    assert calls["give"] == 1
    assert [exactly(found) for found in seen] == [exactly(value)] * 9


def exactly(value: Any) -> Any:
    """Equality that tells 0 from False and -0.0."""
    return repr(value)


async def test_untyped_values_look_the_same_live_and_replayed(app: Stepfast) -> None:
    """Rule 13: without an annotation a tuple is a list and an int key a string, both times."""
    gate = Gate()
    seen: list[Any] = []

    @app.workflow
    async def order(ctx: Context) -> None:
        seen.append(await ctx.step("make", lambda: {1: (2, 3), "at": date(2026, 1, 1), "line": Line("pen", 1)}))
        await ctx.step(gate.passing)

    await replayed(app, gate, order)
    plain = {"1": [2, 3], "at": "2026-01-01", "line": {"article": "pen", "cents": 1, "notes": []}}
    assert seen == [plain, plain]


@WAITS
@pytest.mark.parametrize("value", [None, False, 0, "", [], {}], ids=repr)
async def test_empty_values_come_through_every_call_as_themselves(app: Stepfast, value: Any) -> None:
    """As input, result, signal and value of the run, and to an undo; live and replayed."""
    gate, echo = Gate(), task(app, "echo")
    seen: list[list[Any]] = []
    undone: list[Any] = []

    def undo(output: Any) -> None:
        undone.append(output)

    async def give(ctx: Context, given: Any) -> Any:
        return await ctx.step("give", lambda: given)

    @app.workflow(max_attempts=1)
    async def order(ctx: Context, given: Any) -> None:
        await ctx.set("it", given)
        found = [given, await ctx.options(compensate=undo).step("step", lambda: given), await ctx.call(echo, given)]
        found += [await ctx.branch(give, given), *await ctx.map(give, [given])]
        found += await ctx.gather(ctx.branch(give, given))
        found.append(await ctx.transaction("transaction", lambda _: given))
        found.append((await ctx.first(signal=ctx.wait_signal("go"), late=ctx.sleep(3600)))[1])
        seen.append(found)
        await ctx.step("gate", gate.passing)
        raise NonRetryableError("no")

    run = await app.start(order, value)
    await run.signal("go", value)
    await interrupt(app, gate)
    gate.open()
    await app.drain()
    assert (await run.status(), undone) == ("compensated", [value])
    assert len(seen) >= 2 and all(found == [value] * 8 for found in seen)
    assert {type(each) for each in (*seen[0], *seen[-1], *undone)} == {type(value)}
    assert await run.get("it", "not set") == value


async def test_the_annotation_of_a_declared_step_decides(app: Stepfast) -> None:
    """Rule 13: also for types that are local to a function."""

    @dataclass
    class Receipt:
        number: int

    @step
    async def charge() -> Receipt:
        return Receipt(5)

    @app.workflow
    async def order(ctx: Context) -> Receipt:
        receipt = await ctx.step(charge)
        assert isinstance(receipt, Receipt)
        return receipt

    assert await outcome(app, order) == Receipt(5)


# -- what cannot be stored -----------------------------------------------------------------------------------------


def deep(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


def loop() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


class Opaque:
    pass


REFUSED = [
    (math.nan, "nan", "$"),
    ({"a": [1, math.inf]}, "inf", "$.a[1]"),
    ([-math.inf], "-inf", "$[0]"),
    (Parcel(math.nan, b""), "nan", "$.weight"),
    ("half \ud800", "surrogate", "$"),
    ({"a": {"b": ["\udfff"]}}, "surrogate", "$.a.b[0]"),
    ({"k\ud800": 1}, "surrogate", "$"),
    (Opaque(), "Opaque", "$"),
    ({"a": [Line("pen", 1, [Opaque()])]}, "Opaque", "$.a[0].notes[0]"),  # type: ignore[list-item]
    ({"f": print}, "builtin_function_or_method", "$.f"),
    (1 + 2j, "complex", "$"),
    (deep(101), "101|deeper than 100", ""),
    (deep(5000), "deep", ""),
    (loop(), "deep|itself", ""),
    ("x" * (8 * 1024 * 1024), "8,388,610 bytes", ""),
]


@pytest.mark.parametrize(("value", "reason", "path"), REFUSED, ids=[f"{i}" for i in range(len(REFUSED))])
async def test_an_input_that_cannot_be_stored_is_refused_at_the_start(
    app: Stepfast, value: Any, reason: str, path: str
) -> None:
    @app.task
    async def mail(given: Any) -> None: ...

    with pytest.raises(PayloadError, match=f"(?s)input of 'mail'.*({reason})") as caught:
        await app.start(mail, value)
    assert path in str(caught.value)
    with pytest.raises(PayloadError, match=reason):
        await app.start_many(mail, [1, value])
    assert await app.runs() == []


@pytest.mark.parametrize(("value", "reason", "path"), REFUSED, ids=[f"{i}" for i in range(len(REFUSED))])
async def test_a_result_that_cannot_be_stored_fails_the_step_by_name_and_is_not_retried(
    app: Stepfast, calls: Calls, value: Any, reason: str, path: str
) -> None:
    seen: list[StepFailed] = []

    def make() -> Any:
        calls.hit("make")
        return value

    @app.workflow(max_attempts=3)
    async def order(ctx: Context) -> None:
        try:
            await ctx.options(retries=3).step("make it", make)
        except StepFailed as error:
            seen.append(error)
            raise

    run = await drained(app, order)
    caught = await failure(run, f"(?s)step 'make it'.*({reason})")
    assert path in caught.message
    assert calls["make"] == 1
    assert [error.error_type for error in seen] == ["PayloadError"]
    assert (await run.info()).attempt == 1


async def test_a_result_of_a_run_that_cannot_be_stored_fails_it_by_name(app: Stepfast, calls: Calls) -> None:
    @app.task(max_attempts=3)
    async def mail() -> Any:
        calls.hit("mail")
        return {"deep": [Opaque()]}

    await failure(await drained(app, mail), r"result of 'mail'.*Opaque.*\$\.deep\[0\]")
    assert calls["mail"] == 1


async def test_a_result_that_does_not_fit_its_annotation_is_refused(app: Stepfast) -> None:
    """Rule 13: what is promised to the caller must be what a replay can read."""

    async def wrong() -> int:
        return "not a number"  # type: ignore[return-value]

    order = calling(app, lambda ctx: ctx.step(wrong), max_attempts=1)
    await failure(await drained(app, order), "step 'wrong' does not fit its annotation")


async def test_limits_are_settings(make_app: MakeApp, caplog: pytest.LogCaptureFixture) -> None:
    app = make_app(settings=Settings(warn_payload=100, max_payload=200, max_depth=3))

    @app.task(max_attempts=1)
    async def mail(given: Any) -> Any:
        raise ValueError("y" * 1000)

    with pytest.raises(PayloadError, match="max_payload"):
        await app.start(mail, "x" * 200)
    with pytest.raises(PayloadError, match="max_depth"):
        await app.start(mail, deep(4))
    run = await app.start(mail, "x" * 150)
    assert "is large: 152 bytes" in caplog.text
    assert "xxx" not in caplog.text
    await drained(app, mail, deep(3))
    await failure(run, "y" * 1000)


@pytest.mark.parametrize("depth", [99, 100])
async def test_values_within_the_depth_are_kept(app: Stepfast, depth: int) -> None:
    mail = task(app, "mail")
    assert await outcome(app, mail, deep(depth)) == deep(depth)


# -- inputs that do not fit ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value", "path"),
    [
        (Order, {"id": str(UUID(int=1)), "lines": [{"article": "a", "cents": "x"}], "total": "1",
                 "at": "2026-01-01T00:00:00Z"}, r"\$\.lines\[0\]\.cents"),
        (Order, {"id": str(UUID(int=1))}, "lines"),
        (Line, Line("a", "b"), r"\$\.cents"),  # type: ignore[arg-type]
        (int, "7", "int"),
        (int, None, "int"),
        (Colour, "green", "green"),
        (Point, [1], "length"),
        (Customer, {"name": "Ann", "age": -1}, r"Customer\.age"),
        (Address, {"street": "x"}, "number"),
        (list[int], [1, 2, "3"], r"\$\[2\]"),
    ],
    ids=str,
)  # fmt: skip
async def test_an_input_that_does_not_fit_is_refused_with_its_path(
    app: Stepfast, kind: Any, value: Any, path: str
) -> None:
    async def order(ctx: Context, given: Any) -> None: ...

    order.__annotations__ = {"given": kind}
    app.workflow(order)
    with pytest.raises(InvalidInput, match=f"input of 'order' does not fit: .*{path}"):
        await app.start("order", value)
    assert await app.runs() == []


def test_an_annotation_that_cannot_be_read_from_json_is_refused_when_registered() -> None:
    app = Stepfast("sqlite://")
    with pytest.raises(ConfigurationError, match=r"'mail' \(test_payloads.py:\d+\)"):

        @app.task
        async def mail(given: dict[int, int] | dict[str, str]) -> None: ...


async def test_a_workflow_without_an_input_refuses_one(app: Stepfast) -> None:
    @app.task
    async def tick() -> str:
        return "tock"

    with pytest.raises(InvalidInput, match="'tick' takes no input"):
        await app.start(tick, 5)  # type: ignore[misc]
    assert await outcome(app, tick) == "tock"


async def test_an_input_with_a_default_may_be_left_out(app: Stepfast) -> None:
    @app.task
    async def greet(name: str | None = None) -> str:
        return f"hello {name}"

    assert await outcome(app, greet) == "hello None"


BAD_RAW = [b"nothing", b"[1,}", b'{"a": "\xff"}', b"", b"[1] 2", b'"\\ud800"']


@pytest.mark.parametrize("raw", BAD_RAW, ids=repr)
@pytest.mark.parametrize("wrap", [lambda raw: raw, lambda raw: {"a": [raw, None]}], ids=["bare", "nested"])
async def test_raw_text_that_is_no_json_is_refused_where_it_is_given(app: Stepfast, raw: bytes, wrap: Any) -> None:
    given = wrap(msgspec.Raw(raw))

    @app.workflow(max_attempts=1)
    async def sets(ctx: Context, what: str) -> Any:
        if what == "value":
            await ctx.set("at", given)
        return await ctx.step("made", lambda: given)

    @app.task
    async def takes(value: Any) -> None: ...

    @app.task
    async def takes_list(value: list[Any]) -> None: ...

    for each in (takes, takes_list):
        with pytest.raises((PayloadError, InvalidInput), match="input"):
            await app.start(each, given)
    runs = [await app.start(sets, what) for what in ("value", "outcome")]
    with pytest.raises(PayloadError, match=r"msgspec\.Raw"):
        await runs[0].signal("more", given)
    await app.drain()
    for run in runs:
        await failure(run, r"msgspec\.Raw")


async def test_raw_json_is_stored_as_it_is(app: Stepfast) -> None:
    @app.workflow
    async def echo(ctx: Context, value: Any) -> Any:
        await ctx.set("at", {"raw": msgspec.Raw(b"[null, 1]")})
        return [value, await ctx.step("made", lambda: msgspec.Raw(b'{"a": null}')), await ctx.wait_signal("more")]

    run = await app.start(echo, {"b": msgspec.Raw(b"[1, null]")})
    await run.signal("more", msgspec.Raw(b"12"))
    assert await finished(app, run) == [{"b": [1, None]}, {"a": None}, 12]
    assert await run.get("at") == {"raw": [None, 1]}


# -- ``ctx.set`` and ``run.get``: values that others read while the run goes on; ``ctx.progress``: how fa


@dataclass
class Stage:
    name: str
    share: float


@KINDS
async def test_a_value_is_readable_while_the_run_goes_on(app: Stepfast, kind: str) -> None:
    gate = ThreadGate()

    async def order(ctx: Context) -> None:
        await ctx.set("progress", 0.8)
        await ctx.set("stage", Stage("packing", 0.8))
        await ctx.step(gate.passing)
        await ctx.set("progress", 1)

    workflow_of(app, kind, order)
    async with app.worker():
        run = await app.start("order")
        await gate.reached()
        assert await run.get("progress") == 0.8
        assert await run.get("stage") == {"name": "packing", "share": 0.8}
        gate.open()
        await run.result(timeout=PATIENCE)
    assert await run.get("progress") == 1
    assert await asyncio.to_thread(app.sync.get(run.id).get, "progress") == 1


async def test_what_was_never_set_is_the_default(app: Stepfast) -> None:
    @app.workflow
    async def order(ctx: Context) -> None: ...

    run = await app.start(order)
    assert await run.get("it") is None
    assert await run.get("it", 7) == 7
    with pytest.raises(RunNotFound):
        await app.get(new_id()).get("it")


async def test_the_latest_value_wins_and_there_is_one_row(app: Stepfast) -> None:

    @app.workflow
    async def order(ctx: Context) -> None:
        for number in range(50):
            await ctx.set("number", number)

    run = await drained(app, order)
    assert await run.get("number") == 49
    assert await count(app, "run_values", run) == 1
    assert await count(app, "steps", run) == 0


async def test_values_of_runs_and_keys_do_not_meet(app: Stepfast) -> None:
    @app.workflow
    async def order(ctx: Context, number: int) -> None:
        await ctx.set("a", number)
        await ctx.set("b", -number)

    runs = await app.start_many(order, [1, 2, 3])
    await app.drain()
    assert [(await run.get("a"), await run.get("b")) for run in runs] == [(1, -1), (2, -2), (3, -3)]


async def test_a_replay_does_not_bring_old_values_back(make_app: MakeApp) -> None:
    app = make_app(settings=Settings(inline_wait=0))
    seen: list[Any] = []
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.set("stage", 1)
        await ctx.step("work", lambda: None)
        await ctx.set("stage", 2)
        await ctx.wait_signal("go")
        await ctx.set("stage", 3)
        await ctx.step(gate.passing)

    run = await app.start(order)
    async with app.worker():
        await reached(run, "waiting")
        seen.append(await run.get("stage"))
        await run.signal("go")
        while not gate.arrivals:
            seen.append(await run.get("stage"))
            await asyncio.sleep(0)
        seen.append(await run.get("stage"))
        gate.open()
        await run.result(timeout=PATIENCE)
    assert seen == sorted(seen) and seen[0] == 2 and seen[-1] == 3


async def test_a_value_set_before_a_crash_is_there_and_set_anew_after_it(app: Stepfast, make_app: MakeApp) -> None:
    victim = make_app()
    gate = Gate()
    attempt = {"number": 0}
    for each in (app, victim):

        @each.workflow(name="order")
        async def order(ctx: Context) -> None:
            attempt["number"] += 1
            await ctx.set("try", attempt["number"])
            await ctx.step(gate.passing)

    run = await app.start("order")
    async with doomed(victim):
        await gate.reached()
    assert await run.get("try") == 1
    await finished(app, run, gate)
    assert await run.get("try") == 2


async def test_a_worker_that_lost_the_run_sets_nothing(app: Stepfast, make_app: MakeApp) -> None:
    gate = Gate()
    other = make_app()
    refused: list[str] = []

    @app.workflow(name="order")
    async def order(ctx: Context) -> str:
        await ctx.set("by", "first")
        try:
            await ctx.step(gate.passing)
        finally:
            try:
                await ctx.set("by", "the dead")
            except BaseException as error:
                refused.append(type(error).__name__)
        return "first"

    @other.workflow(name="order")
    async def same(ctx: Context) -> str:
        await ctx.set("by", "first")
        await ctx.step("passing", lambda: None)
        return "second"

    run = await app.start("order")
    async with doomed(app):
        await gate.reached()
    assert await finished(other, run) == "second"
    assert refused == ["LeaseLost"]
    assert await run.get("by") == "first"


async def test_setting_a_value_takes_no_position(app: Stepfast, make_app: MakeApp) -> None:
    gate = Gate()
    newer = make_app()

    @app.workflow(name="order")
    async def order(ctx: Context) -> None:
        await ctx.step("first", lambda: None)
        await ctx.step(gate.passing)

    run = await app.start("order")
    await interrupt(app, gate)
    gate.open()

    @newer.workflow(name="order")
    async def changed(ctx: Context) -> None:
        await ctx.set("stage", "begun")
        await ctx.step("first", lambda: None)
        await ctx.set("stage", "first done")
        await ctx.step(gate.passing)
        await ctx.set("stage", "done")

    await finished(newer, run)
    assert await run.get("stage") == "done"


async def test_what_cannot_be_kept_is_refused_by_its_key(app: Stepfast) -> None:
    @app.workflow
    async def order(ctx: Context) -> None:
        with pytest.raises(PayloadError, match="'it'"):
            await ctx.set("it", object())
        with pytest.raises(ConfigurationError, match="key of a value"):
            await ctx.set("", 1)
        with pytest.raises(ConfigurationError, match="key of a value"):
            await ctx.set("x" * 1000, 1)

    await outcome(app, order)


async def test_values_pass_through_the_codec(make_app: MakeApp) -> None:
    app = make_app(codec=Backwards())

    @app.workflow
    async def order(ctx: Context) -> Any:
        await ctx.set("secret", "plain text")
        return await ctx.wait_signal("go")

    run = await app.start(order)
    await run.signal("go", "plain word")
    store = await app.store()
    [mail] = (await store.mail([Look(run.id)]))[run.id].mail
    assert "plain" not in (mail.value or "")
    assert await finished(app, run) == "plain word"
    assert await run.get("secret") == "plain text"
    found = await store.value(run.id, "secret")
    assert found is not None and "plain" not in found[0]


async def test_values_do_not_hold_a_run_in_memory(make_app: MakeApp) -> None:
    """Rule 24: a branch that has just set something waits like any other."""
    app = make_app(settings=Settings(inline_wait=0))

    async def branch(ctx: Context, number: int) -> None:
        await ctx.set("last", number)
        await ctx.sleep(3600)

    order = calling(app, lambda ctx: ctx.gather(ctx.branch(branch, 1), ctx.branch(branch, 2)))
    run = await drained(app, order)
    assert await run.status() == "waiting"


# -- progress -----------------------------------------------------------------------------------------------------


async def test_the_keys_of_checks_are_not_for_others(app: Stepfast) -> None:
    order = calling(app, lambda ctx: ctx.set("~until/:0", 1))
    await failure(await drained(app, order), "must not begin with .*'~until/'")


async def test_the_undo_of_a_dag_step_can_say_so_and_other_values_stay(app: Stepfast) -> None:
    graph = app.dag("order")

    async def refund(ctx: Any) -> None:
        await ctx.set("state", "refunded")

    @graph.step(compensate=refund)
    async def charge(ctx: Any) -> None:
        await ctx.set("state", "charged")

    @graph.step(after=[charge], retries=0)
    async def ship(ctx: Any) -> None:
        raise NonRetryableError("sold out")

    run = await drained(app, graph, None)
    assert await run.status() == "compensated"
    [charged] = [info.child for info in await run.steps() if info.name == "charge" and info.child is not None]
    assert (await run.get("state"), await app.get(charged).get("state")) == ("refunded", "charged")
