"""Which statement lists runs, by what they are narrowed by."""

from __future__ import annotations

from ...model.status import AT_REST, RUNNING


def page_statement(tag: str | None, status: str | None, workflow: str | None) -> str:
    """The statement that starts from the narrowest index the filters allow."""
    if tag is not None:
        return "runs_tagged"
    if status == RUNNING:
        return "runs_running"
    if status in AT_REST:
        return "runs_at_rest"
    return "runs" if workflow is None else "runs_of_workflow"
