"""Steps in a transaction: what the function wrote and the record of it are committed together, or not (rule 29)."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any

import asyncmy
import asyncpg
import pytest
from msgspec.structs import replace

from stepfast.errors import ContextMisuse, LeaseLost
from stepfast.model.records import Claimed, StepDone, StepRecord
from tests.store.conftest import ON_POSTGRES, ON_SQLITE, only_on
from tests.store.scene import Scene, completed, joint, opened, step
from tests.support.engine import eventually
from tests.support.postgres import BLOCKED

Call = Callable[[Any], Any]


class Bank:
    """A table of the user's own, and functions that write to it as users write them for each database."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.calls = 0
        self.asked: list[str | None] = []
        """What the last transaction brought back of the wishes of operators."""

    @property
    def sqlite(self) -> bool:
        return self.scene.store.dialect == "sqlite"

    async def open(self) -> None:
        await self.scene.rows.fetch("CREATE TABLE bookings (id integer PRIMARY KEY, amount integer NOT NULL)")

    async def booked(self) -> list[int]:
        return [amount for (amount,) in await self.scene.rows.fetch("SELECT amount FROM bookings ORDER BY id")]

    def does(self, *statements: str, result: Any = "7", error: BaseException | None = None) -> Call:
        """A function that executes these: a coroutine function on a server, a plain one on SQLite."""
        runs = '"stepfast".runs' if self.scene.store.dialect == "postgres" else "stepfast_runs"
        texts = [statement.replace("[runs]", runs) for statement in statements]

        def plain(connection: sqlite3.Connection) -> Any:
            self.calls += 1
            for text in texts:
                connection.execute(text)
            if error is not None:
                raise error
            return result

        async def coroutine(connection: Any) -> Any:
            self.calls += 1
            for text in texts:
                await (connection.cursor() if self.scene.store.dialect == "mysql" else connection).execute(text)
            if error is not None:
                raise error
            return result

        return plain if self.sqlite else coroutine

    def books(self, amount: int = 5, **more: Any) -> Call:
        return self.does(booking(amount), **more)

    async def transact(
        self,
        run: Claimed,
        call: Call,
        position: int = 0,
        *,
        record: Callable[[Any], StepDone] | None = None,
        worker: str | None = None,
        timeout: float | None = 30,
    ) -> StepRecord:
        record = record or (lambda result: step(run, position, result, kind="transaction"))
        made, asked = await self.scene.store.transact(
            worker or self.scene.worker, run.id, run.claim, ("", position), call, record, timeout
        )
        self.asked.append(asked)
        return made


def booking(amount: int) -> str:
    return f"INSERT INTO bookings (id, amount) SELECT COALESCE(max(id), 0) + 1, {amount} FROM bookings"


@pytest.fixture
async def bank(scene: Scene) -> Bank:
    bank = Bank(scene)
    await bank.open()
    return bank


async def nothing_happened(bank: Bank, run: Claimed) -> None:
    assert await bank.booked() == []
    assert await bank.scene.store.steps(run.id) == []


# -- together -----------------------------------------------------------------------------------------------


async def test_the_record_and_the_rows_are_committed_together(bank: Bank) -> None:
    run = await bank.scene.running()
    record = await bank.transact(run, bank.books(5, result='{"a":1}'), position=2)
    assert await bank.booked() == [5]
    assert [replace(record, claim=run.claim)] == await bank.scene.store.steps(run.id)
    assert (record.position, record.kind, record.status, record.output) == (2, "transaction", "completed", '{"a":1}')


async def test_the_record_is_made_of_what_the_function_returned(bank: Bank) -> None:
    """An object, not only text: it is for the engine to encode."""
    run = await bank.scene.running()
    token = object()
    seen: list[Any] = []

    def record(result: Any) -> StepDone:
        seen.append(result)
        return step(run, 0, '"encoded"', undo="refund", attempts=2, format=2)

    found = await bank.transact(run, bank.books(result=token), record=record)
    assert seen == [token]
    assert (found.output, found.undo, found.attempts, found.format) == ('"encoded"', "refund", 2, 2)


