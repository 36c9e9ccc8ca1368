"""Runs chosen by what they have in common, in place of ids: for whoever has a thousand of them at 3 a.m."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, get_type_hints

import typer

from ..errors import ConfigurationError
from ..listing import ListKeywords
from ..model import status as statuses
from .consent import DryRunOption, YesOption
from .options import option, time_option


@dataclass(frozen=True, slots=True)
class Choice:
    """The options that choose runs. A verb with a parameter of this type has them all (``verbs.py``)."""

    workflow: Annotated[str | None, option("--workflow", "-w", help="Instead of ids: all runs of this workflow.")] = (
        None
    )
    status: Annotated[str | None, option("--status", "-s", help=", ".join(statuses.RUN_STATUSES))] = None
    queue: Annotated[str | None, option("--queue", "-q")] = None
    reason: Annotated[str | None, option("--reason", help=", ".join(statuses.REASONS))] = None
    tag: Annotated[str | None, option("--tag")] = None
    key: Annotated[str | None, option("--key", help="Started with this key.")] = None
    since: Annotated[float | None, time_option("--since", help="Created within the last 10m, 2h, 1d …")] = None
    older_than: Annotated[float | None, time_option("--older-than", help="Created longer ago than 10m, 2h, 1d …")] = (
        None
    )
    limit: Annotated[int | None, option("--limit", "-n", min=1, help="At most so many, the oldest.")] = None
    dry_run: DryRunOption = False
    yes: YesOption = False

    @property
    def filters(self) -> ListKeywords:
        """The filters that were given."""
        given: ListKeywords = {
            "workflow": self.workflow, "status": self.status, "queue": self.queue, "reason": self.reason,
            "tag": self.tag, "key": self.key, "since": self.since, "older_than": self.older_than,
        }  # fmt: skip
        return given

    def is_made(self, ids: Sequence[str]) -> bool:
        """Whether runs are chosen rather than named. One of both has to be so."""
        made = any(value is not None for value in self.filters.values())
        if made and ids:
            raise ConfigurationError("name runs by their ids or choose them by --workflow, --status …, not both")
        if not made and not ids:
            raise ConfigurationError("which runs? Name them by their ids, or choose them by --workflow, --status …")
        if not made and (self.limit is not None or self.dry_run):
            raise ConfigurationError("--limit and --dry-run go with --workflow, --status …, not with ids")
        return made

    def narrowed(self, usual: Sequence[str]) -> list[ListKeywords]:
        """The filters for each status that is meant: the one that was given, or those the verb usually is about."""
        return [{**self.filters, "status": status} for status in ([self.status] if self.status else usual)]


def parameters() -> list[inspect.Parameter]:
    """The options as the parameters of a function."""
    kinds = get_type_hints(Choice, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=kinds[field.name]
        )
        for field in fields(Choice)
    ]


def taken_from(given: dict[str, Any]) -> Choice:
    """What was chosen; its options are taken out of what was given to a verb."""
    return Choice(**{field.name: given.pop(field.name) for field in fields(Choice)})


RunsOrChoice = Annotated[
    list[str] | None, typer.Argument(metavar="RUN...", help="Their ids, or the beginnings of them.")
]
