"""Starts, signals, cancellations and resumptions from SQL on Postgres (rules 10 and 54)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Annotated, Any, Literal

import asyncpg
import msgspec
import pytest

from stepfast import Context, InvalidState, RunFailed, Settings, Stepfast
from stepfast.model.payload_check import first_problem
from tests.engine.conftest import MakeApp
from tests.support.codecs import Backwards
from tests.support.engine import PATIENCE, Calls, Gate, drained, eventually
from tests.support.postgres import BLOCKED
from tests.support.workflows import calling, listener

QUICK = Settings(poll_interval=0.05, sweep_interval=0.05, inline_wait=0)


@pytest.fixture
def url(postgres_url: str) -> str:
    return postgres_url


@pytest.fixture
async def sql(url: str) -> AsyncIterator[Any]:
    """A connection of somebody who has no Python."""
    connection = await asyncpg.connect(url)
    yield connection
    await connection.close()


@dataclass
class Order:
    id: str
    cents: Annotated[int, msgspec.Meta(ge=0)]
    kind: Literal["web", "shop"] = "web"


async def know(app: Stepfast) -> None:
    """What a worker does when it begins: the database is told of the code."""
    await (await app._connect()).store_definitions(list(app.workflows.values()))


def declare(app: Stepfast) -> None:
    @app.workflow(deadline=timedelta(hours=3), queue="orders")
    async def checkout(ctx: Context, order: Order) -> str:
        return f"{order.id}: {order.cents}"

    fulfil = app.dag("fulfil", deadline=60)

    @fulfil.step(retries=2, timeout=1.5, catch={ValueError: "mend"})
    async def pick(ctx: Any) -> int:
        return int(ctx.input["n"])

    @fulfil.step(after=["pick"], timeout=7)
    async def pack(ctx: Any) -> int:
        return int(ctx.outputs["pick"]) + 1

    @fulfil.step(after=["pick"])
    async def mend(ctx: Any) -> None: ...

    fulfil.approval("ok", after=["pack"], timeout=90)
    fulfil.remote("couriers.book", after=["ok"], retries=4, timeout=30)


MADE_ANEW = ("id", "seed", "dag_id", "place", "parent_id")
"""Columns that differ between any two runs."""
TIMES = ("visible_at", "deadline_at", "expires_at", "ready_at", "started_at", "completed_at")


async def rows_of(sql: Any, key: str) -> list[dict[str, Any]]:
    """The rows of a run and its steps; times count from its start, and chance is only looked at."""
    found = []
    for row in await sql.fetch(
        "SELECT * FROM stepfast.runs r WHERE key = $1 OR dag_id = (SELECT id FROM stepfast.runs WHERE key = $1) "
        "ORDER BY ordinal NULLS FIRST", key
    ):  # fmt: skip
        columns = dict(row)
        assert len(columns["seed"]) >= 32 or sql.get_server_version() < (13, 0)  # there the first claim gives it
        assert (columns["id"].version, columns["id"].variant) == (7, "specified in RFC 4122")
        assert abs((columns["id"].int >> 80) - columns["created_at"]) < 1000
        shown = {name: value for name, value in columns.items() if name not in MADE_ANEW}
        shown["ready"] = columns["place"] is not None
        for name in TIMES:
            if shown[name] is not None:
                shown[name] = round((shown[name] - columns["created_at"]) / 1000)
        found.append({**shown, "created_at": None, "key": None})
    return found


OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "plain": ({}, ""),
    "all": (
        {"queue": "v", "priority": 3, "expires_in": 60, "deadline": 120, "tags": ["b", "a"], "concurrency_key": "c"},
        "queue => 'v', priority => 3, expires_in => '60', deadline => '120', tags => '{b,a,b}', concurrency_key => 'c'",
    ),
    "delayed": ({"delay": 30, "expires_in": 10}, "delay => '30 seconds', expires_in => '10'"),
}


async def test_the_rows_are_those_that_a_start_in_python_inserts(app: Stepfast, sql: Any) -> None:
    declare(app)
    await know(app)
    for workflow, value in (("checkout", {"id": "1", "cents": 2}), ("fulfil", {"n": 1})):
        for name, (options, words) in OPTIONS.items():
            key, text = f"{workflow} {name}", json.dumps(value, separators=(",", ":"))
            await app.start(workflow, value, key=f"{key} python", **options)
            call = f"SELECT stepfast.start('{workflow}', $1, '{key} sql'{', ' * bool(words)}{words})"
            first = await sql.fetchval(call, text)
            assert await rows_of(sql, f"{key} sql") == await rows_of(sql, f"{key} python"), key
            assert await sql.fetchval(call, text) == first
    tagged = await sql.fetch("SELECT tag, count(*) FROM stepfast.run_tags GROUP BY tag ORDER BY tag")
    assert [tuple(row) for row in tagged] == [("a", 4), ("b", 4)]


async def test_a_run_is_started_signalled_held_and_cancelled_by_sql(make_app: MakeApp, sql: Any) -> None:
    app = make_app(settings=QUICK)
    gate = Gate()

    @app.workflow
    async def asks(ctx: Context, n: int) -> int:
        if n == 0:
            await ctx.step("waits", gate.passing)
        return n + await ctx.wait_signal("more", type=int)

    @app.workflow
    async def goes_on(ctx: Context, n: int) -> Any:
        if n:
            await ctx.continue_as(n - 1)
        return await ctx.wait_signal("more")

    graph = app.dag("graph")
    graph.approval("ok")
    async with app, app.worker():
        ids = [
            await sql.fetchval(f"SELECT stepfast.start('{name}', '2')") for name in ("asks", "asks", "goes_on", "graph")
        ]
        asked, ended, went_on, graph_run = runs = [app.get(str(run_id)) for run_id in ids]
        for run in runs:
            await eventually(partial(_is, run, "waiting", "completed"))
        await asked.pause()
        await graph_run.pause()
        async with sql.transaction():
            await sql.execute("SELECT stepfast.signal($1, 'more', '40')", ids[0])
            await sql.execute("SELECT stepfast.resume($1)", ids[0])
            await sql.execute("SELECT stepfast.cancel($1)", ids[1])
            await sql.execute("SELECT stepfast.signal($1, 'more', '{\"a\": null}')", ids[2])
            await sql.execute("SELECT stepfast.signal($1, 'ok', 'true'), stepfast.resume($1)", ids[3])
        assert await asked.result(timeout=PATIENCE) == 42
        assert await went_on.result(timeout=PATIENCE) == {"a": None}
        assert await graph_run.result(timeout=PATIENCE) == {"ok": True}
        await eventually(lambda: _is(ended, "cancelled"))
        await sql.execute("SELECT stepfast.cancel($1)", ids[1])  # once more is no error
        held = await sql.fetchval("SELECT stepfast.start('asks', '0')")
        await gate.reached()
        await sql.execute("SELECT stepfast.cancel($1)", held)
        gate.open()
        await eventually(lambda: _is(app.get(str(held)), "cancelled"))
    assert await sql.fetchval("SELECT count(*) FROM stepfast.mailbox") == 0


async def _is(run: Any, *statuses: str) -> bool:
    return await run.status() in statuses


async def test_an_open_transaction_holds_no_worker_up_and_ends_as_one(make_app: MakeApp, sql: Any) -> None:
    app = make_app(settings=QUICK)

    @app.workflow
    async def two(ctx: Context) -> int:
        await ctx.wait_signal("go")
        return await ctx.step("two", lambda: 2)

    async with app, app.worker():
        run = await app.start(two)
        await eventually(lambda: _is(run, "waiting"))
        transaction = sql.transaction()
        await transaction.start()
        other = await sql.fetchval("SELECT stepfast.start('two', key => 'k')")
        await sql.execute(
            "SELECT stepfast.signal($1, 'go'), stepfast.cancel($1), stepfast.signal($2, 'go')", run.id, other
        )
        await run.signal("go")  # by another session, which changes the row of the run
        assert await run.result(timeout=PATIENCE) == 2
        assert len(await app.runs()) == 1
        await transaction.rollback()
        assert await sql.fetchval("SELECT count(*) FROM stepfast.runs") == 1
        assert await sql.fetchval("SELECT count(*) FROM stepfast.mailbox") == 0


async def test_a_notification_wakes_a_worker_that_polls_rarely(make_app: MakeApp, sql: Any) -> None:
    app = make_app(settings=Settings(poll_interval=600, sweep_interval=600))
    listener(app, "more", name="asks")
    async with app, app.worker():
        store = await app.store()
        await eventually(lambda: store.can_wake)
        run_id = await sql.fetchval("SELECT stepfast.start('asks', notify => true)")
        await eventually(lambda: _is(app.get(str(run_id)), "running", "waiting"))
        await sql.execute("SELECT stepfast.signal($1, 'more', '1', notify => true)", run_id)
        assert await app.get(str(run_id)).result(timeout=PATIENCE) == 1


NO_RUN = "'01a1e2dd-8e97-7dba-96fd-cd5dac311e4a'"
REFUSED = [
    ("start('chekout')", "42704", "no workflow named 'chekout'; known workflows: checkout, fulfil"),
    ("start(NULL)", "42704", "no workflow named NULL"),
    ("start('checkout')", "22023", "Expected object, got null - at $"),
    ("start('checkout', NULL)", "22023", "Expected object, got null - at $"),
    ("start('checkout', '{\"id\": \"1\"}')", "22023", "missing required field cents - at $"),
    ("start('checkout', '{\"id\": \"\\ud800\"}')", "22023", "cannot be stored as JSON"),
    ("start('fulfil', repeat('[', 101)::json)", "22P02", "invalid input syntax"),
    ("start('fulfil', (repeat('[', 101) || repeat(']', 101))::json)", "54000", "deeper than 100 levels"),
    ("start('fulfil', to_json(repeat('x', 8388607)))", "54000", "bytes of JSON; the limit is"),
    ("start('fulfil', key => '')", "22023", "the key must not be empty"),
    ("start('fulfil', tags => ARRAY[repeat('x', 201)])", "22023", "a tag has 201 characters"),
    ("start('fulfil', queue => 'a,b')", "22023", "the queue 'a,b' has a comma"),
    ("start('fulfil', delay => '-1 second')", "22023", "delay must be between nothing and a hundred years"),
    ("start('fulfil', delay => '1', at => now())", "22023", "delay or at, not both"),
    ("start('fulfil', at => 'infinity')", "22023", "before the year 9000"),
    (f"signal({NO_RUN}, 'a')", "P0002", "there is no run"),
    (f"signal({NO_RUN}, NULL)", "22023", "the name of a signal must be given"),
    (f"signal({NO_RUN}, 'a,b')", "22023", "no comma"),
    (f"cancel({NO_RUN})", "P0002", "there is no run"),
    ("resume(NULL)", "P0002", "there is no run NULL"),
    ("signal({run}, 'nothing')", "55000", "has no unfinished step 'nothing'"),
    ("resume({run})", "55000", "only a paused run can be resumed"),
    ("cancel({step})", "55000", "is a step of dag run"),
    ("signal({ended}, 'a')", "55000", "is completed; a signal can only be sent"),
    ("cancel({ended})", "55000", "is completed; it cannot be cancelled any more"),
]


async def test_what_cannot_be_is_refused_with_a_state_and_a_sentence(app: Stepfast, sql: Any) -> None:
    declare(app)
    await know(app)
    run = await sql.fetchval("SELECT stepfast.start('fulfil')")
    step = await sql.fetchval("SELECT id FROM stepfast.runs WHERE dag_step = 'pick'")
    ended = await sql.fetchval('SELECT stepfast.start(\'checkout\', \'{"id": "1", "cents": 3}\')')
    await sql.execute("UPDATE stepfast.runs SET status = 'completed' WHERE id = $1", ended)
    ids = {"{run}": run, "{step}": step, "{ended}": ended}
    for call, state, words in REFUSED:
        for name, run_id in ids.items():
            call = call.replace(name, f"'{run_id}'")
        with pytest.raises(asyncpg.PostgresError) as refused:
            await sql.execute(f"SELECT stepfast.{call}")
        assert (refused.value.sqlstate, words in str(refused.value)) == (state, True), (call, refused.value)
    assert await sql.fetchval("SELECT count(*) FROM stepfast.mailbox") == 0


async def test_a_run_is_found_by_its_key_from_sql(app: Stepfast, sql: Any) -> None:
    declare(app)
    run = await app.start("fulfil", {"n": 1}, key="a")
    held = await app.start("checkout", {"id": "1", "cents": 3}, key="b", debounce=60)
    call = "SELECT stepfast.find($1, $2)::text"
    asked = (("fulfil", "a"), ("checkout", "b"), ("checkout", "a"), ("fulfil", None))
    assert [await sql.fetchval(call, *each) for each in asked] == [run.id, held.id, None, None]


async def test_runs_are_made_due_from_sql(make_app: MakeApp, sql: Any, calls: Calls) -> None:
    app = make_app(
        settings=Settings(poll_interval=0.05, sweep_interval=0.05, inline_wait=0, backoff_base=600, backoff_max=3600)
    )

    def work() -> int:
        if calls.hit("work") % 2:
            raise ConnectionError("no answer")
        return 1

    retried = calling(app, lambda ctx: ctx.options(retries=1).step(work), name="retried")
    dag = app.dag("graph")
    dag.declare(lambda ctx: work(), name="a")
    dag.declare(lambda ctx: 2, name="b", after=["a"])
    delayed = await app.start(dag, delay=3600)
    waiting = await drained(app, retried)
    call = "SELECT stepfast.reschedule($1::uuid{})"
    for run in (waiting, delayed, delayed):  # of the dag run first its start, then its step's next try
        await sql.execute(call.format(""), run.id)
        await app.drain()
    assert (await waiting.result(), await delayed.result()) == (1, {"a": 1, "b": 2})

    later = await app.start(retried, delay=60)
    await sql.execute(call.format(", delay => '1 hour', priority => 3"), later.id)
    await app.drain()
    info = await later.info()
    assert info.due_at is not None and info.due_at - info.read_at > timedelta(minutes=59)
    assert info.priority == 3
    await sql.execute(call.format(", at => '2001-01-01'"), later.id)
    await sql.execute(
        'UPDATE stepfast.mailbox SET value = \'{"due_at": "x"}\' WHERE run_id = $1::uuid AND NOT delivered', later.id
    )
    await app.drain()  # what makes no sense moves nothing, and keeps nothing from its way
    assert (await later.info()).due_at == info.due_at
    for given, said in (
        (", delay => '1 hour', at => now()", "delay or at, not both"),
        (", delay => '-1 hour'", "delay must be between"),
        (", at => 'infinity'", "before the year 9000"),
    ):
        with pytest.raises(asyncpg.InvalidParameterValueError, match=said):
            await sql.execute(call.format(given), later.id)
    await later.pause()
    for run in (later, waiting, delayed):
        with pytest.raises(asyncpg.ObjectNotInPrerequisiteStateError, match="only a run that is queued, or waits for"):
            await sql.execute(call.format(""), run.id)


async def test_what_a_chain_that_has_ended_refuses_is_refused_from_sql_too(app: Stepfast, sql: Any) -> None:
    """By the id of its first, with the sentences of Python."""

    @app.workflow
    async def counter(ctx: Context, n: int) -> None:
        if n:
            ctx.continue_as(n - 1)

    run = await drained(app, counter, 2)
    for call, ask in (
        ("signal($1, 'a')", partial(run.signal, "a")),
        ("cancel($1)", run.cancel),
        ("resume($1)", run.resume),
    ):
        with pytest.raises(InvalidState) as usual:
            await ask()
        with pytest.raises(asyncpg.ObjectNotInPrerequisiteStateError) as refused:
            await sql.execute(f"SELECT stepfast.{call}", run.id)
        assert str(refused.value) == str(usual.value)
    assert await sql.fetchval("SELECT count(*) FROM stepfast.mailbox") == 0


class Tree(msgspec.Struct):
    """A type that names itself."""

    name: str
    twigs: list[Tree] = []


TYPES: list[Any] = [int, float, str, bool, None, list[int], dict[str, int], tuple[int, str], int | None, Any]
TYPES += [Order, Tree, list[Order | str]]
MIXED = {"enum": [1, "a", None]}
"""Of Literal[1, "a", None]; the oldest msgspec makes no schema of values that cannot be sorted."""
ORDER = {"id": "1", "cents": 2}
TREE = {"name": "a", "twigs": [{"name": "b"}]}
VALUES: list[Any] = [
    None, True, 0, 1, 1.0, 1.5, -3, 10**30, "", "a", [], [1], ["a"], [1, "a"], [[]], {}, {"a": 1}, {"a": "b"},
    ORDER, {**ORDER, "kind": "shop"}, {**ORDER, "kind": "no"}, {**ORDER, "more": 1}, {"id": 1, "cents": 2},
    {"cents": 1}, [ORDER], [ORDER, 1], ["a", {"id": 2}], TREE, {"name": "a", "twigs": [{"name": 1}]},
    {"name": "a", "twigs": [TREE]},
]  # fmt: skip


async def test_the_check_agrees_with_that_of_a_start_without_the_code(sql: Any) -> None:
    """But for bounds, which these values keep."""
    for schema in (*map(msgspec.json.schema, TYPES), MIXED):
        verdicts = await sql.fetch(
            "SELECT stepfast.sql_misfit(v, $2::jsonb, $2::jsonb, '$') AS problem "
            "FROM jsonb_array_elements($1::jsonb) WITH ORDINALITY AS u(v, n) ORDER BY n",
            json.dumps(VALUES), json.dumps(schema),
        )  # fmt: skip
        for value, (problem,) in zip(VALUES, verdicts, strict=True):
            expected = first_problem(value, schema)
            assert (problem is None) == (expected is None), (schema, value, problem, expected)


async def test_what_only_the_code_can_refuse_ends_the_run_at_its_first_claim(
    app: Stepfast, sql: Any, calls: Calls
) -> None:
    declare(app)

    @app.workflow
    async def passes_on(ctx: Context, child: dict[str, Any]) -> None:
        calls.hit("passes_on")
        await ctx.start("checkout", child)

    await know(app)
    late = await sql.fetchval('SELECT stepfast.start(\'checkout\', \'{"id": "1", "cents": -1}\')')
    ours = await drained(app, passes_on, {"id": 1})
    info = await app.get(str(late)).info()
    assert (info.status, info.reason, info.attempt) == ("failed", "invalid_input", 1)
    assert info.error is not None and "`int` >= 0" in info.error.message
    # What the code of a run passes on is the fault of that code.
    info = await ours.info()
    assert (info.status, info.reason, calls["passes_on"]) == ("failed", "code", 1)


async def test_an_application_with_a_codec_reads_what_sql_wrote_plainly(make_app: MakeApp, sql: Any) -> None:
    app = make_app(codec=Backwards(), settings=QUICK)

    @app.workflow
    async def asks(ctx: Context, n: int) -> int:
        return n + await ctx.wait_signal("more", type=int)

    await know(app)
    run_id = await sql.fetchval("SELECT stepfast.start('asks', '2')")
    await sql.execute("SELECT stepfast.signal($1, 'more', '40')", run_id)
    await app.drain()
    assert await app.get(str(run_id)).result(timeout=PATIENCE) == 42


async def test_of_signals_with_one_id_a_run_takes_one(make_app: MakeApp, sql: Any) -> None:
    """Sent by SQL and by Python, before it was taken and after."""
    app = make_app(settings=QUICK)
    run = await app.start(listener(app, "more", "more", name="asks"))
    for value in ("1", "2"):
        await sql.execute("SELECT stepfast.signal($1, 'more', $2::json, id => 'a')", run.id, value)
    await run.signal("more", 3, id="a")
    await app.drain()
    await sql.execute("SELECT stepfast.signal($1, 'more', '4', id => 'a')", run.id)
    await run.signal("more", 5, id="b")
    await sql.execute("SELECT stepfast.signal($1, 'more', '6', id => 'b')", run.id)
    await app.drain()
    assert await run.result(timeout=PATIENCE) == [1, 5]
    await sql.execute("SELECT stepfast.signal($1, 'more', '7', id => 'b')", run.id)
    with pytest.raises(asyncpg.PostgresError, match="the id of a signal must not be empty"):
        await sql.execute("SELECT stepfast.signal($1, 'more', '7', id => '')", run.id)


async def test_a_trigger_of_somebody_with_few_rights_starts_runs(make_app: MakeApp, sql: Any) -> None:
    """Their table lies in another schema, and functions of a stranger on their search_path change nothing."""
    app = make_app(settings=QUICK)
    declare(app)
    await know(app)
    await sql.execute(
        """
        CREATE ROLE shopkeeper;
        GRANT USAGE ON SCHEMA stepfast TO shopkeeper;
        GRANT SELECT ON stepfast.definitions, stepfast.queues TO shopkeeper;
        GRANT INSERT, SELECT (id, workflow, key, queue, place, losses) ON stepfast.runs TO shopkeeper;
        GRANT INSERT ON stepfast.run_tags TO shopkeeper;
        CREATE SCHEMA shop AUTHORIZATION shopkeeper;
        SET ROLE shopkeeper;
        SET search_path = shop;
        CREATE TABLE orders (id text, cents integer);
        CREATE FUNCTION jsonb_typeof(jsonb) RETURNS text LANGUAGE sql AS $$SELECT 'a stranger''s'$$;
        CREATE FUNCTION begin_checkout() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM stepfast.start('checkout', row_to_json(NEW), key => NEW.id, tags => ARRAY['shop']);
            RETURN NULL;
        END $$;
        CREATE TRIGGER begins AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION begin_checkout();
        """
    )
    try:
        await sql.execute("INSERT INTO orders VALUES ('o-1', 5), ('o-2', 6)")
        with pytest.raises(asyncpg.PostgresError, match="the input of 'checkout' does not fit"):
            await sql.execute("INSERT INTO orders VALUES ('o-3', NULL)")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await sql.execute("SELECT input FROM stepfast.runs")
        assert await sql.fetchval("SELECT count(*) FROM orders") == 2
        await app.drain()
        assert sorted([info.output for info in await app.runs()]) == ["o-1: 5", "o-2: 6"]
    finally:
        await sql.execute("RESET ROLE; DROP SCHEMA shop CASCADE; DROP OWNED BY shopkeeper; DROP ROLE shopkeeper")


async def test_a_full_queue_takes_no_more(app: Stepfast, sql: Any) -> None:
    declare(app)
    await know(app)
    await sql.execute("INSERT INTO stepfast.queues (name, max_ready) VALUES ('small', 1)")
    call = "SELECT stepfast.start('fulfil', queue => 'small', key => $1{})"
    first = await sql.fetchval(call.format(""), "a")
    with pytest.raises(asyncpg.ConfigurationLimitExceededError, match="queue 'small' is full: it takes at most 1"):
        await sql.fetchval(call.format(""), "b")
    assert await sql.fetchval(call.format(""), "a") == first
    assert await sql.fetchval(call.format(", delay => '1 hour'"), "c")
    assert await sql.fetchval("SELECT count(*) FROM stepfast.runs WHERE dag_id IS NULL") == 2


async def test_two_starts_of_one_key_wait_for_each_other_and_are_one(app: Stepfast, sql: Any, url: str) -> None:
    declare(app)
    await know(app)
    other = await asyncpg.connect(url)
    call = "SELECT stepfast.start('fulfil', key => 'k')"
    try:
        async with sql.transaction():
            first = await sql.fetchval(call)
            second = asyncio.create_task(other.fetchval(call))
            await eventually(lambda: sql.fetchval(f"SELECT count(*) {BLOCKED}"))
        assert await second == first
    finally:
        await other.close()
    assert await sql.fetchval("SELECT count(*) FROM stepfast.runs") == 6


async def test_callbacks_are_ended_by_sql(make_app: MakeApp, sql: Any) -> None:
    app, tokens = make_app(settings=QUICK), list[str]()

    @app.workflow(max_attempts=1)
    async def pay(ctx: Context, timeout: float) -> Any:
        callback = await ctx.callback("payment", type=Order, timeout=timeout, heartbeat=3600)
        await ctx.step("hand out", lambda: tokens.append(callback.token))
        return (await callback.result()).cents

    async def started(timeout: float = 3600) -> tuple[Any, str]:
        tokens.clear()
        run = await app.start(pay, timeout)
        await eventually(lambda: tokens)
        return run, tokens[0]

    async def refused(state: str, said: str, call: str, *given: Any) -> None:
        with pytest.raises(asyncpg.PostgresError, match=said) as error:
            await sql.execute(f"SELECT stepfast.{call}", *given)
        assert error.value.sqlstate == state

    value = '{"id": "o-1", "cents": 5}'
    async with app.worker():
        run, token = await started()
        await refused("22023", r"does not fit .*Expected integer, got string - at \$\.cents", "complete($1, $2)",
                      token, '{"id": "a", "cents": "x"}')  # fmt: skip
        for wrong in (token.upper(), "0" * 32, None):
            await refused("P0002", "no callback has this token", "beat($1)", wrong)
        await sql.execute("SELECT stepfast.beat($1)", token)
        for same in (value, '{"cents": 5, "id": "o-1"}'):
            await sql.execute("SELECT stepfast.complete($1, $2, notify => true)", token, same)
        assert await run.result(timeout=PATIENCE) == 5
        await sql.execute("SELECT stepfast.complete($1, $2)", token, value)
        await app.complete(token, {"id": "o-1", "cents": 5})
        for other in ("complete($1, '1')", "fail($1, 'no')", "beat($1)"):
            await refused("55000", "has been completed already", other, token)
        run, token = await started()
        await refused("22023", "a text that says why", "fail($1, NULL)", token)
        for _ in range(2):
            await sql.execute("SELECT stepfast.fail($1, 'declined')", token)
        await app.fail(token, "declined")
        with pytest.raises(RunFailed, match="callback 'payment' failed: declined"):
            await run.result(timeout=PATIENCE)
        await refused("55000", "has failed", "fail($1, 'other')", token)
        # its time is up while the transaction of the caller is open: what that commits was in time
        run, token = await started(timeout=0.3)
        async with sql.transaction():
            await sql.execute("SELECT stepfast.complete($1, $2)", token, value)
            repeated = asyncio.create_task(app.complete(token, {"id": "o-1", "cents": 5}))
            await asyncio.sleep(0.6)
            assert await run.status() not in ("failed", "completed") and not repeated.done()
        assert await run.result(timeout=PATIENCE) == 5
        await repeated
        # and if it does not commit, it was never there
        run, token = await started(timeout=0.3)
        transaction = sql.transaction()
        await transaction.start()
        await sql.execute("SELECT stepfast.complete($1, $2)", token, value)
        await transaction.rollback()
        with pytest.raises(RunFailed, match="was not completed within"):
            await run.result(timeout=PATIENCE)
        await refused("55000", "has timed out", "complete($1, $2)", token, value)


async def test_events_are_published_by_sql(make_app: MakeApp, sql: Any) -> None:
    """The same name and id is the same event, whichever side publishes it, and the same row."""
    app = make_app(settings=QUICK)

    @app.workflow
    async def hears(ctx: Context) -> list[Any]:
        return [(await ctx.wait_event("paid é", key="k")).data for _ in range(2)]

    run = await app.start(hears)
    async with app.worker():
        for name in ("e/1", "e/1", "e/2"):
            publish = "SELECT stepfast.publish('paid é', $1, key => 'k', id => $2, notify => true)"
            assert await sql.fetchval(publish, json.dumps({"id": name}), name) == name
        await app.publish("paid é", "again", key="k", id="e/1")
        assert await run.result(timeout=PATIENCE) == [{"id": "e/1"}, {"id": "e/2"}]
    assert await sql.fetchval("SELECT stepfast.publish('other')") != ""
    assert [event.id for event in await app.events(name="paid é")] == ["e/2", "e/1"]
    for call, said in (("publish('a,b')", "have no comma"), ("publish('a', key => '')", "must not be empty")):
        with pytest.raises(asyncpg.InvalidParameterValueError, match=said):
            await sql.execute(f"SELECT stepfast.{call}")
