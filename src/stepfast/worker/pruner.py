"""The pruner: removes runs whose retention is over, in bounded portions, slower while other work waits."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from statistics import median_low
from typing import Final, NamedTuple, Protocol, TypeVar

from ..engine.host import Clock
from ..errors import DatabaseRefused
from ..model.retention import Ended, EndedPage, Keep, Removal, Weight, needed_by, portions
from ..model.status import FAILED
from ..settings import Settings
from ..store import Store
from .context import WorkerContext

CALM: Final = 0.05
"""The part of the time that removing takes while runs are executed."""
IDLE: Final = 0.2
"""The part that it takes while none is executed."""
MOST: Final = 0.4
"""The part that it takes at most, however far it is behind."""
OF_OPERATORS: Final = 0.5
"""The part that an operator's prune takes: a person waits for it to end."""
AHEAD: Final = 1.25
"""How much more than what comes is to be removed while something is behind."""
PERIOD: Final = 30.0
"""Seconds between two judgements."""
LONGEST: Final = 60.0
"""Seconds of one rest at most."""


class Progress(NamedTuple):
    """How far removing has come."""

    at: float
    """When this was so, in seconds of the database's clock."""
    due: float
    """When what was removed then had become due."""

    @property
    def late(self) -> float:
        """How much later it went."""
        return self.at - self.due


def rest_after(took: float, share: float) -> float:
    """How long to rest after something that took so long, so that it takes this part of the time."""
    return min(took * (1 - share) / share, LONGEST)


def next_share(share: float, before: Progress, now: Progress) -> float:
    """As much as would have kept up with the clock, and some more to catch up. At most twice what it was, and at least
    half of it: one look may mislead."""
    seconds, passed = now.at - before.at, now.due - before.due
    wanted = AHEAD * share * seconds / passed if passed > 0 else MOST
    return min(max(wanted, share / 2, CALM), share * 2, MOST)


def due_of(runs: Sequence[Ended], keep: Keep) -> float:
    """When runs that went together had become due: the one in the middle, for a few may have been kept for others."""
    kept = {run.id: (keep.failed if run.status == FAILED else keep.others) or 0 for run in runs}
    return median_low([run.completed_at + kept[run.id] for run in runs]) / 1000


class RemovalPace:
    """The pace of one worker. How far removing has come is seen in the database, so that workers that take
    turns judge alike."""

    def __init__(self, may_be_late: float = 0.0) -> None:
        self._may_be_late = may_be_late
        """How many seconds later than they are due runs may go."""
        self.busy = True
        """Whether any worker executes runs, as it was last seen."""
        self._share = CALM
        self._before: Progress | None = None

    @property
    def share(self) -> float:
        """The part of the time to take just now."""
        return self._share if self.busy else max(self._share, IDLE)

    def came_to(self, now: Progress) -> None:
        """Some were removed: judge, if the last time was long enough ago."""
        if self._before is None or now.late <= self._may_be_late:
            self._share, self._before = max(self._share / 2, CALM), now
        elif now.at - self._before.at >= PERIOD:
            self._share, self._before = next_share(self._share, self._before, now), now

    def caught_up(self) -> None:
        """Nothing is due any more."""
        self._share, self._before = CALM, None


T = TypeVar("T")

FIRST = "00000000-0000-0000-0000-000000000000"
"""An id before that of every run."""
_WINDOW = 2000
"""Runs that one question looks at."""
_BATCH = 200
"""Runs that one question finds."""
_PORTION = Weight(1500, 16 * 1024 * 1024)
"""How much one transaction removes. A run that is heavier goes alone: its records must not go before it does."""


class Archive(Protocol):
    """Where runs are kept that are removed here. A protocol, because the archive is in a layer above."""

    async def keep(self, runs: Sequence[Ended]) -> None:
        """Returns when they are on the disk."""


class Looked(NamedTuple):
    """What a look has found."""

    page: EndedPage
    free: list[Ended]
    """Those that are not needed any more."""
    after: str | None
    """From where the next query continues; None: there is nothing more."""


def keep_of(settings: Settings) -> Keep:
    """How long the workers keep ended runs."""
    return Keep(_milliseconds(settings.retention), _milliseconds(settings.retention_failed))


def _milliseconds(span: object) -> int | None:
    return int(span * 1000) if isinstance(span, (int, float)) else None