async def test_the_function_reads_what_it_wrote(bank: Bank) -> None:
    run = await bank.scene.running()
    await bank.transact(run, bank.does(booking(5), booking(6), "DELETE FROM bookings WHERE amount = 5"))
    assert await bank.booked() == [6]


async def test_a_plain_function_will_do_on_every_database(bank: Bank) -> None:
    run = await bank.scene.running()
    assert (await bank.transact(run, lambda connection: "3")).output == "3"


async def test_the_record_is_replayed_by_the_next_claim(bank: Bank) -> None:
    run = await bank.scene.running()
    await bank.transact(run, bank.books(result='"booked"'))
    again = await bank.scene.again(run)
    assert [(record.kind, record.output) for record in again.records] == [("transaction", '"booked"')]


async def test_the_run_goes_on_after_it_as_after_any_step(bank: Bank) -> None:
    run = await bank.scene.running()
    await bank.scene.flush(step(run, 0))
    await bank.transact(run, bank.books(), 1)
    assert (await bank.scene.flush(step(run, 2), completed(run))).lost == set()
    assert [record.position for record in await bank.scene.store.steps(run.id)] == [0, 1, 2]


async def test_what_was_open_is_closed(bank: Bank) -> None:
    run = await bank.scene.running()
    await bank.scene.flush(opened(run, 0, '"open"'))
    again = await bank.scene.again(run)
    assert (await bank.transact(again, bank.books(result='"done"'))).output == '"done"'
    assert [record.output for record in await bank.scene.store.steps(run.id)] == ['"done"']
    assert await bank.booked() == [5]


async def test_an_open_record_of_this_claim_is_not_taken_for_the_outcome(bank: Bank) -> None:
    run = await bank.scene.running()
    await bank.scene.flush(opened(run, 0, '"open"'))
    assert (await bank.transact(run, bank.books(result='"done"'))).status == "completed"
    assert (bank.calls, await bank.booked()) == (1, [5])


async def test_a_run_that_is_being_cancelled_keeps_the_step_in_flight(bank: Bank) -> None:
    """Rule 27."""
    run = await bank.scene.running()
    await bank.scene.store.cancel(run.id)
    await bank.transact(run, bank.books())
    assert await bank.booked() == [5]
    assert len(await bank.scene.store.steps(run.id)) == 1


@pytest.mark.parametrize("wish", ["cancel", "pause"])
async def test_it_tells_what_operators_ask_of_the_run(bank: Bank, wish: str) -> None:
    """As a flush does: the next step must not begin. Also when it is asked again, because its reply was lost."""
    run, other = await bank.scene.running(), await bank.scene.running()
    await bank.transact(run, bank.books(), 0)
    await getattr(bank.scene.store, wish)(run.id)
    await bank.transact(run, bank.books(), 1)
    await bank.transact(other, bank.books())
    await bank.transact(run, bank.books(), 0)
    assert (bank.asked, bank.calls) == ([None, wish, None, wish], 3)


async def test_what_was_asked_while_the_function_ran_is_told_too(bank: Bank) -> None:
    run = await bank.scene.running()
    await bank.transact(run, bank.does(booking(5), "UPDATE [runs] SET asked = 'pause'"))
    assert bank.asked == ["pause"]


async def test_many_transactions_at_once_are_all_committed(bank: Bank) -> None:
    """More than there are connections for them: the rest wait their turn."""
    await bank.scene.start_many(12)
    runs = await bank.scene.claim(12)
    await bank.scene.rows.fetch("CREATE TABLE ledger (amount integer)")
    calls = [bank.does(f"INSERT INTO ledger VALUES ({n})", result=str(n)) for n in range(12)]
    records = await asyncio.gather(*(bank.transact(run, call) for run, call in zip(runs, calls, strict=True)))
    assert [record.output for record in records] == [str(n) for n in range(12)]
    amounts = await bank.scene.rows.fetch("SELECT amount FROM ledger")
    assert sorted(amount for (amount,) in amounts) == list(range(12))


