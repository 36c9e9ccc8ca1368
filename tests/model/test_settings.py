"""Settings: defaults, the environment, and what is passed, in this order."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from stepfast import ConfigurationError, Settings, Stepfast


def test_the_environment_goes_before_defaults_and_behind_what_is_passed() -> None:
    environ = {"STEPFAST_LEASE": "12.5", "STEPFAST_MAX_ATTEMPTS": "7", "STEPFAST_RECORD_ARGUMENTS": "no", "OTHER": "x"}
    found = Settings.from_environment(environ, max_attempts=9)
    assert (found.lease, found.max_attempts, found.record_arguments) == (12.5, 9, False)
    assert found.poll_interval == Settings().poll_interval


def test_every_setting_can_be_set_in_the_environment() -> None:
    for field in dataclasses.fields(Settings):
        default = getattr(Settings(), field.name)
        text = "true" if isinstance(default, bool) else "9" if field.name == "heartbeat" else "11"
        found = Settings.from_environment({f"STEPFAST_{field.name.upper()}": text})
        assert getattr(found, field.name) == (True if text == "true" else float(text)), field.name


@pytest.mark.parametrize(
    ("name", "text"), [("LEASE", "long"), ("CONCURRENCY", "1.5"), ("RECORD_ARGUMENTS", "maybe"), ("POLL_INTERVAL", "")]
)
def test_what_cannot_be_read_is_refused_by_the_name_of_the_variable(name: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"STEPFAST_{name}"):
        Settings.from_environment({f"STEPFAST_{name}": text})


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"lease": -1}, "lease"),
        ({"concurrency": 0}, "concurrency"),
        ({"lease": 5, "heartbeat": 5}, "heartbeat"),
        ({"lease": 5, "heartbeat": 6}, "heartbeat"),
        ({"lease": 0}, "heartbeat"),
        ({"lease": "3"}, "lease must be a number, not '3'"),
        ({"lease": float("nan")}, "lease must be a number"),
        ({"lease": True}, "lease must be a number"),
        ({"lease": None}, "lease must be a number"),
        ({"heartbeat": "1"}, "heartbeat must be a number"),
        ({"concurrency": 1.5}, "concurrency must be a whole number"),
        ({"record_arguments": 1}, "record_arguments must be True or False"),
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_refused(options: dict[str, Any], why: str) -> None:
    """Stale must be greater than heartbeat."""
    with pytest.raises(ConfigurationError, match=why):
        Settings(**options)


def test_the_retention_is_a_span_or_none() -> None:
    assert (Settings().retention, Settings().retention_failed) == (30 * 86400, 90 * 86400)
    assert Settings(retention=timedelta(hours=1), retention_failed=None).retention == 3600
    found = Settings.from_environment({"STEPFAST_RETENTION": "none", "STEPFAST_RETENTION_FAILED": "60"})
    assert (found.retention, found.retention_failed) == (None, 60)
    with pytest.raises(ConfigurationError, match="retention must not be negative"):
        Settings(retention=timedelta(days=-1))


def test_the_heartbeat_is_a_third_of_the_lease_unless_told() -> None:
    assert Settings(lease=30).beat == 10
    assert Settings(lease=30, heartbeat=7).beat == 7


def test_a_misspelt_variable_is_told_once_with_the_nearest_name(caplog: pytest.LogCaptureFixture) -> None:
    misspelt = {"STEPFAST_LEESE": "3", "STEPFAST_URLS": "x", "STEPFAST_CONSOLE_TOKENS": "t"}
    environ = {**misspelt, "STEPFAST_IMAGE": "y", "OTHER_LEESE": "3", "STEPFAST_CONSOLE_TOKEN": "t"}
    for _ in range(2):
        assert Settings.from_environment(environ) == Settings()
    assert sorted(record.getMessage() for record in caplog.records) == [
        "the environment variable STEPFAST_CONSOLE_TOKENS sets nothing; did you mean STEPFAST_CONSOLE_TOKEN?",
        "the environment variable STEPFAST_LEESE sets nothing; did you mean STEPFAST_LEASE?",
        "the environment variable STEPFAST_URLS sets nothing; did you mean STEPFAST_URL?",
    ]


@pytest.mark.parametrize("settings", [{}, {"lease": 3}, "lease"], ids=repr)
def test_an_application_takes_nothing_else_for_settings(settings: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"settings=Settings\("):
        Stepfast("sqlite://", settings=settings)
