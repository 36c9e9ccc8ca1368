"""What the log says when a worker begins: which database, whether anybody named it, who has other code of a name."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from .engine.workflow import Workflow
from .model.backoff import seconds
from .model.names import nearest
from .model.queue_config import Gate, Rate, decode
from .model.records import WorkerInfo
from .model.urls import DatabaseUrl, redact
from .settings import Settings


class Namesake(NamedTuple):
    """One name under which live workers have code of different modules."""

    workflow: str
    module: str
    other: str
    worker: WorkerInfo


def database_shown(url: DatabaseUrl) -> str:
    """The database, as an operator looks for it: never with a password, and a file by its whole path."""
    return redact(url.text) if url.path is None else f"the SQLite file {os.path.abspath(url.path)}"


def announce_database(url: DatabaseUrl, namespace: str, named: bool, logger: logging.Logger) -> None:
    """Say where runs are kept; loudly, if it is where they land when nobody says so."""
    logger.info("works on %s, namespace %r", database_shown(url), namespace)
    if not named:
        logger.warning("%s", unnamed(url))


def announce_retention(settings: Settings, logger: logging.Logger) -> None:
    """Say for how long ended runs are kept, because what is removed does not come back."""
    others, failed = _days(settings.retention), _days(settings.retention_failed)
    logger.info(
        "ended runs are kept %s, failed ones %s (settings retention, retention_failed); then workers remove them",
        others, failed,
    )  # fmt: skip


def _days(span: float | timedelta | None) -> str:
    if span is None:
        return "for ever"
    return f"for {timedelta(seconds=seconds(span, 'the retention'))}".replace(", 0:00:00", "")


def unnamed(url: DatabaseUrl, way: str = "Stepfast(url)") -> str:
    """The warning that nobody named a database; ``way`` is how it could have been named."""
    return f"no database was named, neither by {way} nor by STEPFAST_URL: runs are kept in {database_shown(url)}"


def announce_namesakes(
    workflows: Mapping[str, Workflow[Any, Any]], workers: Sequence[WorkerInfo], logger: logging.Logger
) -> None:
    """Say which names other live workers have other code for: they execute each other's runs."""
    own = {name: workflow.module for name, workflow in workflows.items()}
    versions = {name: workflow.version for name, workflow in workflows.items()}
    for name, module, other, worker in namesakes(own, versions, workers):
        logger.warning(
            "the code of %r is from module %s here, but from %s on the live worker %s:%d: each executes the other's "
            "runs. If they are two services, give each a namespace of its own, or one of the workflows another name",
            name, module, other, worker.host, worker.pid,
        )  # fmt: skip


def announce_queues(
    queues: Sequence[str] | None,
    workflows: Mapping[str, Workflow[Any, Any]],
    limited: Iterable[str],
    logger: logging.Logger,
) -> None:
    """Say which of the queues that a worker is to serve no code here names: perhaps a typing error."""
    known = {workflow.queue for workflow in workflows.values()} | set(limited)
    for queue in queues or ():
        if queue not in known:
            logger.warning(
                "queue %r is the queue of no workflow here: only runs whose start names it are taken from it%s",
                queue, nearest(queue, sorted(known)),
            )  # fmt: skip


def announce_limits(before: Gate, after: Gate, logger: logging.Logger) -> None:
    """Say that this process declares other limits of a queue than another one did, and which hold."""
    if before.declared is not None:
        logger.warning(
            "the limits of queue %r are declared as %s here, and were declared as %s by %s: what was declared last "
            "holds. If two deployments differ for good, let one of them declare the queue",
            after.name, shown_limits(after.declared), shown_limits(before.declared), before.declared_by,
        )  # fmt: skip
    if after.overridden:
        logger.warning(
            "queue %r: an operator has set %s, which holds instead of what the code declares, until it is reset",
            after.name, shown_limits(after.chosen),
        )  # fmt: skip


def shown_limits(text: str | None) -> str:
    """Limits as the code writes them: ``concurrency=20, rate=Rate(100, per=60)``."""
    return ", ".join(f"{name}={_shown(value)}" for name, value in decode(text).items()) or "none"


def _shown(value: object) -> str:
    return f"Rate({value.count}, per={value.per:g})" if isinstance(value, Rate) else str(value)


def namesakes(modules: Mapping[str, str], versions: Mapping[str, str], workers: Sequence[WorkerInfo]) -> list[Namesake]:
    """Where live workers have other code of another module under one of these names, each name once. The same code in
    two modules is one that was moved."""
    found: dict[str, Namesake] = {}
    for worker in workers:
        for name, module in modules.items():
            other = worker.modules.get(name, "")
            if worker.state == "live" and worker.workflows.get(name) != versions.get(name) and _differ(module, other):
                found.setdefault(name, Namesake(name, module, other, worker))
    return list(found.values())


def all_namesakes(workers: Sequence[WorkerInfo]) -> list[Namesake]:
    """Names under which any two live workers have code of different modules, each name once."""
    live = [worker for worker in workers if worker.state == "live"]
    found = {n.workflow: n for worker in live for n in namesakes(worker.modules, worker.workflows, live)}
    return [found[name] for name in sorted(found)]


def _differ(one: str, other: str) -> bool:
    """``orders`` and ``shop.orders`` may be one file, run as a script and imported from its package."""
    known = one != "" and other != ""
    return known and one != other and not one.endswith(f".{other}") and not other.endswith(f".{one}")