# -- once ---------------------------------------------------------------------------------------------------


async def test_a_transaction_whose_reply_was_lost_is_found_and_not_made_again(bank: Bank) -> None:
    """Rule 7."""
    run = await bank.scene.running()
    first = await bank.transact(run, bank.books(5, result='"first"'))
    second = await bank.transact(run, bank.books(6, result='"second"'))
    assert second == first
    assert (bank.calls, await bank.booked()) == (1, [5])


async def test_only_the_record_of_this_very_place_is_the_outcome(bank: Bank) -> None:
    run = await bank.scene.running()
    await bank.scene.flush(step(run, 0), step(run, 1, branch="1"))
    await bank.transact(run, bank.books(), 1)
    assert (bank.calls, await bank.booked()) == (1, [5])


async def test_a_record_of_another_claim_is_not_ours(bank: Bank) -> None:
    """The history is not what this owner believes: nothing of it may be committed."""
    run = await bank.scene.running()
    await bank.scene.flush(step(run, 0, '"theirs"'))
    again = await bank.scene.again(run)
    with pytest.raises(LeaseLost):
        await bank.transact(again, bank.books(result='"ours"'))
    assert await bank.booked() == []
    assert [record.output for record in await bank.scene.store.steps(run.id)] == ['"theirs"']


# -- the fence ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["another worker", "an old claim", "a claim to come", "released", "ended"])
async def test_who_lost_the_run_commits_nothing(bank: Bank, how: str) -> None:
    scene = bank.scene
    run = await scene.running()
    worker = await scene.add_worker() if how == "another worker" else None
    if how == "an old claim":
        await scene.again(run)
    elif how == "a claim to come":
        run.claim += 1
    elif how == "released":
        await scene.store.give_back(scene.worker, [(run.id, run.claim)])
    elif how == "ended":
        await scene.flush(completed(run))
    before = await scene.rows.dump()
    with pytest.raises(LeaseLost):
        await bank.transact(run, bank.books(), worker=worker)
    await nothing_happened(bank, run)
    assert await scene.rows.dump() == before


async def test_the_fence_comes_after_the_function(bank: Bank) -> None:
    """A run that is lost while the function runs: here, by the function itself."""
    run = await bank.scene.running()
    with pytest.raises(LeaseLost):
        await bank.transact(run, bank.does(booking(5), "UPDATE [runs] SET claim = claim + 1"))
    await nothing_happened(bank, run)
    assert (await bank.scene.info(run.id)).claim == run.claim, "that was undone as well"


# -- what the function raises -------------------------------------------------------------------------------


async def test_what_the_function_raises_undoes_everything_and_is_raised(bank: Bank) -> None:
    run = await bank.scene.running()
    error = KeyError("no such account")
    with pytest.raises(KeyError) as raised:
        await bank.transact(run, bank.books(error=error))
    assert raised.value is error
    await nothing_happened(bank, run)


async def test_what_cannot_be_recorded_undoes_everything(bank: Bank) -> None:
    run = await bank.scene.running()
    error = TypeError("cannot be encoded")

    def record(result: Any) -> StepDone:
        raise error

    with pytest.raises(TypeError) as raised:
        await bank.transact(run, bank.books(), record=record)
    assert raised.value is error
    await nothing_happened(bank, run)


async def test_what_the_database_says_to_the_function_comes_out_as_it_is(bank: Bank) -> None:
    run = await bank.scene.running()
    twice = "INSERT INTO bookings (id, amount) VALUES (1, 1)"
    expected = {
        "sqlite": sqlite3.IntegrityError,
        "postgres": asyncpg.UniqueViolationError,
        "mysql": asyncmy.errors.IntegrityError,
    }
    with pytest.raises(expected[bank.scene.store.dialect]):
        await bank.transact(run, bank.does(twice, twice))
    await nothing_happened(bank, run)


async def test_a_function_that_failed_may_be_called_again(bank: Bank) -> None:
    run = await bank.scene.running()
    with pytest.raises(KeyError):
        await bank.transact(run, bank.books(5, error=KeyError()))
    await bank.transact(run, bank.books(6))
    assert await bank.booked() == [6]


