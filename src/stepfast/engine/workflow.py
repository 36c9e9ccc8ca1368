"""Registered code: tasks and workflows, and what is stored of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, Unpack

import msgspec

from ..errors import ConfigurationError
from ..model.backoff import Backoff, check_backoff, seconds
from ..model.names import check_name, check_queue, refuse_unknown
from ..model.payload import json_schema
from ..model.rows import Definition
from ..model.status import TASK
from .function_spec import (
    check_types,
    code_version,
    input_parameter,
    input_type,
    is_async,
    mark_async,
    module_of,
    name_of,
    return_type,
)
from .options import WorkflowKeywords
from .step import under_step

I = TypeVar("I", contravariant=True)  # noqa: E741
O = TypeVar("O", covariant=True)  # noqa: E741


@dataclass(frozen=True, slots=True)
class WorkflowOptions:
    """What can be set for a task or workflow; None: the application's default."""

    queue: str | None = None
    max_attempts: int | None = None
    timeout: float | None = None
    deadline: float | None = None
    backoff: Backoff | None = None


def workflow_options(said_by: str, **given: Unpack[WorkflowKeywords]) -> WorkflowOptions:
    """Checked options; the name is not among them. How long a name may be is known to the application."""
    refuse_unknown(said_by, given, WorkflowKeywords.__annotations__)
    queue, timeout, deadline = given.get("queue"), given.get("timeout"), given.get("deadline")
    if queue is not None:
        check_queue(queue)
    check_attempts(given.get("max_attempts"))
    return WorkflowOptions(
        queue,
        given.get("max_attempts"),
        None if timeout is None else seconds(timeout, "timeout"),
        None if deadline is None else seconds(deadline, "deadline"),
        check_backoff(given.get("backoff")),
    )


def check_attempts(value: int | None) -> None:
    """At least one attempt, or nothing would ever run."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31):
        raise ConfigurationError(f"max_attempts must be a whole number of at least 1, not {value!r}")


def spoken(kind: str) -> str:
    """A kind of workflow as a sentence names it."""
    return kind.replace("_", " ")


class Workflow(Generic[I, O]):
    """One registered task or workflow. Calling it calls the plain function."""

    def __init__(
        self,
        function: Callable[..., Any],
        kind: str,
        name: str | None,
        options: WorkflowOptions,
        scope: dict[str, Any] | None = None,
    ) -> None:
        self.function = function = under_step(function, spoken(kind))
        self.kind = kind
        self.name = check_name(name or name_of(function), f"the name of a {spoken(kind)}")
        self.dag = self.name
        """The dag whose graph its runs follow, if they follow one: itself, or that of which it is a step."""
        self.options = options
        self.is_async = is_async(function)
        self.takes_input, self.input_type = self._input(scope)
        self.output_type = return_type(function, scope)
        self.version = code_version(function)
        self.module = module_of(function)
        check_types({"the input": self.input_type, "the result": self.output_type}, spoken(kind), function)
        self.__name__ = self.name
        self.__doc__ = function.__doc__
        if self.is_async:
            mark_async(self)

    @property
    def queue(self) -> str:
        """Where its runs wait: by default the queue of the same name."""
        return self.options.queue or self.name

    def definition(self) -> Definition:
        """What is stored of it."""
        options = {
            "max_attempts": self.options.max_attempts,
            "timeout": self.options.timeout,
            "deadline": self.options.deadline,
            "takes_input": self.takes_input,
        }
        schema = json_schema(self.input_type) if self.takes_input else None
        text = msgspec.json.encode(options).decode()
        return Definition(self.name, self.version, self.kind, self.queue, text, schema)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function directly: nothing is recorded."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name}>"

    def _input(self, scope: dict[str, Any] | None) -> tuple[bool, Any]:
        """Whether the function takes an input, and of which type."""
        parameter = input_parameter(self.function, spoken(self.kind), self.kind != TASK, scope)
        if parameter is None:
            return False, type(None)
        return True, input_type(self.function, parameter, scope)
