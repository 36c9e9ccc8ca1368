"""``debounce=`` of a start: what goes with it, and what does not."""

from __future__ import annotations

from typing import Any

from .engine.options import ChildKeywords, Seconds
from .errors import ConfigurationError
from .model.backoff import seconds
from .model.transitions.start import Debounce
from .planning import Plan


def check_debounce(
    debounce: Seconds | None, longest: Seconds | None, key: str | None, connection: Any, options: ChildKeywords
) -> Debounce | None:
    """What was asked for, or an error that says why it cannot be; None: a start like any other."""
    if debounce is None:
        if longest is not None:
            raise ConfigurationError("debounce_max goes with debounce: start(…, key=…, debounce=5, debounce_max=60)")
        return None
    if key is None:
        raise ConfigurationError("debounce goes with a key: start(…, key=…, debounce=5). Starts of one key are one run")
    if connection is not None:
        raise ConfigurationError(
            "a start with debounce cannot join a transaction: it changes the run that waits, and would keep it locked "
            "for as long as yours is open. Start it after your commit"
        )
    for name in ("delay", "at"):
        if options.get(name) is not None:
            raise ConfigurationError(f"a start takes debounce or {name}, not both: debounce says when it is due")
    wait, most = seconds(debounce, "debounce"), None if longest is None else seconds(longest, "debounce_max")
    if wait == 0:
        raise ConfigurationError("debounce must be more than 0 seconds")
    if most is not None and most < wait:
        raise ConfigurationError(f"debounce_max ({most:g} s) must not be shorter than debounce ({wait:g} s)")
    return Debounce(max(1, int(wait * 1000)), None if most is None else int(most * 1000))


def debounced(plan: Plan, debounce: Debounce) -> Plan:
    """The plan of a start that waits. A dag run has begun when it is started, and cannot be changed any more."""
    if plan.graph is not None:
        raise ConfigurationError(
            f"{plan.shape.workflow!r} is a dag, whose start takes no debounce: debounce a task that starts it"
        )
    return plan._replace(shape=plan.shape._replace(delay_ms=debounce.wait_ms))