async def test_a_function_that_takes_too_long_is_undone(bank: Bank) -> None:
    run = await bank.scene.running()
    forever = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000000) SELECT max(i) FROM n"
        if bank.sqlite
        else f"SELECT {'pg_' if bank.scene.store.dialect == 'postgres' else ''}sleep(30)"
    )
    with pytest.raises(TimeoutError):
        await bank.transact(run, bank.does(booking(5), forever), timeout=0.1)
    await nothing_happened(bank, run)
    await bank.transact(run, bank.books(6))
    assert await bank.booked() == [6]


# -- a function that ends the transaction itself --------------------------------------------------------------


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
async def test_a_function_that_ends_the_transaction_is_refused(bank: Bank, end: str) -> None:
    run = await bank.scene.running()
    with pytest.raises(ContextMisuse):
        await bank.transact(run, bank.does(booking(5), end))
    assert await bank.scene.store.steps(run.id) == []


async def test_a_function_that_ends_the_transaction_and_begins_another_is_refused(bank: Bank) -> None:
    run = await bank.scene.running()
    with pytest.raises(ContextMisuse):
        await bank.transact(run, bank.does("COMMIT", "BEGIN", booking(5)))
    await nothing_happened(bank, run)


async def test_what_was_refused_harms_nobody_who_comes_after(bank: Bank) -> None:
    run = await bank.scene.running()
    for _ in range(6):
        with pytest.raises(ContextMisuse):
            await bank.transact(run, bank.does("ROLLBACK"))
    assert (await bank.scene.flush(step(run, 0), joint(run, 1))).lost == set()
    await bank.transact(run, bank.books(), 2)
    assert await bank.booked() == [5]


# -- Postgres alone -------------------------------------------------------------------------------------------


@pytest.fixture
def on_postgres(bank: Bank) -> Bank:
    """For a function that has a connection of asyncpg."""
    return bank


@only_on(*ON_POSTGRES)
async def test_a_function_may_have_savepoints_of_its_own(on_postgres: Bank) -> None:
    run = await on_postgres.scene.running()

    async def call(connection: asyncpg.Connection) -> str:
        async with connection.transaction():
            await connection.execute(booking(5))
        with pytest.raises(KeyError):
            async with connection.transaction():
                await connection.execute(booking(6))
                raise KeyError
        return "1"

    await on_postgres.transact(run, call)
    assert await on_postgres.booked() == [5]


@only_on(*ON_POSTGRES)
async def test_a_long_transaction_does_not_stop_the_journal(on_postgres: Bank) -> None:
    """The function has not touched the run: its row is locked only at the end."""
    run = await on_postgres.scene.running()

    async def call(connection: asyncpg.Connection) -> str:
        await connection.execute(booking(5))
        answer = await on_postgres.scene.flush(step(run, 1))
        assert (answer.busy, answer.lost) == (set(), set())
        return "1"

    await on_postgres.transact(run, call)
    assert [record.position for record in await on_postgres.scene.store.steps(run.id)] == [0, 1]


@only_on(*ON_POSTGRES)
async def test_a_wish_that_is_being_written_when_the_function_returns_is_waited_for(on_postgres: Bank) -> None:
    run = await on_postgres.scene.running()
    somebody = await asyncpg.connect(on_postgres.scene.rows._url)
    wish = somebody.transaction()
    await wish.start()
    await somebody.execute("UPDATE stepfast.runs SET asked = 'cancel' WHERE id = $1", run.id)
    task = asyncio.create_task(on_postgres.transact(run, on_postgres.books()))
    await eventually(lambda: somebody.fetchval(f"SELECT count(*) {BLOCKED}"))
    await wish.commit()
    await task
    await somebody.close()
    assert on_postgres.asked[-1] == "cancel"