class Remover:
    """Looks for what may go, and lets it go."""

    def __init__(
        self,
        store: Store,
        keep: Keep,
        clock: Clock,
        archive: Archive | None = None,
        pace: RemovalPace | None = None,
    ) -> None:
        """``pace``: that of workers, of which one prunes at a time; None: that of an operator."""
        self._store = store
        self._keep = keep
        self._clock = clock
        self._archive = archive
        self._pace = pace
        self._window = _WINDOW
        """How many runs the next question looks at."""
        self.refused: dict[str, str] = {}
        """Runs that the database does not let go, and what it says. Workers continue without them."""

    async def look(self, after: str) -> Looked:
        """A page of runs in the order of their ids."""
        return await self._resting(self._look(after))

    async def _look(self, after: str) -> Looked:
        window = self._window
        page = await self._store.ended_page(after, window, self._keep, _BATCH)
        if self._pace is not None:
            self._pace.busy = page.busy
        free = [run for run in page.runs if needed_by(run) is None]
        full = len(page.runs) == _BATCH
        self._window = _BATCH if full else _WINDOW  # among nothing but old runs, who looks further looks twice
        if full:
            return Looked(page, free, page.runs[-1].id)
        return Looked(page, free, page.last if page.seen == window else None)

    async def remove(self, runs: Sequence[Ended]) -> int | None:
        """How many went: of these, and of those that were kept only for their sake. None: another process prunes."""
        runs = [run for run in runs if run.id not in self.refused] if self.refused else runs
        if not runs:
            return 0
        count, weights = 0, await self._resting(self._store.weigh([run.id for run in runs]))
        for portion in portions(runs, weights, _PORTION):
            try:
                gone = await self._remove(portion)
            except DatabaseRefused as error:
                if self._pace is None:
                    raise
                count += await self._remove_halves(portion, error)
                continue
            if gone is None and not count:
                return None
            if gone is None:
                continue  # kin of what has just gone went with it
            count += len(gone.runs)
            if gone.runs:
                count += await self._remove_kin(gone) or 0
        return count

    async def _remove_halves(self, portion: Sequence[Ended], error: DatabaseRefused) -> int:
        """The database refuses to let go of one of these: find it, so that the others do not hang on it."""
        if len(portion) == 1:
            self.refused[portion[0].id] = str(error)
            return 0
        middle = len(portion) // 2
        return sum([await self.remove(half) or 0 for half in (portion[:middle], portion[middle:])])

    async def _remove(self, portion: Sequence[Ended]) -> Removal | None:
        if self._archive is not None:
            await self._archive.keep(portion)
        gone = await self._resting(self._store.remove(portion, self._pace is not None))
        if gone is None or gone.runs or self._pace is None:
            return gone
        missing = await self._store.missing([run.id for run in portion])
        return None if len(missing) == len(portion) else gone  # no lock is held while resting between two portions

    async def _resting(self, question: Awaitable[T]) -> T:
        """Ask something, and rest after the answer."""
        began = self._clock.now()
        answer = await question
        share = OF_OPERATORS if self._pace is None else self._pace.share
        await self._clock.sleep(rest_after(self._clock.now() - began, share))
        return answer

    async def _remove_kin(self, gone: Removal) -> int | None:
        """Children of what is gone, and the first of a chain whose last run is gone: as many as there are, with their
        own kin."""
        count = 0
        while ids := await self._resting(self._store.ended_kin(gone, self._keep, _BATCH)):
            free = [run for run in await self._store.ended(ids) if needed_by(run) is None]
            removed = await self.remove(free) if free else 0
            if not removed:
                break
            count += removed
        return count


_EVERY = 12
"""A look comes once in so many sweeps: once a minute."""
_PARTS = 30
"""The walk begins again at the first id each time that this part of the retention has passed."""
_LONGEST = 86400.0
"""But at least once a day."""


class Pruner:
    """Looks now and then for what may go."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._clock, self._settings = context.clock, context.settings
        self._keep = keep_of(context.settings)
        self._pace = RemovalPace(may_be_late=self._lag)
        self._remover = Remover(context.store, self._keep, context.clock, pace=self._pace)
        self._told = set[str]()
        """The runs that could not be removed, and that the log knows of."""
        self._mark = FIRST
        """Everything before it was old when it was last looked at, and is gone or stays for a reason."""
        self._again_at = 0.0

    async def run(self) -> None:
        """Look, again and again, until cancelled. The first time soon, but not while the worker begins."""
        if self._keep.shortest is None:
            return
        await self._clock.sleep(self._settings.sweep_interval * self._clock.random.uniform(0.5, 1.0))
        while True:
            removed = await self._context.ask(self.look, "janitor")
            self._tell_refused()
            if removed:
                self._context.logger.info("removed %d runs that ended long ago (settings retention)", removed)
            await self._clock.sleep(self.interval * self._clock.random.uniform(0.75, 1.25))

    @property
    def interval(self) -> float:
        """Seconds between two looks: a minute, or less where runs are kept for less than half an hour."""
        sweep = self._settings.sweep_interval
        return min(_EVERY * sweep, max(sweep, self._kept / _PARTS))

    @property
    def _kept(self) -> float:
        return (self._keep.shortest or 0) / 1000

    @property
    def _lag(self) -> float:
        return min(max(self.interval, self._kept / _PARTS), _LONGEST)

    def _tell_refused(self) -> None:
        for run_id in self._remover.refused.keys() - self._told:
            told = "run %s cannot be removed, though its retention is over: the database refuses it (%s)"
            self._context.logger.error(told, run_id, self._remover.refused[run_id], extra={"run_id": run_id})
            self._told.add(run_id)

    async def look(self) -> int:
        """Remove what may go; how many went."""
        removed, now = 0, self._clock.now()
        if now >= self._again_at:
            self._mark, self._again_at = FIRST, now + self._lag
        elif self._mark != FIRST:
            found = await self._remover.look(FIRST)  # the oldest of all, which may have become free since
            removed = await self._remover.remove(found.free) or 0
        return removed + await self._walk(self._mark)

    async def _walk(self, after: str | None) -> int:
        """Remove what may go, up to the first page that is too young in whole; how many went."""
        removed, old_enough = 0, True
        while after is not None:
            found = await self._remover.look(after)
            gone = await self._remover.remove(found.free)
            if gone is None:
                return removed
            removed += gone
            if gone:
                self._pace.came_to(Progress(found.page.now_ms / 1000, due_of(found.free, self._keep)))
            if not found.page.runs and found.page.oldest_ms < self._kept * 1000:
                break
            old_enough = old_enough and found.page.newest_ms >= (self._kept + self._lag) * 1000
            after = found.after
            if old_enough and after is not None:
                self._mark = after
        self._pace.caught_up()
        return removed
