"""The rules by which storms over remote steps are judged."""

from __future__ import annotations

from tests.judge.evidence import Evidence, Run
from tests.judge.remote import RemoteScene, check

FAILED, DONE = ("failed", None, '{"type":"RemoteTimeout"}'), ("completed", '"nonce"', None)


def broken(workflow: str, *outcomes: tuple[str, str | None, str | None]) -> set[str]:
    """What is wrong with a run that failed, whose remote steps came to this."""
    evidence = Evidence(runs=[Run("r", workflow, "failed")])
    records = {("r", "", position): outcome for position, outcome in enumerate(outcomes)}
    return {violation.kind for violation in check(RemoteScene(evidence, [], [], records, set(), {}))}


def test_a_saga_may_fail_only_if_nothing_of_it_can_be_undone() -> None:
    assert "failed" in broken("saga", FAILED, DONE, FAILED)
    assert "failed" not in broken("saga", FAILED, FAILED, FAILED)


def test_what_has_nothing_to_undo_by_itself_may_not_fail() -> None:
    assert "failed" in broken("plain", FAILED)
