"""Every error is one sentence with an exit code of its own, and never shows a password."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stepfast.cli.exit_codes import complain
from tests.cli.conftest import Shop, Verbs

pytestmark = pytest.mark.enough_on("sqlite")

VERBS = (["runs"], ["workers"], ["migrate"], ["migrate", "--check"], ["show", "0197a1b2-0000-7000-8000-000000000000"])


@pytest.mark.parametrize("verb", VERBS)
def test_an_unreachable_database(stepfast: Verbs, verb: list[str]) -> None:
    sentence = stepfast.error(*verb, "-u", "postgresql://me:s3cret@127.0.0.1:1/none", code=5)
    assert sentence.startswith("error: the database at postgresql://me:***@127.0.0.1:1/none cannot be reached")
    assert len(sentence.splitlines()) == 1


def test_a_database_that_does_not_exist(stepfast: Verbs, postgres_url: str) -> None:
    sentence = stepfast.error("runs", "-u", postgres_url.rsplit("/", 1)[0] + "/nowhere", code=5)
    assert "does not exist" in sentence


@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "",
        "oracle://me:s3cret@host/db",
        "postgresql://me:s3cret@host:port/db",
        "postgresql://me:s3cr@t@host:99999/db",
        "postgresql://me@host:x/db?password=s3cret",
        "sqlite://host/file.db",
        "postgresql://me@corp:s3cret@host/db",
        "postgresql://m e:12/s3cret@host/db",
        "mysql://me:s3cret@host/db",
        "sqlite:///file.db?mode=ro",
    ],
)
def test_a_url_that_cannot_be_used(stepfast: Verbs, url: str) -> None:
    sentence = stepfast.error("runs", f"--url={url}", code=2)
    assert len(sentence.splitlines()) == 1
    assert "s3cr" not in sentence
    assert "s3cr" not in stepfast.error("doctor", f"--url={url}", code=2)


def test_a_sqlite_file_in_no_folder(stepfast: Verbs) -> None:
    assert "there is no folder" in stepfast.error("migrate", "-u", "sqlite:////nowhere/at/all.db", code=2)


def test_a_namespace_that_cannot_be_used(stepfast: Verbs) -> None:
    assert "namespace 'a-b' is not usable" in stepfast.error("runs", "--namespace", "a-b", code=2)


def test_a_setting_that_cannot_be_used(stepfast: Verbs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPFAST_LEASE", "long")
    assert "STEPFAST_LEASE must be a number" in stepfast.error("runs", code=2)


def test_wrong_usage(stepfast: Verbs) -> None:
    assert stepfast("nonsense", code=2).stdout == ""
    assert stepfast("runs", "--nonsense", code=2).stdout == ""
    assert stepfast("show", code=2).stdout == ""


def test_options_may_stand_before_the_verb_or_after_it(stepfast: Verbs, shop: Shop) -> None:
    stepfast("migrate")
    elsewhere = "postgresql://127.0.0.1:1/none"
    assert stepfast("--json", "-u", shop.url, "runs").stdout == "[]\n"
    stepfast("-u", elsewhere, "runs", code=5)
    stepfast("-u", elsewhere, "runs", "-u", shop.url)


def test_help_tells_the_exit_codes(stepfast: Verbs) -> None:
    text = " ".join(stepfast("--help").stdout.split())
    for part in ("0 all is well", "1 the run failed", "2 wrong usage", "3 no such run", "4 timeout", "5 the database"):
        assert part in text
    for verb in ("migrate", "reset", "worker", "start", "result", "runs", "show", "retry", "workers", "doctor"):
        assert stepfast(verb, "--help").stdout


@pytest.mark.parametrize("arguments", [["--version"], ["doctor", "--json"]])
def test_a_full_disk_behind_the_output(shop: Shop, arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "stepfast", "-u", shop.url, *arguments]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert ended.stderr == "error: the output cannot be written: No space left on device\n"
    assert ended.returncode == 1


def test_version(stepfast: Verbs) -> None:
    assert stepfast("--version").stdout.startswith("stepfast ")


def test_a_sentence_never_holds_a_password(capsys: pytest.CaptureFixture[str]) -> None:
    complain("could not connect to postgresql://me:s3cret@host/db\x1b[2J")
    assert capsys.readouterr().err == "error: could not connect to postgresql://me:***@host/db\\x1b[2J\n"
