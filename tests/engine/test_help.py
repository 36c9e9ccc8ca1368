"""What `help` shows of the calls that users make: every option by its name."""

from __future__ import annotations

import inspect
import pydoc
from typing import Any

import pytest

import stepfast
from stepfast import Context, Dag, Stepfast, SyncContext
from stepfast.engine import options
from stepfast.filters import ListKeywords
from stepfast.model.queue_config import LimitKeywords
from stepfast.registry import TaskDecorator, WorkflowDecorator
from stepfast.sync import SyncApp
from stepfast.testing import Lab

FACES = [Stepfast, SyncApp, Context, SyncContext, Dag, Lab, TaskDecorator, WorkflowDecorator]


@pytest.mark.parametrize(
    ("call", "keywords"),
    [
        (Stepfast.start, options.StartKeywords),
        (Stepfast.start_many, options.StartManyKeywords),
        (Stepfast.runs, ListKeywords),
        (Stepfast.schedule, options.ScheduleKeywords),
        (Stepfast.put_schedule, options.ScheduleKeywords),
        (Stepfast.worker, options.WorkerKeywords),
        (Stepfast.queue, LimitKeywords),
        (TaskDecorator.__call__, options.WorkflowKeywords),
        (WorkflowDecorator.__call__, options.WorkflowKeywords),
        (Context.start, options.ChildKeywords),
        (Context.remote, options.RemoteKeywords),
        (SyncContext.call, options.ChildKeywords),
        (Context.options, options.StepKeywords),
        (Dag.step, options.DagStepKeywords),
        (Lab.start, options.StartKeywords),
        (stepfast.step, options.StepKeywords),
    ],
)
def test_a_call_shows_every_option(call: Any, keywords: Any) -> None:
    parameters = inspect.signature(call).parameters
    assert set(keywords.__annotations__) <= set(parameters)
    assert not [each for each in parameters.values() if each.kind is each.VAR_KEYWORD]


def test_no_call_of_the_public_classes_hides_its_options() -> None:
    hidden = [
        f"{face.__name__}.{name}"
        for face in FACES
        for name, member in inspect.getmembers(face, inspect.isfunction)
        if not name.startswith("_")
        for each in inspect.signature(member).parameters.values()
        if each.kind is each.VAR_KEYWORD and "Unpack" in str(each.annotation)
    ]
    assert hidden == []


def test_help_reads_as_a_user_writes_the_call() -> None:
    text = pydoc.plain(pydoc.render_doc(Stepfast.start))
    assert "key: 'str | None' = None" in text
    assert "priority: 'int' = ..." in text


@pytest.mark.parametrize("decorator", ["task", "workflow"])
def test_the_decorators_name_their_options(decorator: str) -> None:
    app = Stepfast("sqlite://")
    told = inspect.getdoc(getattr(Stepfast, decorator)) or ""
    assert {name for name in options.WorkflowKeywords.__annotations__ if f"``{name}``" not in told} == set()
    assert "max_attempts" in pydoc.plain(pydoc.render_doc(getattr(app, decorator)))