@only_on(*ON_POSTGRES)
async def test_a_function_that_is_cancelled_leaves_nothing_behind(on_postgres: Bank) -> None:
    run = await on_postgres.scene.running()
    begun = asyncio.Event()

    async def call(connection: asyncpg.Connection) -> str:
        await connection.execute(booking(5))
        begun.set()
        await asyncio.Event().wait()
        return "1"

    task = asyncio.create_task(on_postgres.transact(run, call))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await nothing_happened(on_postgres, run)


# -- SQLite alone ---------------------------------------------------------------------------------------------


@pytest.fixture
def on_sqlite(bank: Bank) -> Bank:
    """For a function that runs in the writer's thread."""
    return bank


@only_on(*ON_SQLITE)
async def test_a_coroutine_function_is_refused_on_sqlite(on_sqlite: Bank) -> None:
    run = await on_sqlite.scene.running()

    async def call(connection: sqlite3.Connection) -> str:
        connection.execute(booking(5))
        return "1"

    with pytest.raises(ContextMisuse, match="def"):
        await on_sqlite.transact(run, call)
    await nothing_happened(on_sqlite, run)


@pytest.mark.parametrize("how", ["commit", "rollback", "with", "savepoint"])
@only_on(*ON_SQLITE)
async def test_the_connection_s_own_words_for_ending_it_are_refused_too(on_sqlite: Bank, how: str) -> None:
    run = await on_sqlite.scene.running()

    def call(connection: sqlite3.Connection) -> str:
        connection.execute(booking(5))
        if how == "with":
            with connection:
                connection.execute(booking(6))
        elif how == "savepoint":
            connection.execute("SAVEPOINT mine")
        else:
            getattr(connection, how)()
        return "1"

    with pytest.raises(ContextMisuse):
        await on_sqlite.transact(run, call)
    await nothing_happened(on_sqlite, run)


@only_on(*ON_SQLITE)
async def test_a_refusal_that_the_function_swallows_is_a_refusal_still(on_sqlite: Bank) -> None:
    """Either it is refused all the same, or it has had no effect: the record and the rows are never parted."""
    run = await on_sqlite.scene.running()

    def call(connection: sqlite3.Connection) -> str:
        connection.execute(booking(5))
        with pytest.raises(sqlite3.DatabaseError):
            connection.commit()
        return "1"

    try:
        await on_sqlite.transact(run, call)
    except ContextMisuse:
        await nothing_happened(on_sqlite, run)
    else:
        assert len(await on_sqlite.scene.store.steps(run.id)) == 1
        assert await on_sqlite.booked() == [5]


@only_on(*ON_SQLITE)
async def test_the_writer_s_connection_is_as_it_was_afterwards(on_sqlite: Bank) -> None:
    run = await on_sqlite.scene.running()

    def call(connection: sqlite3.Connection) -> str:
        connection.row_factory = sqlite3.Row
        connection.text_factory = bytes
        connection.isolation_level = "EXCLUSIVE"
        connection.execute(booking(5))
        return "1"

    await on_sqlite.transact(run, call)
    assert await on_sqlite.scene.rows.fetch("SELECT status FROM [runs]") == [("running",)]
    assert (await on_sqlite.scene.flush(step(run, 1), completed(run))).lost == set()
    assert (await on_sqlite.scene.info(run.id)).status == "completed"


@only_on(*ON_SQLITE)
async def test_jobs_beside_a_function_that_fails_are_not_hurt(on_sqlite: Bank) -> None:
    await on_sqlite.scene.start_many(5)
    runs = await on_sqlite.scene.claim(5)
    answers = await asyncio.gather(
        *(on_sqlite.scene.flush(step(run, 0)) for run in runs[:2]),
        on_sqlite.transact(runs[2], on_sqlite.books(error=KeyError())),
        *(on_sqlite.scene.flush(step(run, 0)) for run in runs[3:]),
        return_exceptions=True,
    )
    assert [isinstance(answer, KeyError) for answer in answers] == [False, False, True, False, False]
    written = await on_sqlite.scene.rows.fetch("SELECT run_id FROM [steps]")
    assert {run_id for (run_id,) in written} == {run.id for run in runs} - {runs[2].id}
    assert await on_sqlite.booked() == []
