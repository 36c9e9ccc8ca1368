"""``--log-json``: one stream of JSON, with everything that the caller gave, by Python's own logging or by structlog."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog

from stepfast.cli.worker import log_to_stderr
from tests.support.logs import logging_as_before

Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def lines() -> Iterator[Lines]:
    """Set logging up as the worker does, and read what was written."""
    kept = io.StringIO()
    structlog.reset_defaults()
    with logging_as_before():
        logging.getLogger().handlers.clear()  # those that are there would be closed, and pytest uses them again
        log_to_stderr("info", as_json=True)
        [handler] = logging.getLogger().handlers
        assert isinstance(handler, logging.StreamHandler)
        handler.setStream(kept)
        yield lambda: [_without_time(json.loads(line)) for line in kept.getvalue().splitlines()]
    structlog.reset_defaults()


def _without_time(line: dict[str, Any]) -> dict[str, Any]:
    assert line.pop("time").endswith("Z")
    return line


def test_extra_is_written(lines: Lines) -> None:
    log = logging.getLogger("shop")
    log.info("sold %d", 2, extra={"order": "o-1", "items": [1, 2], "level": "gold", "run_id": "r"})
    assert lines() == [
        {
            "level": "info", "logger": "shop", "message": "sold 2", "run_id": "r", "order": "o-1", "items": [1, 2],
            "level_": "gold",
        }
    ]  # fmt: skip


def test_structlog_joins_the_stream(lines: Lines) -> None:
    log = structlog.get_logger("shop").bind(order="o-1")
    with structlog.contextvars.bound_contextvars(customer="ada"):
        log.info("sold", name="shoes", cents=500)
    log.debug("not asked for")
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("failed")
    sold, failed = lines()
    assert sold == {
        "level": "info", "logger": "shop", "message": "sold", "order": "o-1", "customer": "ada",
        "name": "shoes", "cents": 500,
    }  # fmt: skip
    assert (failed["level"], failed["message"]) == ("error", "failed")
    assert "ValueError: broken" in failed["exception"]


def test_the_bridge_by_extra_is_written_too(lines: Lines) -> None:
    structlog.configure(
        processors=[structlog.stdlib.render_to_log_kwargs],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    structlog.get_logger("shop").info("sold", order="o-1")
    assert lines() == [{"level": "info", "logger": "shop", "message": "sold", "order": "o-1"}]


def test_what_is_no_json_costs_no_line(lines: Lines) -> None:
    class Odd:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    logging.getLogger("shop").info("sold", extra={"odd": Odd(), "keys": {Odd: 1}, "lone": "\ud800"})
    [line] = lines()
    assert (line["message"], line["odd"], line["lone"]) == ("sold", "<Odd>", "\\ud800")
