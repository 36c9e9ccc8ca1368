"""Which queues remote steps go over: names, URLs and the parameters of ``sqs://…``.

A module of its own because it needs no SDK: a worker's address is checked when the worker is made.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

from ...errors import ConfigurationError
from ...model.urls import redact
from ..protocol import DEFAULT_PREFIX, check_prefix

_QUEUE_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")
_REGION = re.compile(r"[a-z0-9-]*")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_ATTRIBUTE = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_PARAMETERS = ("endpoint_url", "marker", "bucket", "fifo", "results_url")
_FIFO = ".fifo"


class SqsLocation(NamedTuple):
    """The queues of one prefix. Credentials, and what is None here, come from the SDK's own chain."""

    region: str | None = None
    endpoint_url: str | None = None
    prefix: str = DEFAULT_PREFIX
    queue_urls: Mapping[str, str] = {}
    """Queues that exist already: the group, and the URL of its tasks."""
    results_url: str | None = None
    marker: str | None = None
    """A message attribute that all messages carry, where a queue is shared with others: messages without it are left
    to them."""
    bucket: str | None = None
    """Where bodies go that are too large for a queue."""
    fifo: bool = False

    def tasks_name(self, group: str) -> str:
        """The name of a group's queue."""
        return self._queue_name(f"{self.prefix}-tasks-{group}", f"queue_urls={{{group!r}: …}}")

    def results_name(self) -> str:
        """The name of the queue of results."""
        return self._queue_name(f"{self.prefix}-results", "results_url=…")

    def dead_name(self) -> str:
        """The name of the queue of messages that no worker or engine can use."""
        return self._queue_name(f"{self.prefix}-dead", "a redrive policy")

    def _queue_name(self, name: str, otherwise: str) -> str:
        ending = _FIFO if self.fifo else ""
        if not _QUEUE_NAME.fullmatch(name) or len(name + ending) > 80:
            raise ConfigurationError(
                f"{name + ending!r} cannot be the name of a queue of SQS: it takes letters, digits, hyphens and "
                f"underscores, at most 80. Name an existing queue by {otherwise}, or choose another group"
            )
        return name + ending


def checked(where: SqsLocation) -> SqsLocation:
    """The same, refused if it could never work."""
    check_prefix(where.prefix)
    for url in (*where.queue_urls.values(), where.results_url, where.endpoint_url):
        if url is not None and (not isinstance(url, str) or urlsplit(url).scheme not in ("http", "https")):
            raise ConfigurationError(f"{url!r} is not the URL of a queue or of an endpoint: it begins with https://")
    if where.region is not None and not _REGION.fullmatch(where.region):
        raise ConfigurationError(f"{where.region!r} is not a region: write one as eu-central-1")
    if where.marker is not None and not _ATTRIBUTE.fullmatch(where.marker):
        raise ConfigurationError(f"{where.marker!r} cannot be the name of a message attribute (marker)")
    if where.bucket is not None and not _BUCKET.fullmatch(where.bucket):
        raise ConfigurationError(f"{where.bucket!r} cannot be the name of an S3 bucket")
    return where


def parse_sqs_url(text: str, prefix: str, queue_urls: Mapping[str, str] | None = None) -> SqsLocation:
    """The queues that a worker's URL names: ``sqs://region?endpoint_url=…&marker=…&bucket=…&fifo=true``."""
    try:
        parts = urlsplit(text)
        given = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        raise _unreadable(text) from None
    if "@" in parts.netloc:
        raise ConfigurationError(
            "an sqs:// URL has no user or password: credentials come from the usual chain of the AWS SDK (environment, "
            "shared files, role of the instance, container or web identity)"
        )
    if parts.path.strip("/") or parts.fragment:
        raise _unreadable(text)
    for name in given:
        if name not in _PARAMETERS:
            raise ConfigurationError(
                f"the URL {redact(text)!r} has a parameter that is not known here; there are {', '.join(_PARAMETERS)}"
            )
    fifo = given.pop("fifo", "false").lower()
    if fifo not in ("true", "false", "1", "0"):
        raise ConfigurationError(f"fifo={fifo} in {redact(text)!r}: write fifo=true or fifo=false")
    return checked(
        SqsLocation(
            region=parts.netloc or None,
            prefix=prefix,
            queue_urls=dict(queue_urls or {}),
            fifo=fifo in ("true", "1"),
            **given,
        )
    )


def _unreadable(text: str) -> ConfigurationError:
    return ConfigurationError(
        f"the URL {redact(text)!r} cannot be read: write sqs://REGION, with parameters as in "
        "sqs://eu-central-1?marker=durable; queues that exist already are named by queue_urls="
    )
