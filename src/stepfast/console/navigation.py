"""The pages that stand at the top of every page, in their order: their name, and the first part of their address."""

from __future__ import annotations

NAVIGATION = (
    ("Runs", "runs"),
    ("Queues", "queues"),
    ("Workers", "workers"),
    ("Schedules", "schedules"),
    ("Failures", "failures"),
    ("System", "system"),
    ("Audit", "audit"),
    ("Start", "start"),
)
