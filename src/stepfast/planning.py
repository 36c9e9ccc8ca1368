"""What a start is made of: the rows to be inserted, checked against the code or, without it, against its definition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from .engine.dag import Dag
from .engine.options import ChildKeywords, Seconds
from .engine.workflow import Workflow, check_attempts
from .errors import ConfigurationError, InvalidInput, UnknownOption, UnknownWorkflow
from .model.backoff import check_priority, seconds, to_milliseconds
from .model.graph import Graph
from .model.ids import child_id
from .model.names import check_name, check_queue
from .model.payload import Payloads
from .model.payload_check import first_problem
from .model.records import NewDagStep, NewRun, Parent, RunShape
from .model.rows import Definition
from .settings import Settings

if TYPE_CHECKING:
    from .connected import Connected


class Plan(NamedTuple):
    """What the starts of one call have in common."""

    shape: RunShape
    encode: Callable[[Any], str]
    output_type: Any
    graph: Graph | None = None
    brings_graph: bool = False
    """Whether each run brings a copy of its graph along: the definition may not be stored yet."""

    def runs(self, run_id: str, input: Any, key: str | None = None, parent: Parent | None = None) -> list[NewRun]:
        """The rows of one start: a run, and for a dag its steps."""
        return self.rows(run_id, self.encode(input), key, parent)

    def rows(self, run_id: str, text: str, key: str | None = None, parent: Parent | None = None) -> list[NewRun]:
        """The rows of one start whose input was checked and encoded before."""
        if self.graph is None:
            return [NewRun(run_id, self.shape, text, key, parent)]
        graph = self.graph
        run = NewRun(run_id, self.shape, text, key, parent, graph=graph.version, steps=len(graph.dag_steps))
        if self.brings_graph:
            run.graph_text = graph.text
        return [run, *(self._step(run_id, name, graph) for name in graph.dag_steps)]

    def _step(self, dag_id: str, name: str, graph: Graph) -> NewRun:
        dag_step = graph.dag_steps[name]
        shape = self.shape._replace(
            workflow=f"{self.shape.workflow}/{name}",
            deadline_ms=None,
            max_attempts=(dag_step.retries or 0) + 1,
            timeout_ms=None if dag_step.timeout is None or dag_step.kind != "step" else int(dag_step.timeout * 1000),
            tags=(),
        )
        new = NewDagStep(dag_id, name, len(graph.dependencies(name)))
        return NewRun(child_id(dag_id, name, 0), shape, "null", graph=graph.version, dag_step=new)


class Planner:
    """Makes plans of starts: checks what was given, and finds what the rows are to hold."""

    def __init__(self, workflows: dict[str, Workflow[Any, Any]], payloads: Payloads, settings: Settings) -> None:
        self._workflows = workflows
        self._payloads = payloads
        self._settings = settings
        self._usual: dict[Workflow[Any, Any], Plan] = {}
        """The plans of starts without options, which are the same each time. A dag may still grow."""

    @property
    def names(self) -> list[str]:
        """The workflows whose code is here."""
        return list(self._workflows)

    async def plan(
        self, connected: Connected, workflow: Workflow[Any, Any] | str, options: ChildKeywords, joins: bool = False
    ) -> Plan:
        """What the starts of one call have in common. ``joins``: they join a transaction of the caller's, whose
        connection may be the only one there is, so that nothing may be waited for."""
        code = self.code(workflow)
        if code is None:
            return self._plan_by_name(await connected.definition(str(workflow), list(self._workflows)), options)
        if not options and code in self._usual and connected.has_stored(code):
            return self._usual[code]
        graph = code.graph if isinstance(code, Dag) else None
        if joins:
            connected.store_definitions_soon([code])
        else:
            await connected.store_definitions([code])
        plan = self.plan_code(code, options)
        if graph is not None:
            return plan._replace(graph=graph, brings_graph=not connected.has_stored(code))
        if not options:
            self._usual[code] = plan
        return plan

    def plan_code(self, code: Workflow[Any, Any], options: ChildKeywords) -> Plan:
        """For code that is here; of a dag without its graph, which may not be complete yet."""
        if isinstance(code, Dag):
            _refuse_for_dag(code.name, options)
        shape = self._shape(Declared(code.name, code.version, code.queue, code.options.deadline), options)

        def encode(value: Any) -> str:
            if not code.takes_input:
                _refuse_input(value, code.name)
            return self._payloads.check_input(value, code.input_type, code.name)

        return Plan(shape, encode, code.output_type)

    def code(self, workflow: Workflow[Any, Any] | str) -> Workflow[Any, Any] | None:
        """The code that is meant; None: it is named, and not here."""
        if isinstance(workflow, str):
            return self._workflows.get(workflow)
        if not isinstance(workflow, Workflow):
            raise ConfigurationError(f"start takes a workflow or its name, not {workflow!r}")
        if self._workflows.get(workflow.name) is not workflow:
            raise UnknownWorkflow(workflow.name, list(self._workflows))
        return workflow

    def _plan_by_name(self, definition: Definition, options: ChildKeywords) -> Plan:
        """A trigger without the code: checked against the stored definition."""
        name = definition.name
        if definition.graph is not None:
            _refuse_for_dag(name, options)
        declared = msgspec.json.decode(definition.options)
        schema = None if definition.input_schema is None else msgspec.json.decode(definition.input_schema)
        shape = self._shape(Declared(name, definition.version, definition.queue, declared.get("deadline")), options)

        def encode(value: Any) -> str:
            if not declared.get("takes_input", True):
                _refuse_input(value, name)
            text = self._payloads.check_input(value, Any, name)
            if schema is not None:
                plain = self._payloads.plain(text, self._payloads.format, "the input")
                problem = first_problem(plain, schema)
                if problem is not None:
                    raise InvalidInput(f"the input of {name!r} does not fit: {problem}")
            return text

        return Plan(shape, encode, Any, None if definition.graph is None else Graph.from_text(definition.graph))

    def _shape(self, declared: Declared, given: ChildKeywords) -> RunShape:
        """What the rows of a start have in common: what was given, and else what is declared."""
        _check_start(given)
        queue, deadline, at = given.get("queue"), given.get("deadline"), given.get("at")
        limit, longest = (
            declared.deadline if deadline is None else seconds(deadline, "deadline"),
            self._settings.max_name,
        )
        return RunShape(
            declared.name,
            declared.version,
            declared.queue if queue is None else check_queue(queue, longest),
            given.get("priority", 0),
            _milliseconds(given.get("delay"), "delay") or 0,
            None if at is None else to_milliseconds(at, "at"),
            _milliseconds(given.get("expires_in"), "expires_in"),
            None if limit is None else int(limit * 1000),
            given.get("max_attempts"),
            _milliseconds(given.get("timeout"), "timeout"),
            tuple(dict.fromkeys(check_name(tag, "a tag", longest) for tag in given.get("tags", ()))),
            None if (key := given.get("concurrency_key")) is None else check_name(key, "concurrency_key", longest),
            format=self._payloads.format,
        )


class Declared(NamedTuple):
    """What the code, or its definition, says of every run."""

    name: str
    version: str
    queue: str
    deadline: float | None


def _check_start(given: ChildKeywords) -> None:
    """What cannot work is refused, whichever workflow is started."""
    check_priority(given.get("priority", 0))
    tags = given.get("tags", ())
    if given.get("delay") is not None and given.get("at") is not None:
        raise ConfigurationError("a start takes delay or at, not both")
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise ConfigurationError(f"tags must be a list of strings, not {tags!r}")
    check_attempts(given.get("max_attempts"))


ONE_INPUT = "; the input is one value, before the options: a dict, a dataclass"
"""What is said beside an option that a start does not have: it may be meant as a part of the input."""


def refuse_more(called: str, taken: str, more: tuple[Any, ...]) -> None:
    """Refuse further inputs: a run has one."""
    if more:
        raise UnknownOption(
            f"{called} takes one {taken}, but was given {1 + len(more)} of them. Pass what a run needs as one value: a "
            "dict, a tuple, a dataclass. Options go by name"
        )


def told_otherwise(runs: Sequence[NewRun], payloads: Payloads) -> list[str]:
    """The keys that were used before, for a run with another input: what was given now is used for nothing."""
    return [run.key for run in runs if run.earlier is not None and run.key is not None and _differs(run, payloads)]


def _differs(run: NewRun, payloads: Payloads) -> bool:
    assert run.earlier is not None
    earlier, format_ = run.earlier
    if earlier == run.input:
        return False
    try:  # the same may be written in another order, or sealed anew
        return bool(payloads.plain(earlier, format_, "") != payloads.plain(run.input, run.shape.format, ""))
    except Exception:  # a codec of the user's has a word in it
        return False


def _milliseconds(value: Seconds | None, what: str) -> int | None:
    return None if value is None else int(seconds(value, what) * 1000)


def _refuse_for_dag(name: str, options: ChildKeywords) -> None:
    """Options that belong to each step of a dag, and would have no effect on its run."""
    for option in ("max_attempts", "timeout"):
        if options.get(option) is not None:
            raise ConfigurationError(
                f"{name!r} is a dag, whose start takes no {option}: say it at each step, "
                f"@dag.step({'timeout' if option == 'timeout' else 'retries'}=…). A deadline holds for the whole run"
            )


def _refuse_input(value: Any, name: str) -> None:
    if value is not None:
        raise InvalidInput(f"{name!r} takes no input, but was given a {type(value).__name__}")
