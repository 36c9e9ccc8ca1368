"""What ``ctx.remote`` and ``dag.remote`` are given: checked before anything is sent.

A column of the transport keeps 191 characters, and some servers cut longer ones off without a word.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import ConfigurationError
from ..model.backoff import check_backoff, seconds
from ..model.names import check_name, refuse_unknown
from ..model.payload import check_type
from .declaring import check_undo_call
from .options import RemoteKeywords
from .remote_call import Order, RemoteUndo
from .remote_undo import of_input_and_output

LONGEST = 191
"""Characters in a name and a group, where the application has no lower limit of its own (``max_name``)."""
NO_PARTITION = frozenset({None, "", "default"})
"""Partitions that leave the group as it is."""
_GROUP = "the group of a remote step"


def remote_order(name: str, input: Any, given: RemoteKeywords, max_name: int, said_by: str = "ctx.remote") -> Order:
    """What is to be done, by whom and how."""
    refuse_unknown(said_by, given, RemoteKeywords.__annotations__)
    _checked(name, "the name of a remote step", max_name)
    retries, timeout, type_ = given.get("retries", 0), given.get("timeout"), given.get("type", Any)
    if isinstance(retries, bool) or not isinstance(retries, int) or not 0 <= retries < 2**31:
        raise ConfigurationError(f"retries must be a whole number of zero or more, not {retries!r}")
    if type_ is not Any:
        check_type(type_, f"the output of remote step {name!r}")
    limit = None if timeout is None else int(seconds(timeout, f"the timeout of {said_by}") * 1000)
    group = _group(name, given, max_name)
    undo = _undo(name, input, given, max_name)
    return Order(name, group, input, type_, retries, check_backoff(given.get("backoff")), limit, undo)


def remote_undo(name: str, given: RemoteKeywords, make: Callable[..., Any], max_name: int) -> RemoteUndo:
    """The undo of a step, served by the same workers if the step names a group, and by its own group if not."""
    _checked(name, "the name of a remote undo", max_name)
    return RemoteUndo(name, _group(name, given, max_name), make)


def _undo(name: str, input: Any, given: RemoteKeywords, max_name: int) -> Callable[..., Any] | None:
    undo = given.get("compensate")
    if undo is None:
        return None
    if isinstance(undo, str):
        return remote_undo(undo, given, of_input_and_output, max_name)
    if not callable(undo):
        raise ConfigurationError(f"compensate must be a function, or the name of a remote step, not {undo!r}")
    check_undo_call(undo, name, (input,), {})
    return undo


def _group(name: str, given: RemoteKeywords, max_name: int) -> str:
    """As every engine of the contract spells it: the name of the step with a hyphen in place of each colon, and the
    partition behind it. A group that is named may have its partition with it already."""
    partition, named = given.get("partition"), given.get("group")
    base, at, behind = (name, "", "") if not named else _checked(named, _GROUP, max_name).partition("@")
    token = base.replace(":", "-") + at + behind
    if partition not in NO_PARTITION:
        token = f"{token}@{_checked(partition, 'the partition of a remote step', max_name)}"
    if token != token.strip():
        raise ConfigurationError(
            f"the group {token!r} begins or ends with blanks, which some databases ignore: leave them out"
        )
    return _checked(token, f"{_GROUP}, with its partition,", max_name)


def _checked(name: object, what: str, max_name: int) -> str:
    """A name that both the transport and the application keep whole."""
    return check_name(name, what, min(LONGEST, max_name))
