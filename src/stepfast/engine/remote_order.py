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
"""Characters in a name and a group."""
NO_PARTITION = frozenset({None, "", "default"})
"""Partitions that leave the group as it is."""
_GROUP = "the group of a remote step"


def remote_order(name: str, input: Any, given: RemoteKeywords, said_by: str = "ctx.remote") -> Order:
    """What is to be done, by whom and how."""
    refuse_unknown(said_by, given, RemoteKeywords.__annotations__)
    check_name(name, "the name of a remote step", LONGEST)
    retries, timeout, type_ = given.get("retries", 0), given.get("timeout"), given.get("type", Any)
    if isinstance(retries, bool) or not isinstance(retries, int) or not 0 <= retries < 2**31:
        raise ConfigurationError(f"retries must be a whole number of zero or more, not {retries!r}")
    if type_ is not Any:
        check_type(type_, f"the output of remote step {name!r}")
    limit = None if timeout is None else int(seconds(timeout, f"the timeout of {said_by}") * 1000)
    group = _group(name, given)
    undo = _undo(name, input, given)
    return Order(name, group, input, type_, retries, check_backoff(given.get("backoff")), limit, undo)


def remote_undo(name: str, given: RemoteKeywords, make: Callable[..., Any]) -> RemoteUndo:
    """The undo of a step, served by the same workers if the step names a group, and by its own group if not."""
    check_name(name, "the name of a remote undo", LONGEST)
    return RemoteUndo(name, _group(name, given), make)


def _undo(name: str, input: Any, given: RemoteKeywords) -> Callable[..., Any] | None:
    undo = given.get("compensate")
    if undo is None:
        return None
    if isinstance(undo, str):
        return remote_undo(undo, given, of_input_and_output)
    if not callable(undo):
        raise ConfigurationError(f"compensate must be a function, or the name of a remote step, not {undo!r}")
    check_undo_call(undo, name, (input,), {})
    return undo


def _group(name: str, given: RemoteKeywords) -> str:
    """As every engine of the contract spells it: the name of the step with a hyphen in place of each colon, and the
    partition behind it. A group that is named may have its partition with it already."""
    partition, named = given.get("partition"), given.get("group")
    base, at, behind = (name, "", "") if not named else check_name(named, _GROUP, LONGEST).partition("@")
    token = base.replace(":", "-") + at + behind
    if partition not in NO_PARTITION:
        token = f"{token}@{check_name(partition, 'the partition of a remote step', LONGEST)}"
    if token != token.strip():
        raise ConfigurationError(
            f"the group {token!r} begins or ends with blanks, which some databases ignore: leave them out"
        )
    return check_name(token, f"{_GROUP}, with its partition,", LONGEST)
