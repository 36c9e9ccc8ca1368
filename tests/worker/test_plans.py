"""The plan of every hot statement on a full table, on the newest Postgres and on the oldest.

The plans are generic ones: what the server uses for a prepared statement, whatever its arguments.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from stepfast.model.urls import parse_url
from stepfast.settings import Settings
from stepfast.store.postgres import PostgresStore
from stepfast.store.postgres.connections import Connector
from tests.support.postgres import PostgresServer

FINISHED, READY, SLEEPING, RUNNING = 36_000, 5_000, 5_000, 300
DAGS, STEPS, WIDE = 500, 6, 2_000
UNDELIVERED = 3_000
STARTS = 10_000
SCHEDULES = 5_000
REMOTE = 20_000
QUEUES, LIMITED, STARTS = 300, 20_000, 5_000
KEPT = 20_000
WORKER = "00000000-0000-7000-8000-000000000001"

FILL = [
    f"""INSERT INTO stepfast.schedules (name, workflow, every_ms, tz, input, format, options, missed, overlap,
                                        jitter_ms, declared, paused, next_at, due_at, woken_at, created_at)
        SELECT 's' || n, 'w1', 1000, 'UTC', 'null', 1, '{{}}', 'latest', 'allow', 0, n % 2 = 0, false, 4e12 + n,
               4e12 + n, 0, 0
        FROM generate_series(1, {SCHEDULES}) n""",
    # queues: some paused, some limited, one of them with a long backlog of few keys
    f"""INSERT INTO stepfast.queues (name, paused, limited) SELECT 'quiet' || n, n % 2 = 0, n % 3 = 0
        FROM generate_series(1, {QUEUES}) n""",
    "INSERT INTO stepfast.queues (name, limited) VALUES ('mail', true)",
    f"""INSERT INTO stepfast.queue_starts (queue, key, at, number)
        SELECT 'mail', CASE WHEN n % 2 = 0 THEN '' ELSE 'k' || n % 50 END, n, 1 FROM generate_series(1, {STARTS}) n""",
    f"""INSERT INTO stepfast.runs (seed, id, workflow, version, queue, status, place, format, input, created_at,
                                   concurrency_key, attempt, counted_attempt)
        SELECT '', md5('l' || n)::uuid, 'mail', 'v', 'mail', 'queued', n, 1, '{{}}', n, 'k' || n % 50, n % 2,
               CASE WHEN n % 100 = 0 THEN 0 END
        FROM generate_series(1, {LIMITED}) n""",
    f"""INSERT INTO stepfast.runs (seed, id, workflow, version, queue, status, worker, claim, token, attempt, format,
                                   input, created_at, started_at, concurrency_key, counted_attempt)
        SELECT '', md5('h' || n)::uuid, 'mail', 'v', 'mail', 'running', '{WORKER}', 1, n / 10, 1, 1, '{{}}', n, n,
               'k' || n % 50, 1
        FROM generate_series(1, 100) n""",
    # finished, each with two steps
    f"""INSERT INTO stepfast.runs (seed, id, workflow, version, queue, status, claim, attempt, format, input, output,
                                   key, created_at, started_at, completed_at)
        SELECT '', md5('f' || n)::uuid, 'w' || n % 10, 'v', 'q' || n % 10,
               CASE WHEN n % 50 = 0 THEN 'failed' ELSE 'completed' END, 1, 1, 1, '{{}}', '1',
               CASE WHEN n % 5 = 0 THEN 'k' || n END, n, n, n
        FROM generate_series(1, {FINISHED}) n""",
    """INSERT INTO stepfast.steps (run_id, branch, position, seq, claim, name, kind, status, attempts, output, format,
                                   started_at, completed_at)
       SELECT id, '', p, p, 1, 'step', 'step', 'completed', 1, '1', 1, 1, 2
       FROM stepfast.runs, generate_series(0, 1) p WHERE status IN ('completed', 'failed')""",
    """INSERT INTO stepfast.tries (run_id, branch, position, attempt, number, claim, name, error, format,
                                   started_at, completed_at)
       SELECT id, '', 0, 1, 1, 1, 'step', '{}', 1, 1, 2 FROM stepfast.runs WHERE status IN ('completed', 'failed')""",
    """INSERT INTO stepfast.claims (run_id, claim, worker)
       SELECT id, 1, id FROM stepfast.runs WHERE status IN ('completed', 'failed')""",
    """INSERT INTO stepfast.past_workers (id, host, pid, left_at)
       SELECT md5('p' || n)::uuid, 'there', n, n FROM generate_series(1, 5000) n""",
    """INSERT INTO stepfast.progress (run_id, branch, position, name, format, started_at, updated_at)
       SELECT id, '', 0, 'step', 1, 1, 2 FROM stepfast.runs WHERE status IN ('completed', 'failed')""",
    """INSERT INTO stepfast.run_tags (tag, run_id) SELECT 'tag', id FROM stepfast.runs""",
    """INSERT INTO stepfast.run_attributes (run_id, name, value) SELECT id, 'vip', 'btrue' FROM stepfast.runs""",
    f"""INSERT INTO stepfast.runs (seed, id, workflow, version, queue, status, place, format, input, created_at)
        SELECT '', md5('r' || n)::uuid, 'w' || n % 10, 'v', 'q' || n % 10, 'queued', n, 1, '{{}}', n
        FROM generate_series(1, {READY}) n""",
    f"""INSERT INTO stepfast.runs (seed, id, workflow, version, queue, status, visible_at, format, input, created_at)
        SELECT '', md5('s' || n)::uuid, 'w' || n % 10, 'v', 'q' || n % 10, 'waiting', 4e12 + n, 1, '{{}}', n
        FROM generate_series(1, {SLEEPING}) n""",
    f"""INSERT INTO stepfast.runs (seed, id, workflow, version, queue, status, worker, claim, token, attempt, format,
                                   input, created_at, started_at)
        SELECT '', md5('x' || n)::uuid, 'w' || n % 10, 'v', 'q' || n % 10, 'running', '{WORKER}', 1, n / 10, 1, 1,
               '{{}}', n, n
        FROM generate_series(1, {RUNNING}) n""",
    """INSERT INTO stepfast.steps (run_id, branch, position, seq, claim, name, kind, status, attempts, output, format,
                                   started_at, completed_at)
       SELECT id, '', p, p, 1, 'step', 'step', 'completed', 1, '1', 1, 1, 2
       FROM stepfast.runs, generate_series(0, 9) p WHERE status = 'running'""",
    # mail: much that was delivered and not taken, some that was not delivered, most of it for one run
    """INSERT INTO stepfast.mailbox (run_id, id, kind, name, format, sent_at, delivered)
       SELECT id, md5('m' || id || n)::uuid, 'signal', 'go', 1, created_at, true
       FROM stepfast.runs, generate_series(1, 2) n WHERE status IN ('completed', 'waiting')""",
    f"""INSERT INTO stepfast.mailbox (run_id, id, kind, name, format, sent_at, delivered)
        SELECT md5('s' || CASE WHEN n % 3 = 0 THEN n ELSE 1 END)::uuid, md5('u' || n)::uuid, 'child', 'completed', 1, n,
               false
        FROM generate_series(1, {UNDELIVERED}) n""",
    """INSERT INTO stepfast.run_values (run_id, key, value, format, updated_at)
       SELECT id, 'progress', '1', 1, 1 FROM stepfast.runs WHERE status IN ('completed', 'waiting')""",
    """INSERT INTO stepfast.streams (run_id, name, items, size)
       SELECT id, 'tokens', 2, 2 FROM stepfast.runs WHERE status IN ('completed', 'waiting')""",
    """INSERT INTO stepfast.stream_sources (run_id, name, source, attempt, items)
       SELECT id, 'tokens', '', 1, 2 FROM stepfast.runs WHERE status IN ('completed', 'waiting')""",
    """INSERT INTO stepfast.stream_items (run_id, name, number, attempt, restarted, value, format, sent_at)
       SELECT id, 'tokens', n, 1, false, '1', 1, 1
       FROM stepfast.runs, generate_series(1, 2) n WHERE status IN ('completed', 'waiting')""",
    """INSERT INTO stepfast.questions (id, run_id, name, state, format, asked_at)
       SELECT id, run_id, '~question/go', 'open', 1, 1 FROM stepfast.mailbox WHERE kind = 'signal'""",
    """INSERT INTO stepfast.callbacks (id, run_id, name, state, format, attempt, opened_at, beat_at)
       SELECT id, run_id, 'go', 'open', 1, 1, 1, 1 FROM stepfast.mailbox WHERE kind = 'signal'""",
    """INSERT INTO stepfast.events (id, number, made, name, key, event_id, data, format, published_at)
       SELECT md5('e' || n)::uuid, n * 1000, md5('e' || n)::uuid, 'paid', (n % 5000)::text, n::text, '1', 1, n
       FROM generate_series(1, 20000) n""",
    """INSERT INTO stepfast.event_waits (run_id, name, key, since, passed, armed)
       SELECT id, 'paid', (row_number() OVER () % 5000)::text, 1, 0, true
       FROM stepfast.runs WHERE status = 'waiting'""",
    """INSERT INTO stepfast.event_starts (event_id, workflow, name, tries, due_at)
       SELECT id, 'order', 'paid', 0, CASE WHEN number % 20000 = 0 THEN 1 END FROM stepfast.events""",
    """INSERT INTO stepfast.event_takes (run_id, event_id, waited)
       SELECT id, md5('e' || (1 + row_number() OVER () % 20000))::uuid, ''
       FROM stepfast.runs WHERE status IN ('completed', 'waiting')""",
    f"""UPDATE stepfast.runs SET parent_id = md5('s1')::uuid, reply_to = id
        WHERE id IN (SELECT md5('s' || n)::uuid FROM generate_series(2, {SLEEPING // 2}) n)""",
    # dag runs: many with a few steps, done or blocked, and one (of the number 0) with many that are done
    f"""INSERT INTO stepfast.runs (seed, id, workflow, version, queue, status, graph, pending, format, input,
                                   created_at)
        SELECT '', md5('d' || n)::uuid, 'dag', 'v', 'dags', 'running', 'g', {STEPS} - 2, 1, '{{}}', n
        FROM generate_series(0, {DAGS}) n""",
    f"""INSERT INTO stepfast.runs (seed, id, workflow, version, queue, status, waiting_for, dag_id, dag_step, ordinal,
                                   graph, pending, format, input, output, created_at, completed_at)
        SELECT '', md5('d' || d || 's' || n)::uuid, 'dag/s' || n, 'v', 'dags',
               CASE WHEN n <= 2 OR d = 0 THEN 'completed' ELSE 'waiting' END,
               CASE WHEN n > 2 AND d > 0 THEN 'steps' END,
               md5('d' || d)::uuid, 's' || n, n, 'g', 1, 1, 'null', '1', n, n
        FROM generate_series(0, {DAGS}) d, generate_series(1, CASE WHEN d = 0 THEN {WIDE} ELSE {STEPS} END) n""",
    # remote steps: most of them settled, the others out, all of the same transport
    f"""INSERT INTO stepfast.remote_steps (run_id, seq, id, branch, position, claim, run_attempt, name, grp, carrier,
                                           state, attempt, retries, backoff, dispatched_at, due_at, resent)
        SELECT md5('f' || n)::uuid, 0, md5('o' || n)::uuid, '', 0, 1, 1, 'extract', 'extract', 'durable',
               CASE WHEN n % 20 = 0 THEN 'sent' ELSE 'settled' END, 1, 0, '{{}}', n,
               CASE WHEN n % 20 = 0 THEN 4e12 + n END, 0
        FROM generate_series(1, {REMOTE}) n""",
    # what was started lately from queues with a limit in a time, by key
    f"""INSERT INTO stepfast.queue_starts (queue, key, at, number)
        SELECT 'q' || n % 200, 'k' || n % 100, n, 1 FROM generate_series(1, {STARTS}) n""",
    """INSERT INTO stepfast.audit (id, at, who, what, which, origin, outcome)
       SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, n, 'ada', 'run.cancel',
              'run ' || n % 1000, '::1', 'done'
       FROM generate_series(1, 5000) n""",
    # what agents keep: checkpoints of graphs, and the items of sessions
    f"""INSERT INTO stepfast.checkpoints (id, scope, thread, ns, checkpoint, run, versions, value, format, created_at)
        SELECT md5('c' || n)::uuid, md5('t' || n % 10000)::uuid, 't' || n % 10000, '', lpad(n::text, 9, '0'),
               md5('f' || n % 10000), '{{}}', '1', 1, n
        FROM generate_series(1, {KEPT}) n""",
    f"""INSERT INTO stepfast.checkpoint_values (id, thread, ns, channel, version, value, format)
        SELECT md5('v' || n)::uuid, 't' || n % 10000, '', 'c', '1', '1', 1 FROM generate_series(1, {KEPT}) n""",
    f"""INSERT INTO stepfast.checkpoint_writes (id, owner, thread, task, path, number, channel, value, format)
        SELECT md5('w' || n)::uuid, md5('c' || n)::uuid, 't' || n % 10000, 't', '', 0, 'c', '1', 1
        FROM generate_series(1, {KEPT}) n""",
    f"""INSERT INTO stepfast.session_items (session, number, batch, value, format, added_at)
        SELECT 's' || n % 10000, n / 10000, md5('b' || n)::uuid, '1', 1, n FROM generate_series(1, {KEPT}) n""",
    f"""INSERT INTO stepfast.workers (id, host, pid, workflows, concurrency, lease_ms, state,
                                      started_at, beat_at, expires_at)
        VALUES ('{WORKER}', 'here', 1, '{{}}', 100, 30000, 'live', 1, 1, 4000000000000)""",
    "ANALYZE",
]

SMALL = {
    "workers", "definitions", "meta", "queues", "schedules", "event_order", "event_subscriptions", "turns",
    "attribute_names",
}  # fmt: skip
"""Tables with a row per process, per workflow, per queue or per schedule: these may be read from end to end."""
LIFELONG = {"definitions", "workers", "schedules", "queues", "glance_sizes"}
"""Of these, what people ask again and again as well: the tables have a row per workflow, process or queue."""
NOT_HOT = {
    "definitions", "put_definition", "register", "unregister", "worker_state", "workers", "runs", "runs_tagged",
    "meta", "meta_exists", "put_meta", "lock", "schema_exists", "create_schema", "drop_schema", "script_head",
    "script_tail", "server_facts", "notify", "identity", "oldest_runs", "oldest_runs_tagged", "schedules",
    "queues", "queue_depths", "glance_sizes", "count_runs", "count_runs_tagged",
    "checkpoints_of_all", "old_sessions",
}  # fmt: skip
"""What is asked once per process, or by people. A page of runs is a walk along the primary key as long as its filters
let most rows through; where they do not, how much of the table it reads is a matter of its arguments, which a generic
plan does not know."""

BY_ID = (
    "flush", "flush_telling", "send_usual",
    "fence", "still_ours", "change", "lock_runs", "lock_free", "lock_own", "recorded", "still_undelivered",
    "delivered", "mail", "take_mail", "tell_parents", "traces", "which_exist", "dag_inputs",
)  # fmt: skip
"""Statements that are given the ids of what they are about, and find it by them alone."""
REMOVING = (
    "ended", "lock_ended", "lock_links", "join_links", "steps_of_dags", "ended_kin", "weigh", "remove_steps",
    "remove_tries", "remove_claims", "remove_progress", "remove_mailbox", "remove_run_values", "remove_run_tags",
    "remove_run_attributes", "remove_runs", "remove_remote_steps",
)  # fmt: skip
"""The same, for runs that have ended."""
BY_DAG = {
    "lock_dependents": "runs_dag_step", "lock_open_steps": "runs_dag_step", "dag_steps": "runs_dag_step",
    "step_named": "runs_dag_step", "begun_dags": "runs_dag_step",
    "lock_steps": "runs_dag_step", "dag_outputs": "runs_outputs",
}  # fmt: skip
"""Statements that are given dag runs and find steps of theirs, and by which index."""


@pytest.fixture(scope="module", params=["postgres", pytest.param("postgres12", marks=pytest.mark.thorough)])
def full_database(request: pytest.FixtureRequest) -> Iterator[str]:
    """A database with many runs in every state, on each server in turn."""
    server: PostgresServer = request.getfixturevalue(f"{request.param}_server")
    name = f"plans_{request.param}"
    server.drop_database(name)
    url = server.create_database(name)
    store = PostgresStore(parse_url(url), "stepfast", Settings())
    script = store.migration_sql()
    server.execute(script, name)
    for statement in FILL:
        server.execute(statement, name)
    yield url
    server.drop_database(name)


@pytest.fixture
async def connection(full_database: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(full_database)
    await connection.execute("SET plan_cache_mode = force_generic_plan; SET jit = off")
    yield connection
    await connection.close()


@pytest.fixture
def statements(full_database: str) -> dict[str, str]:
    return PostgresStore(parse_url(full_database), "stepfast", Settings())._sql


async def plan_of(connection: Any, sql: str) -> dict[str, Any]:
    """The generic plan."""
    prepared = await connection.prepare(sql)
    count = len(prepared.get_parameters())
    await connection.execute(f"PREPARE hot AS {sql}")
    try:
        arguments = f"({', '.join(['NULL'] * count)})" if count else ""
        text = await connection.fetchval(f"EXPLAIN (FORMAT JSON, VERBOSE) EXECUTE hot{arguments}")
        return dict(json.loads(text)[0]["Plan"])
    finally:
        await connection.execute("DEALLOCATE hot")


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def problems(plan: dict[str, Any]) -> Iterator[str]:
    for node in nodes(plan):
        if node["Node Type"] == "Seq Scan" and node["Relation Name"] not in SMALL:
            yield f"reads all of {node['Relation Name']}"
        if node["Node Type"] == "Nested Loop":
            outer, inner = node["Plans"][:2]
            inner = inner["Plans"][0] if inner["Node Type"] == "Materialize" else inner
            if (
                outer["Plan Rows"] > 1
                and inner["Plan Rows"] > 1
                and inner["Node Type"] in ("CTE Scan", "Function Scan")
                and "$" in inner.get("Function Call", "$")  # a list that is given, and not one that the row has
            ):
                yield f"walks {inner.get('CTE Name', 'an array')} again for each row"


async def test_a_list_that_is_walked_for_each_row_of_another_is_noticed(connection: Any) -> None:
    """One that is given; the elements that a row has itself are another matter."""
    given = "SELECT FROM unnest($1::int[]) AS a(x), unnest($2::int[]) AS b(y) WHERE a.x < b.y"
    own = "SELECT FROM unnest($1::json[]) AS a(x), json_array_elements_text(a.x) AS b(y)"
    assert list(problems(await plan_of(connection, given))) == ["walks an array again for each row"]
    assert list(problems(await plan_of(connection, own))) == []


async def test_no_hot_statement_reads_a_whole_table(connection: Any, statements: dict[str, str]) -> None:
    """Nor walks one list for each row of another."""
    found = {}
    for name in sorted(statements.keys() - NOT_HOT):
        plan = await plan_of(connection, statements[name])
        if bad := sorted(set(problems(plan))):
            found[name] = bad
    assert found == {}


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("gauge", "runs_counted"),
        ("key_gauge", "runs_counted"),
        ("ready_limited", "runs_ready"),
        ("ready_unkeyed", "runs_ready"),
        ("ready_resuming", "runs_resuming"),
        ("next_keys", "runs_keyed"),
        ("ready_of_keys", "runs_keyed"),
    ],
)
async def test_a_claim_from_a_limited_queue_finds_runs_by_its_indexes_alone(
    full_database: str, statements: dict[str, str], name: str, index: str
) -> None:
    """Rules 31 and 32: over the connection that claims, nothing is sorted or read but what may be taken."""
    connection = await Connector(parse_url(full_database), Settings()).connect()
    try:
        found = list(nodes(await plan_of(connection, statements[name])))
    finally:
        await connection.close()
    assert {node["Index Name"] for node in found if node.get("Relation Name") == "runs"} == {index}
    inner = [node for node in found if node["Node Type"] in ("Sort", "Incremental Sort") and name != "ready_limited"]
    assert not [node for node in inner if "runs" in json.dumps(node)], inner


async def test_the_flush_looks_the_fence_up_in_a_hash(connection: Any, statements: dict[str, str]) -> None:
    """Rule 8: a thousand records against a hundred rows of the fence, not a hundred thousand comparisons."""
    for name in ("flush", "flush_telling"):
        text = json.dumps(await plan_of(connection, statements[name]))
        assert text.count("hashed SubPlan") >= 2, text


async def test_a_claim_stops_when_it_has_enough(connection: Any, statements: dict[str, str]) -> None:
    """Rule 31: it reads the index in order; nothing is sorted that a limit then throws away."""
    plan = await plan_of(connection, statements["claim_lane"])
    assert not [node for node in nodes(plan) if node["Node Type"] == "Sort"]
    assert "runs_ready" in [node.get("Index Name") for node in nodes(plan)]


# -- how much is looked at -------------------------------------------------------------------------------------------


async def looked_at(connection: Any, sql: str, *arguments: Any) -> tuple[int, int]:
    """(rows of ``runs``, pages) that a statement looks at by its generic plan, without leaving a trace."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute(f"PREPARE hot AS {sql}")
        words = ", ".join(map(literal, arguments))
        text = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE hot({words})")
        await connection.execute("DEALLOCATE hot")
    finally:
        await transaction.rollback()
    plan = json.loads(text)[0]["Plan"]
    rows = sum(
        (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
        for node in nodes(plan)
        if node.get("Relation Name") == "runs" and "Scan" in node["Node Type"]
    )
    return int(rows), plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


def literal(value: Any) -> str:
    if isinstance(value, list):
        return f"ARRAY[{', '.join(map(literal, value))}]"
    if value is None:
        return "NULL"
    if isinstance(value, UUID):
        return f"'{value}'::uuid"
    return str(value) if isinstance(value, (bool, int)) else f"'{value}'"


@pytest.fixture
async def many_queues(connection: Any) -> AsyncIterator[list[str]]:
    """Two hundred queues with a few runs of a workflow that a worker knows."""
    queues = [f"many {n:03}" for n in range(200)]
    await connection.execute(
        """INSERT INTO stepfast.runs (seed, id, workflow, version, queue, status, place, format, input, created_at)
           SELECT '', md5('many' || q || n)::uuid, 'known', 'v', q, 'queued', n, 1, '{}', n
           FROM unnest($1::text[]) q, generate_series(1, 5) n""", queues,
    )  # fmt: skip
    await connection.execute("ANALYZE stepfast.runs")
    yield queues
    await connection.execute("DELETE FROM stepfast.runs WHERE workflow IN ('known', 'unknown')")
    await connection.execute("VACUUM ANALYZE stepfast.runs")


async def test_a_claim_does_not_see_what_nobody_here_knows(
    connection: Any, statements: dict[str, str], many_queues: list[str]
) -> None:
    """Rule 32: 200 queues, and 100 000 runs of a workflow that this worker does not know in the same queues. The claim
    looks at no more than before; the question which lanes there are, at one row more per queue."""
    lanes = (
        many_queues,
        ["known"] * 200,
        [0] * 200,
        [0] * 200,
        ["v"] * 200,
        10,
        1_000_000,
    )
    claim = (statements["claim_lanes"], WORKER, 1, *lanes)
    tick = (statements["tick"], True, ["known"], None, ["declared"])
    claim_before, tick_before = await looked_at(connection, *claim), await looked_at(connection, *tick)
    await connection.execute(
        """INSERT INTO stepfast.runs (seed, id, workflow, version, queue, status, place, format, input, created_at)
           SELECT '', md5('unknown' || q || n)::uuid, 'unknown', 'v', q, 'queued', n, 1, '{}', n
           FROM unnest($1::text[]) q, generate_series(1, 500) n""", many_queues,
    )  # fmt: skip
    await connection.execute("ANALYZE stepfast.runs")
    claim_after, tick_after = await looked_at(connection, *claim), await looked_at(connection, *tick)
    assert claim_after[0] <= claim_before[0] + 10
    assert claim_after[1] <= claim_before[1] * 2
    assert tick_after[0] <= tick_before[0] * 2 + 10
    assert tick_after[1] <= tick_before[1] * 4
    await connection.execute("DELETE FROM stepfast.runs WHERE workflow = 'unknown'")


async def test_a_claim_does_not_see_sleepers(connection: Any, statements: dict[str, str]) -> None:
    """Rule 31: nor finished runs; of those ready, as many as it takes."""
    rows, _ = await looked_at(connection, statements["claim_lane"], WORKER, 1, "v", "q1", "w1", 0, 0, 10, 1_000_000)
    assert rows <= 30


async def test_making_sleepers_ready_looks_only_at_those_that_are_due(
    connection: Any, statements: dict[str, str]
) -> None:
    """Rule 31: however many others sleep."""
    rows, _ = await looked_at(connection, statements["lock_due"], 1000)
    assert rows <= 10


async def test_an_idle_tick_is_cheap_on_a_full_table(connection: Any, statements: dict[str, str]) -> None:
    """Rule 39: a row per lane and a few more, whatever else there is."""
    rows, pages = await looked_at(connection, statements["tick"], True, ["w1"], None, ["declared"])
    assert rows <= 50
    assert pages <= 200


async def test_a_list_of_running_runs_looks_at_those_alone(connection: Any, statements: dict[str, str]) -> None:
    """Not at all runs there are, from the newest back."""
    rows, _ = await looked_at(
        connection, statements["runs_running"], *(None, "running", None, None, None, None, 50, None, None)
    )
    assert rows <= 3 * (RUNNING + DAGS) + 10


async def test_looking_for_old_runs_goes_along_the_ids_and_no_further_than_it_says(
    connection: Any, statements: dict[str, str]
) -> None:
    """However many runs are kept."""
    plan = await plan_of(connection, statements["ended_page"])
    assert "runs_pkey" in [node.get("Index Name") for node in nodes(plan)]
    rows, _ = await looked_at(connection, statements["ended_page"], UUID(int=0), 500, 1, 1, None, 200)
    assert rows <= 500 + DAGS * STEPS + WIDE  # the steps of dag runs among them are passed over


async def test_a_census_looks_at_no_more_than_it_counts(connection: Any, statements: dict[str, str]) -> None:
    """Rule 58: however much is ready or waits, and whatever has ended: by the indexes, each count up to its bound."""
    rows, pages = await looked_at(connection, statements["census"], 50)
    assert rows <= 4 * 50 + 10
    assert pages <= 500
    lanes = 10
    rows, pages = await looked_at(connection, statements["census_queues"], 50)
    assert rows <= lanes * (50 + 2) + 50
    assert pages <= 2000


async def test_statistics_look_at_no_more_than_they_are_told_to(connection: Any, statements: dict[str, str]) -> None:
    """Rule 58: the newest runs along the ids, what is unfinished and what failed by its index; never the table."""
    for name, arguments in {
        "stats_ended": (100, 10**15),
        "stats_open": (100,),
        "stats_failures": (100, 10**15),
        "stats_steps": (100, 10**15, 1000),
    }.items():
        rows, pages = await looked_at(connection, statements[name], *arguments)
        assert rows <= 9 * 100, name
        assert pages <= 3000, name
    plan = await plan_of(connection, statements["stats_steps"])
    sorted_by = [node["Sort Key"] for node in nodes(plan) if node["Node Type"] == "Sort"]
    assert sorted_by in ([], [["steps.branch", 'steps."position"']]), "records of a run, if anything, not those of all"


async def test_finding_mail_to_be_delivered_stops_when_it_has_enough(
    connection: Any, statements: dict[str, str]
) -> None:
    """Neither the delivered nor the rest of the undelivered is looked at, and nothing is sorted."""
    plan = await plan_of(connection, statements["undelivered"])
    assert not [node for node in nodes(plan) if node["Node Type"] == "Sort"]
    assert "mailbox_undelivered" in [node.get("Index Name") for node in nodes(plan)]
    rows, _ = await looked_at(connection, statements["undelivered"], 100)
    assert rows <= 100


async def test_delivering_looks_only_at_the_mail_in_hand(connection: Any, statements: dict[str, str]) -> None:
    """However much lies in the box of the same run."""
    oldest = "SELECT run_id, id FROM stepfast.mailbox WHERE NOT delivered ORDER BY sent_at LIMIT 100"
    found = await connection.fetch(oldest)
    mail = [row["run_id"] for row in found], [row["id"] for row in found]
    rows, pages = await looked_at(connection, statements["still_undelivered"], *mail)
    assert rows <= 400
    assert pages <= 5000


async def test_mail_that_is_left_with_a_chain_is_found_by_its_runs(connection: Any, statements: dict[str, str]) -> None:
    """However much lies in other boxes, and whatever has ended."""
    first, last = [await connection.fetchval(f"SELECT md5('s{number}')::uuid") for number in (3, 6)]
    transaction = connection.transaction()
    await transaction.start()
    try:
        went_on = "UPDATE stepfast.runs SET reason = 'continued', output = $2 WHERE id = $1"
        await connection.execute(went_on, first, f'"{last}"')
        assert len(await connection.fetch(statements["undelivered_of"], first)) == 1
        for name, argument in {"undelivered_of": first, "continuations": [first]}.items():
            rows, pages = await looked_at(connection, statements[name], argument)
            assert rows <= 10, name
            assert pages <= 40, name
    finally:
        await transaction.rollback()


async def test_settling_a_step_looks_only_at_those_that_wait_for_it(
    connection: Any, statements: dict[str, str]
) -> None:
    """Neither at the other steps of the dag run nor at those of others."""
    dags = [await connection.fetchval(f"SELECT md5('d{n}')::uuid") for n in range(1, 101)]
    rows, pages = await looked_at(connection, statements["lock_dependents"], dags, ["s3"] * 100)
    assert rows == 200
    assert pages <= 1000  # found, then locked


async def test_a_failing_dag_run_looks_at_its_own_steps_only(connection: Any, statements: dict[str, str]) -> None:
    dags = [await connection.fetchval("SELECT md5('d7')::uuid")]
    rows, _ = await looked_at(connection, statements["lock_open_steps"], dags)
    assert rows <= STEPS + STEPS


async def test_how_a_dag_run_is_shown_is_read_off_its_own_steps(connection: Any, statements: dict[str, str]) -> None:
    """However many other runs sleep, and however many have ended."""
    dags = [await connection.fetchval("SELECT md5('d7')::uuid")]
    rows, pages = await looked_at(connection, statements["dags_shown"], dags)
    assert rows <= 1 + 6 * STEPS  # six looks at them, and the run
    assert pages <= 100


async def test_outputs_are_read_on_from_where_one_left_off(connection: Any, statements: dict[str, str]) -> None:
    """However many steps of the dag run have completed before: a chain of a thousand is not read a thousand times."""
    wide = [await connection.fetchval("SELECT md5('d0')::uuid")]
    rows, pages = await looked_at(connection, statements["dag_outputs"], wide, [WIDE - 5])
    assert rows == 6
    assert pages <= 40


# -- those who watch -------------------------------------------------------------------------------------------------

FAR = 200
NO_FILTER = (None, None, None, None, None, None, 10, None, None, FAR, None)


def filtered(**given: Any) -> tuple[Any, ...]:
    names = ("workflow", "status", "queue", "before", "reason", "key", "limit", "since", "older", "far", "tag")
    return tuple(given.get(name, usual) for name, usual in zip(names, NO_FILTER, strict=True))


PARENT = UUID("00000000-0000-7000-8000-000000000001")


def found_with(**given: Any) -> tuple[Any, ...]:
    return (*filtered(**given)[:9], None, given.get("parent"), given.get("low"), given.get("high"), FAR)


LOOKS: dict[str, tuple[Any, ...]] = {
    "glance_runs": filtered(workflow="nobody has it", reason="timeout", since=1000),
    "glance_at_rest": filtered(status="failed", workflow="nobody has it"),
    "glance_tagged": filtered(tag="tag", status="nothing stands so"),
    "glance_keyed": filtered(key="k100"),
    "glance_queued": filtered(status="queued", workflow="nobody has it"),
    "glance_running": filtered(status="running", workflow="nobody has it"),
    "glance_end_runs": (None, FAR),
    "glance_end_at_rest": (None, FAR, "failed"),
    "glance_end_tagged": (None, FAR, "tag"),
    "runs_with_attributes": (*found_with(status="nothing stands so"), "vip", "btrue", 1, ["vip"], ["btrue"]),
    "runs_of_parent": found_with(parent=PARENT, status="nothing stands so"),
    "runs_between": found_with(low=PARENT, high=PARENT, status="nothing stands so"),
    "glance_end_with_attributes": (None, FAR, "vip", "btrue"),
    "glance_end_of_parent": (None, FAR, PARENT),
    "glance_end_between": (None, FAR, PARENT, PARENT),
    "glance_dags_as": ("waiting", None, 10, 20),
    "glance_id_ends": ("ffff", FAR, 10),
    "glance_depths": (FAR,),
    "stats_failures": (FAR, 10**15),
    "audit_page": (None, 50),
    "audit_of": ("a run", None, 50),
}
"""What the console asks for, narrowed by what nothing fits: the longest way."""
BESIDE = 6
"""How many times as many rows a look may touch: those that two indexes find are then read, and dag runs have steps."""


@pytest.fixture
async def two_million(connection: Any) -> AsyncIterator[Any]:
    """The planner is told that there are twenty times as many rows: two million runs."""
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute(
        """UPDATE pg_class SET reltuples = reltuples * 20 WHERE relnamespace = 'stepfast'::regnamespace
           AND reltuples > 1000 AND relname NOT LIKE 'audit%'"""
    )
    yield connection
    await transaction.rollback()


async def explained(connection: Any, sql: str, *arguments: Any) -> tuple[dict[str, Any], int, int]:
    """(plan, rows of runs, pages) of a statement."""
    await connection.execute(f"PREPARE hot AS {sql}")
    words = ", ".join(map(literal, arguments))
    text = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE hot({words})")
    await connection.execute("DEALLOCATE hot")
    plan = json.loads(text)[0]["Plan"]
    rows = sum(
        (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
        for node in nodes(plan)
        if node.get("Relation Name") == "runs" and "Scan" in node["Node Type"]
    )
    return plan, int(rows), plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
async def test_whoever_watches_looks_at_no_more_than_they_are_told(
    two_million: Any, statements: dict[str, str], mode: str
) -> None:
    """However many runs there are, whatever they are narrowed by, and whichever way the server plans."""
    await two_million.execute(f"SET LOCAL plan_cache_mode = {mode}")
    turned = {f"oldest_{name}": given for name, given in LOOKS.items() if f"oldest_{name}" in statements}
    assert len(turned) >= 9
    for name, arguments in (LOOKS | turned).items():
        plan, rows, pages = await explained(two_million, statements[name], *arguments)
        assert not sorted(set(problems(plan))), name
        assert rows <= BESIDE * FAR + 3 * (RUNNING + DAGS) * name.endswith("glance_running"), (name, rows)
        assert pages <= 6000, (name, pages)


async def test_what_is_shown_of_one_run_is_found_by_its_id(two_million: Any, statements: dict[str, str]) -> None:
    """Its children and parents, its mail, its records, whatever lies beside them."""
    [parent, child] = [await two_million.fetchval(f"SELECT md5('s{n}')::uuid") for n in (1, 2)]
    for name, arguments in {
        "glance_children": ([parent, child], 10),
        "glance_parents": (child, 10),
        "glance_mailbox": (child, 10, 1000),
        "glance_steps": (child, "", -1, 100, 1000),
        "glance_tries": (child, "", -2, 100, 1000),
        "glance_step": (child, "", 0),
        "glance_inputs": ([parent, child], "a", "b", 1000),
        "runs_named": ([parent, child],),
        "values": (parent,),
    }.items():
        plan, rows, pages = await explained(two_million, statements[name], *arguments)
        assert not sorted(set(problems(plan))), name
        assert (rows <= 30, pages <= 300) == (True, True), (name, rows, pages)


@pytest.mark.parametrize("version", ["postgres", "postgres12"])
async def test_plans_made_on_empty_tables_are_right_for_full_ones(
    version: str, request: pytest.FixtureRequest, statements: dict[str, str]
) -> None:
    """A duty keeps the plans of its first minute, when a new database has no rows: they must find runs by their ids,
    not walk through all that a worker holds, nor read tables because these are still small."""
    server: PostgresServer = request.getfixturevalue(f"{version}_server")
    name = f"empty_plans_{version}"
    server.drop_database(name)
    url = server.create_database(name)
    server.execute(PostgresStore(parse_url(url), "stepfast", Settings()).migration_sql(), name)
    connection = await Connector(parse_url(url), Settings()).connect()
    try:
        for statement in (
            *BY_ID,
            *BY_DAG,
            "start_dag_steps",
            "claim_lanes",
            "suspects",
            "lock_lost",
            "lost",
            "undelivered",
            "tick",
            "due_schedules",
        ):
            plan = await plan_of(connection, statements[statement])
            assert not sorted(set(problems(plan))), statement
        for statement in BY_ID:
            plan = await plan_of(connection, statements[statement])
            scans = {n["Index Name"] for n in nodes(plan) if "Index Name" in n} - {
                "steps_pkey",
                "tries_pkey",
                "progress_pkey",
            }
            assert scans and scans <= {"runs_pkey", "mailbox_pkey"}, statement
        for statement, index in BY_DAG.items():
            plan = await plan_of(connection, statements[statement])
            conditions = [n.get("Index Cond", "") for n in nodes(plan) if n.get("Index Name") == index]
            assert conditions and "dag_id = " in conditions[0], statement
        plan = await plan_of(connection, statements["tell_children"])
        assert [n["Index Cond"] for n in nodes(plan) if n.get("Index Name") == "runs_parent"], "walks all children"
    finally:
        await connection.close()
        server.drop_database(name)
