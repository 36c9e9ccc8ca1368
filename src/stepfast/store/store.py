"""The contract of a store: what every database can do, in batches. One test suite runs over all implementations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..model.queue_config import Bound
from ..model.rate_limiter import Admission, WantedRuns
from ..model.records import (
    NO_DOUBTS,
    Answer,
    Batch,
    Beat,
    Claimed,
    FlushAnswer,
    HasRecordCount,
    Lane,
    Look,
    Mail,
    Mailbox,
    NewRun,
    StepDone,
    Tick,
)
from ..model.rows import DagOutputs
from ..settings import Settings
from .answers import NOTHING, Check, Pulse, SchemaState, Transacted, TransportConnection, Wakeups
from .flows import claims, limits, signals, sweep, unique
from .flows.base import Flow, T, ask
from .flows.events import NewEvent
from .flows.flush import flush
from .lock_timeout import Breaks
from .queries import Queries
from .tables import Tables

if TYPE_CHECKING:
    from .readonly import BaseGlance


class Store(Queries, ABC):
    """A database that holds runs.

    What has a body here is a flow (``store/flows``): a database may do it in a way of its own, by fewer statements, and
    a test compares the two. What a database has to do is abstract, here or in ``Queries``: connect, ask, drive a flow.
    """

    dialect: str
    breaks: Breaks
    """Tells when a connection broke: what was committed before may be gone."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._named = {}
        self._last_claims = claims.LastTokens()
        self._last_limited = claims.LastTokens()

    async def _look(self, duty: str, flow: Callable[..., Flow[T]], *arguments: Any) -> T:
        """Drive a flow that only reads."""
        return await self._on(duty, flow, *arguments)

    def _met(self, started: int | None) -> None:
        """Hear when the server was started that answers; None: there is no server."""

    @property
    @abstractmethod
    def can_wake(self) -> bool:
        """Whether ``listen`` delivers. Without it everything works by polling."""

    # -- opening and the schema
    @abstractmethod
    async def open(self) -> None:
        """Connect. Says in one sentence what is wrong if it cannot."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect. If it is cancelled it drops what is left."""

    @abstractmethod
    def drop(self) -> None:
        """Disconnect at once, without waiting for an answer: for callers that were cancelled."""

    @abstractmethod
    async def schema_state(self) -> SchemaState:
        """Where the tables stand."""

    @abstractmethod
    async def migrate(self) -> list[str]:
        """Bring the tables up to date; the names of what was applied. Idempotent, safe when many call at once."""

    @abstractmethod
    def migration_sql(self) -> str:
        """The whole of it as a script, for those who apply it themselves."""

    @abstractmethod
    def roles_sql(self) -> str:
        """A script that makes roles of least privilege, where the database has roles."""

    @abstractmethod
    def names(self) -> list[str]:
        """The tables and views that a reset drops."""

    @abstractmethod
    def tables(self) -> Tables:
        """The tables as rows of values, for a move to another database. Made when the store is open."""

    @abstractmethod
    async def reset(self) -> None:
        """Drop everything of this namespace."""

    @abstractmethod
    async def doctor(self) -> list[Check]:
        """Check connection, version, clock, wake-ups, pool."""

    @abstractmethod
    def glance(self, patience: float) -> BaseGlance:
        """The store as those see it who only watch: it writes nothing, and gives each question up in so many seconds.
        Made within the event loop that asks."""

    # -- definitions and starts

    async def start(self, runs: Sequence[NewRun], at_once: bool = False) -> list[str]:
        """Insert runs, all or none; their ids, or for a key already taken the id of the run that has it. While the open
        transaction of a caller holds a key this waits; ``at_once`` it raises ``KeysHeld`` and has done nothing."""
        return await self._on("start", unique.start, runs, self._settings.max_signals)

    @abstractmethod
    async def start_within(self, connection: Any, runs: Sequence[NewRun]) -> list[str]:
        """Insert runs on a connection of the caller's, in the caller's transaction: inserts only, locks nothing."""

    @abstractmethod
    async def send_within(self, connection: Any, mail: Mail) -> Answer:
        """Send a signal in the caller's transaction: inserts only; ``deliver`` does the rest after the commit."""

    @abstractmethod
    async def publish_within(self, connection: Any, rows: Sequence[NewEvent], pairs: Sequence[tuple[str, str]]) -> bool:
        """Publish events in the caller's transaction: inserts only. ``pairs`` are to be stored before, as by
        ``subscribe``: the answer says whether they are, before the transaction ends."""

    # -- reading

    async def dag_outputs(self, wanted: Sequence[tuple[str, int]]) -> dict[str, DagOutputs]:
        """The inputs of dag runs, and the outputs of their steps that were completed at a time or after."""
        return await self._look("mail", claims.dag_outputs, wanted)

    # -- queues

    async def start_bounded(self, runs: Sequence[NewRun], bound: Bound) -> list[str]:
        """Like ``start``, all or none, unless more than so many would be ready in their queue: QueueFull. One start
        into the queue at a time. Runs whose key is taken are not counted."""
        return await self._on("start", unique.start_bounded, runs, self._settings.max_signals, bound)

    # -- operators and senders

    # -- workers

    @abstractmethod
    def pulse(self, patience: float = 10.0) -> Pulse:
        """A heartbeat for a thread of its own; a beat that takes longer than ``patience`` seconds has failed."""

    async def claim(
        self,
        worker: str,
        token: int,
        lanes: Sequence[tuple[Lane, int]],
        versions: dict[str, str],
        limit: int,
        remembered: Mapping[str, int] = NOTHING,
    ) -> list[Claimed]:
        """Up to ``limit`` ready runs of these lanes (each with its mark), highest priority first, then oldest, with
        their first records. Called again with the same token it returns what the first call took. Runs whose records
        the caller ``remembered`` as of a claim number come without them if they were not claimed since."""
        again = self._last_claims.is_repeated(worker, token)
        given = (lanes, versions, limit, again, self._settings, remembered)
        return await self._on("claim", claims.claim, worker, token, *given)

    async def claim_suspects(
        self, worker: str, token: int, versions: dict[str, str], queues: Sequence[str] | None, room: Sequence[int]
    ) -> list[Claimed]:
        """A group of runs that workers have died with: of those that have the fewest losses as many as there is
        ``room`` for, which is said for two losses, for three, and so on; the last number holds for all beyond."""
        again = self._last_claims.is_repeated(worker, token)
        given = (versions, queues, room, again, self._settings)
        return await self._on("claim", claims.claim_suspects, worker, token, *given)

    async def claim_limited(
        self, worker: str, token: int, want: WantedRuns, remembered: Mapping[str, int] = NOTHING
    ) -> Admission:
        """Ready runs of a limited queue, as many as its limits allow. Called again with the same token it returns what
        the first call took."""
        again = self._last_limited.is_repeated(worker, token)
        given = (worker, token, want, again, self._settings, remembered)
        return await self._on("limited", limits.claim_limited, *given)

    async def flush(self, worker: str, batch: Batch) -> FlushAnswer:
        """Write the journal: one transaction, fenced run by run."""
        return await self._on("flush", flush, worker, batch, self._met)

    @abstractmethod
    async def transact(
        self, worker: str, run_id: str, claim: int, address: tuple[str, int], call: Callable[[Any], Any],
        record: Callable[[Any], StepDone], timeout: float | None, unverified: Mapping[str, HasRecordCount] = NO_DOUBTS,
    ) -> Transacted:  # fmt: skip
        """Call a function with a connection inside a transaction, and commit what it did together with the record of
        its result. The fence and the record come last. If the record is there already, made under this claim, it is
        returned and the function is not called. RecordsVanished if the run is one of the ``unverified`` and fewer of
        its records are stored than its worker believes. LeaseLost if the run is not this worker's any more; what the
        function raises undoes everything and is raised."""

    async def mail(self, looks: Sequence[Look]) -> dict[str, Mailbox]:
        """Looks into the mailboxes of some runs: what was sent to them and is new to who looks, no more than about
        ``mail_bytes`` for each, but of each name that is waited for the oldest in any case."""
        return await self._look("mail", signals.look, looks, self._settings.mail_bytes)

    async def tick(
        self, worker: str, workflows: Sequence[str] | None, lanes: bool, queues: Sequence[str] | None = None,
        schedules: Sequence[str] = (),
    ) -> Tick:  # fmt: skip
        """Which duties have work, for a worker that knows these workflows, serves these queues (None: all) and declares
        these schedules?"""
        return await self._look("sweep", sweep.tick, workflows, lanes, queues, schedules)

    async def beats(self, worker: str) -> list[Beat]:
        """The last beats of all other workers that were not declared dead."""
        rows = await self._look("sweep", ask, "beats", worker)
        return [Beat(str(row[0]), *row[1:]) for row in rows]

    # -- wake-ups
    @abstractmethod
    async def notify(self, wakeups: Wakeups) -> None:
        """Wake others. A transaction of its own, after the data is committed; never required."""

    @abstractmethod
    async def listen(self, heard: Callable[[Wakeups], None]) -> None:
        """Call ``heard`` at each wake-up until the store is closed. Reconnects by itself."""

    # -- remote steps
    def carry(self, carrier: TransportConnection) -> None:
        """Let the transport take part in this store's transactions from now on, because it is in the same database."""
        raise NotImplementedError(f"no transport is in the same database as {type(self).__name__}")
