"""Every default and limit of Stepfast, with its reason.

Each can be passed (``Stepfast(settings=Settings(lease=10))``, some also as arguments of ``app.worker``) and each
can be set in the environment as ``STEPFAST_`` plus its name in capitals.
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
import math
import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from .errors import ConfigurationError

DEFAULT_URL = "sqlite:///stepfast.db"
DEFAULT_NAMESPACE = "stepfast"
FORMAT = 1
"""The format number of a record written by this code. A record with a higher one is refused, not guessed at."""
FORMAT_CODEC = 2
"""The format number of a record whose payloads passed through the application's codec."""

SUSPECT_LOSSES = 2
"""From this many losses on a run is a suspect: it is tried in ever smaller groups (``model/health.py``), so that a
poisonous one is found. The SQL of the ready index knows the number too."""


_DAY = 86400.0


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of an application; times in seconds, sizes in bytes."""

    # -- retries
    max_attempts: int = 3
    """Attempts of a task or workflow. Three: transient errors rarely repeat, and more attempts do not fix
    permanent ones."""
    retries: int = 0
    """Retries of a step. None: an error ends the attempt, and the next attempt continues at that step."""
    dag_retries: int = 2
    """Retries of a step of a dag: three calls, as a task has three attempts. A dag run has no attempts, so nothing but
    its own retries keeps a transient error of one step from failing, and undoing, the whole run."""
    timeout: float | timedelta | None = None
    """How long an attempt of a task or workflow that says nothing itself may be executed, waits excluded. None: for as
    long as it takes, because no length fits both a mail and a nightly export, and one that is too short only repeats
    the work. ``stepfast doctor`` and ``top`` name what has been executing for more than an hour."""
    step_timeout: float | timedelta | None = None
    """The same for one try of a step, also of a dag, a transaction or an undo; for the same reason."""
    undo_retries: int = 3
    """Retries of an undo that declares none: more than a step has, because no later attempt calls it again."""
    backoff_base: float = 1.0
    """The first wait between two tries: long enough for a hiccup to pass."""
    backoff_factor: float = 2.0
    """Each wait is this many times the last."""
    backoff_max: float = 300.0
    """Five minutes: long enough for a dependency to come back, short enough to be noticed the same hour."""
    backoff_jitter: float = 0.2
    """±20 %, so that a thousand runs which failed together do not come back together."""
    inline_wait: float = 2.0
    """A wait up to this long is kept in memory while slots are free; a longer one gives the slot back. So does every
    wait of a run that workers have died with: giving its slot back clears it."""
    drain: float = 2.5
    """``app.drain()`` stays for what is due within this long, also where ``inline_wait`` is shorter: a short sleep, or
    the last of three attempts, which comes two seconds after the second, give or take a fifth."""

    # -- leases
    lease: float = 30.0
    """Seconds without a heartbeat after which a worker is taken for dead, and its runs go to others."""
    heartbeat: float | None = None
    """How often a worker renews its lease; by default a third of the lease, so that two heartbeats may be lost."""
    sweep_interval: float = 5.0
    """How often a worker checks for dead ones."""
    poll_interval: float = 1.0
    """How often an idle worker asks for work when nothing woke it. Polling alone is always correct."""
    min_poll_interval: float = 0.05
    """How often a worker without wake-ups asks for work while there is some."""
    max_losses: int = 5
    """Losses without a new record or a wait between them before a run is a dead letter."""
    shutdown_grace: float = 30.0
    """How long a stopping worker waits for running handlers before it gives their runs back."""
    concurrency: int = 100
    """Runs a worker executes at once."""
    blocked_after: float = 5.0
    """A worker whose event loop has not moved for this long says so in the log, with the run, the step and the line
    that block it; 0: never."""
    gc_threshold: int = 10_000
    """New objects between two collections of Python's garbage collector while a worker of up to 100 runs at once works
    (700 by default, which costs a fifth of the speed), and in proportion for one of more: what runs hold is no garbage.
    0 leaves it as it is, and so does a higher one of the application's own."""
    switch_interval: float = 0.0
    """Seconds after which a thread of Python gives way to others (``sys.setswitchinterval``) while a worker works, if
    that is shorter than it was. On SQLite the writer's thread waits so long each time that it comes back from the
    database. 0 leaves it as it is, because it is the whole process's. ``stepfast worker``, whose process is its own,
    takes 0.001 on SQLite in place of 0."""

    # -- keeping
    retention: float | timedelta | None = 30 * _DAY
    """How long a run is kept after it has completed, was cancelled or compensated: a month, so that last month's
    questions have answers. Then workers remove it with all that belongs to it. None, in the environment ``none``: for
    ever."""
    retention_failed: float | timedelta | None = 90 * _DAY
    """The same for runs that failed: an operator may want to inspect and retry them much later."""
    retention_events: float | timedelta | None = 7 * _DAY
    """How long an event is kept after it was published: a run that begins to wait finds those since its start, and an
    event of the same id is the same. None: for ever."""
    retention_audit: float | timedelta | None = 365 * _DAY
    """How long the audit keeps a line on an action in the console: a year. None: for ever."""

    # -- watching
    console_query_timeout: float = 3.0
    """Seconds after which a query of the console is given up: monitoring must not slow down workers."""
    console_query_cache: float = 1.0
    """Seconds for which the answer to such a query is cached for all tabs of a process; one that took long is cached
    for twenty times as long as it took."""
    console_query_rate: float = 3.0
    """Queries a second that all open tabs of a process send together: the more tabs, the less often each polls."""
    act_timeout: float = 10.0
    """Seconds after which an action of the console is given up, and half of them for rows that another transaction
    has locked: the operator is shown what is known of its outcome."""

    # -- schedules
    schedule_grace: float = 60.0
    """A tick that no worker came to within this time was missed: a schedule that skips missed ticks skips it."""
    max_missed: int = 1000
    """Missed ticks that a schedule with ``missed="all"`` makes good for at most: the newest of them."""
    max_backfill: int = 100_000
    """Ticks in the span of one backfill at most; a longer one is refused before anything is started."""

    # -- remote workers
    remote_poll: float = 0.5
    """How often an idle remote worker polls for tasks: there are no wake-ups, and each poll is a query."""
    remote_batch: int = 10
    """Tasks that a remote worker claims at once at most, so that other workers find some too."""
    remote_concurrency: int = 10
    """Handlers that a remote worker runs at once."""

    # -- payloads
    warn_payload: int = 256 * 1024
    """A payload above this is logged as large: it is read back at every replay."""
    max_payload: int = 8 * 1024 * 1024
    """A payload above this is refused. It belongs in object storage, and its address in the payload."""
    list_payload_limit: int = 4096
    """An input or output above this is left out of lists of runs, which bring many of them; ``run.info()`` has it."""
    max_depth: int = 100
    """Deeper nesting than this is refused: some reader of the row would fail on it."""
    max_records: int = 50_000
    """Records of one run at most: all of them are read back when it is replayed."""
    max_signals: int = 10_000
    """Signals that a run keeps without having taken them. The next one is refused, because the run does not wait for
    what is sent."""
    max_stream_item: int = 256 * 1024
    """Bytes of one item of a stream. A larger one is refused: it belongs in object storage, and its address in the
    stream."""
    max_stream_items: int = 100_000
    """Items that one stream of a run takes: the tokens of a long conversation. The next one is refused."""
    max_stream_bytes: int = 64 * 1024 * 1024
    """Bytes that the items of one stream may have together."""
    mail_bytes: int = 8 * 1024 * 1024
    """About how many bytes one read of a mailbox brings at most; the rest comes with the next."""
    max_attributes: int = 32
    """Attributes of one run at most: they are what it is found by, and each is a row and an entry of an index."""
    max_attribute_names: int = 1000
    """Different names of attributes in one namespace at most. Names made at run time would be values."""
    max_name: int = 200
    """Characters in the name of a workflow, queue, step or tag, and in a key."""
    record_arguments: bool = True
    """Whether the arguments of steps are kept for the activity log."""
    argument_bytes: int = 4096
    """Bytes of JSON that the kept arguments of a step may have together. If they have more, the largest are kept as
    their size and a digest: else each large value is stored twice, as the result of a step and as the argument of the
    next."""

    # -- logs
    max_log_lines: int = 10_000
    """Lines that are kept of what the code of a run logs, where its application keeps that: the first. Others are
    counted."""
    log_errors: bool = True
    """Whether messages and tracebacks of failed steps and runs are logged; if not, only their classes are."""

    # -- journal
    flush_records: int = 1000
    """Records in one flush at most: bounds how long a row stays locked."""
    flush_bytes: int = 8 * 1024 * 1024
    """About how many bytes one flush carries at most."""
    start_batch: int = 10_000
    """Runs inserted by one statement; larger calls use several within one transaction."""
    claim_bytes: int = 64 * 1024 * 1024
    """About how many bytes of inputs one claim brings at most; the next one brings the rest. A hundred of the largest
    would be 800 MB at once."""
    history_records: int = 64
    """Records a claim brings along per run; the rest is fetched in pages when the run is replayed."""
    history_bytes: int = 256 * 1024
    """Bytes of records that a claim brings along per run, if that limit is reached first."""
    history_cache: int = 64 * 1024 * 1024
    """Memory for the records of runs that wait, so that they need not be read again."""
    running_after: float = 1.0
    """A step that takes longer than this is listed as running; a quicker one costs no extra write."""

    # -- health and metrics
    live_lag: float = 60.0
    """``/live`` fails when the event loop has not moved for this long: a supervisor should restart the process. Long,
    because a blocked loop loses no lease, and a restart helps only if it stays blocked."""
    metrics_cache: float = 10.0
    """``/metrics`` asks the database at most this often, however often and by however many it is asked itself."""
    metrics_values: int = 200
    """Values that a label of a metric admits; what comes later is counted as ``_other``. Names of steps can be made at
    run time."""
    metrics_series: int = 500
    """Series of one metric at most; what comes later is counted in one series of ``_other``."""

    # -- connections
    pool_size: int = 5
    """Connections for questions (status, results, lists). Starting, waiting and working have a few of their own."""
    transaction_pool: int = 4
    """Connections for ``ctx.transaction``, apart from all others: what a user does in them must not stop the engine."""
    connect_timeout: float = 10.0
    """A connection that takes longer to make counts as an outage."""
    command_timeout: float = 60.0
    """A statement that takes longer has met a fault; it is given up and safely repeated."""
    outage_backoff_max: float = 5.0
    """While the database is away, ask again at least this often."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if isinstance(span := getattr(self, field.name), timedelta) and "timedelta" in str(field.type):
                object.__setattr__(self, field.name, span.total_seconds())
            _check(field.name, str(field.type), getattr(self, field.name))
        if self.beat >= self.lease:
            raise ConfigurationError(
                f"settings: the heartbeat ({self.beat:g} s) must be shorter than the lease ({self.lease:g} s), "
                "or every worker would look dead between two beats"
            )
        if self.concurrency < 1:
            raise ConfigurationError("settings: concurrency must be at least 1")

    @property
    def beat(self) -> float:
        """The heartbeat interval in force."""
        return self.lease / 3 if self.heartbeat is None else self.heartbeat

    def with_changes(self, **changes: Any) -> Settings:
        """A copy with the given values; those that are None keep what they were."""
        return dataclasses.replace(self, **{k: v for k, v in changes.items() if v is not None})

    @classmethod
    def from_environment(cls, environ: dict[str, str] | None = None, **changes: Any) -> Settings:
        """The defaults, then ``STEPFAST_…`` variables, then what was passed."""
        environ = dict(os.environ) if environ is None else environ
        _warn_of_misspelt(environ, [field.name for field in dataclasses.fields(cls)])
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            text = environ.get(f"STEPFAST_{field.name.upper()}")
            if text is not None:
                may_be_none = str(field.type).endswith("| None") and text.lower() == "none"
                values[field.name] = None if may_be_none else _parse(field.name, text, getattr(cls(), field.name))
        values.update({k: v for k, v in changes.items() if v is not None})
        return cls(**values)


def _check(name: str, kind: str, value: Any) -> None:
    """Refuse what is not of the kind that the annotation names."""
    if value is None:
        fits, wanted = kind.endswith("| None"), "a number"
    elif kind == "bool":
        fits, wanted = isinstance(value, bool), "True or False"
    elif kind == "int":
        fits, wanted = isinstance(value, int) and not isinstance(value, bool), "a whole number"
    else:
        fits, wanted = _is_number(value), "a number"
    if not fits:
        raise ConfigurationError(f"settings: {name} must be {wanted}, not {value!r}")
    if value is not None and value < 0:
        raise ConfigurationError(f"settings: {name} must not be negative, got {value!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


_OTHER_VARIABLES = (
    "STEPFAST_URL", "STEPFAST_NAMESPACE", "STEPFAST_CONSOLE_TOKEN", "STEPFAST_CHILD_URL", "STEPFAST_REPORT_FD",
)  # fmt: skip
_told: set[str] = set()
"""Variables that were warned of already."""


def _warn_of_misspelt(environ: dict[str, str], names: list[str]) -> None:
    """A variable that nearly has the name of a setting, and sets nothing. Others may have variables of our prefix."""
    known = [*_OTHER_VARIABLES, *(f"STEPFAST_{name.upper()}" for name in names)]
    for variable in environ.keys() - _told:
        if variable.startswith("STEPFAST_") and variable not in known:
            _told.add(variable)
            if nearest := difflib.get_close_matches(variable, known, 1, 0.85):
                logging.getLogger("stepfast").warning(
                    "the environment variable %s sets nothing; did you mean %s?", variable, nearest[0]
                )


def _parse(name: str, text: str, default: Any) -> Any:
    try:
        if isinstance(default, bool):
            return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[text.lower()]
        return int(text) if isinstance(default, int) else float(text)
    except (ValueError, KeyError):
        kind = {bool: "true or false", int: "a whole number"}.get(type(default), "a number")
        raise ConfigurationError(f"STEPFAST_{name.upper()} must be {kind}, not {text!r}") from None
