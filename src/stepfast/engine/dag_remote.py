"""``dag.remote``: a step of a declared graph that workers elsewhere serve."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

from ..errors import ConfigurationError
from .options import RemoteKeywords
from .remote_call import RemoteUndo
from .remote_order import remote_order, remote_undo
from .remote_undo import of_dag_step

Given = Callable[[Any], Any]

_ELSEWHERE = "stepfast_served_elsewhere"


class Served(NamedTuple):
    """The code of such a step: it sends the step out and waits for it; and its undo."""

    function: Callable[[Any], Awaitable[Any]]
    undo: RemoteUndo | None


def served_elsewhere(
    name: str, given: Given | None, before: Iterable[str], compensate: Any, options: RemoteKeywords, max_name: int
) -> Served:
    """A step by the name of its handler; ``given(ctx)`` makes its input, which otherwise is the input of the run and
    the outputs of the steps before it."""
    make = _usual(tuple(before)) if given is None else given
    remote_order(name, None, options, max_name, "dag.remote")  # what is wrong with it is told now
    if compensate is not None and not isinstance(compensate, str):
        raise ConfigurationError(f"compensate must be the name of a remote step here, not {compensate!r}")
    undo = None if compensate is None else remote_undo(compensate, options, of_dag_step(make), max_name)

    async def serve(ctx: Any) -> Any:
        return await ctx.remote(name, make(ctx), **options)

    setattr(serve, _ELSEWHERE, True)
    return Served(serve, undo)


def is_served_elsewhere(function: object) -> bool:
    """Whether the function of a step does nothing but send it out."""
    return getattr(function, _ELSEWHERE, False) is True


def _usual(before: tuple[str, ...]) -> Given:
    return lambda ctx: {
        "input": ctx.input,
        "outputs": {name: ctx.outputs[name] for name in before if name in ctx.outputs},
    }
