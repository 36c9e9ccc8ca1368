"""The files for deployment fit the command line, the health port and the tables that there are."""

from __future__ import annotations

import configparser
import json
import re
import shlex
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import yaml  # type: ignore[import-untyped]
from typer.main import get_command

from stepfast import Settings, Stepfast
from stepfast.cli import cli, project
from stepfast.telemetry.health import LIVE, READY

DEPLOY = Path(__file__).parents[2] / "deploy"


def check_command(words: list[str]) -> dict[str, Any]:
    """The command line takes it; its options."""
    program, verb, *arguments = words
    assert program.rpartition("/")[2] == "stepfast"
    command = get_command(cli).commands[verb]  # type: ignore[attr-defined]
    given: dict[str, Any] = command.make_context(verb, list(arguments), resilient_parsing=False).params
    return given


def manifests(name: str) -> dict[str, Any]:
    return {found["kind"]: found for found in yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text())}


def test_the_unit_of_systemd_waits_for_handlers() -> None:
    unit = configparser.ConfigParser(strict=True, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "systemd" / "stepfast-worker.service")
    service = unit["Service"]
    assert check_command(shlex.split(service["ExecStart"]))["processes"] == 2
    assert int(service["TimeoutStopSec"]) > Settings().shutdown_grace and service["KillMode"] == "mixed"


def test_the_image_is_made_of_what_a_new_project_has() -> None:
    lines = (DEPLOY / "docker" / "Dockerfile").read_text().splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    copied = [words.split()[0] for step, words in steps if step == "COPY"]
    assert copied == ["requirements.txt", "."] and "requirements.txt" in project._FILES
    assert "stepfast[" in project._FILES["requirements.txt"]
    command = json.loads(dict(steps)["CMD"])
    options = check_command(command)
    assert options["health_host"] == "0.0.0.0" and str(options["health_port"]) == dict(steps)["EXPOSE"]
    assert command[2].partition(":")[0] + ".py" in project._FILES


def test_workers_in_kubernetes_have_probes_that_are_answered() -> None:
    found = manifests("worker.yaml")
    pod = found["Deployment"]["spec"]["template"]["spec"]
    [worker] = pod["containers"]
    options = check_command(worker["command"] + worker["args"])
    assert [port["containerPort"] for port in worker["ports"]] == [options["health_port"]]
    assert worker["livenessProbe"]["httpGet"]["path"] in LIVE
    assert {worker[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe")} <= set(READY)
    assert pod["terminationGracePeriodSeconds"] > Settings().shutdown_grace
    [job] = found["Job"]["spec"]["template"]["spec"]["containers"]
    check_command(job["command"])
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"].items() <= labels.items()


@pytest.mark.enough_on("postgres")
async def test_keda_asks_what_the_tables_answer(postgres_url: str) -> None:
    [trigger] = manifests("keda.yaml")["ScaledObject"]["spec"]["triggers"]
    async with Stepfast(postgres_url) as app:
        app.task(name="nothing")(lambda: None)
        await app.start_many("nothing", [None, None])
        await app.start("nothing", delay=3600)
        connection = await asyncpg.connect(postgres_url)
        try:
            assert await connection.fetchval(trigger["metadata"]["query"]) == 2
        finally:
            await connection.close()
    [worker] = manifests("worker.yaml")["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert trigger["metadata"]["targetQueryValue"] == re.findall(r"\d+", " ".join(worker["command"]))[0]
