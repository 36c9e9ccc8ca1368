"""Options by the name that the measured version of Stepfast has for them.

A measurement may run on an earlier commit, from before an option got its present name.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

FORMER = {
    "inline_wait": "moment",
    "sweep_interval": "sweep",
    "poll_interval": "poll",
    "shutdown_grace": "grace",
}


def options_of(function: Any, **options: Any) -> dict[str, Any]:
    """Return the options, each by its former name where the function or class does not have the present one."""
    parameters = signature(function).parameters
    return {FORMER.get(name, name) if name not in parameters else name: value for name, value in options.items()}
