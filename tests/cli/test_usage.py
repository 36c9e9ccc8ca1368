"""What all verbs share: errors, exit codes, options, loading an application; and that the reference names them all."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from stepfast.cli import cli
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
    ["nonsense", "", "oracle://me:s3cret@host/db", "postgresql://me:s3cret@host:port/db",
     "postgresql://me:s3cr@t@host:99999/db", "postgresql://me@host:x/db?password=s3cret", "sqlite://host/file.db",
     "postgresql://me@corp:s3cret@host/db", "postgresql://m e:12/s3cret@host/db", "mysql://me:s3cret@host/db?x=1",
     "sqlite:///file.db?mode=ro"],
)  # fmt: skip
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


# -- finding module


def refused(stepfast: Verbs, name: str) -> str:
    return stepfast.error("runs", "--app", name, code=2)


def test_in_the_current_directory(stepfast: Verbs, shop: Shop) -> None:
    (shop.folder / "package").mkdir()
    shop.write("package/__init__.py", "")
    shop.write("package/orders.py", "from stepfast import Stepfast\nclass Rooms:\n    app = Stepfast()\n")
    stepfast("migrate", "--app", "package.orders:Rooms.app")


def test_a_name_without_an_application(stepfast: Verbs, shop: Shop) -> None:
    for name in ("shop", "shop:", ":app"):
        assert "write module:app" in refused(stepfast, name)
    assert "name the module instead: shop:app" in refused(stepfast, "./shop.py:app")


def test_no_such_module(stepfast: Verbs, shop: Shop) -> None:
    assert "there is no module 'shopp', neither in" in refused(stepfast, "shopp:app")
    assert "there is no module 'shop.orders'" in refused(stepfast, "shop.orders:app")


def test_no_such_attribute(stepfast: Verbs, shop: Shop) -> None:
    assert "module 'shop' has no 'application'; it has shop:app" in refused(stepfast, "shop:application")


def test_not_an_application(stepfast: Verbs, shop: Shop) -> None:
    assert "shop:Order is not a Stepfast application, but a type" in refused(stepfast, "shop:Order")
    assert "shop:double is not a Stepfast application, but a Workflow" in refused(stepfast, "shop:double")


def test_a_module_that_breaks_shows_where(stepfast: Verbs, shop: Shop) -> None:
    shop.write("broken.py", "import shop\n\ndef f():\n    return 1 / 0\n\nf()\n")
    answer = stepfast("runs", "--app", "broken:app", code=2)
    assert answer.stderr.splitlines()[-1] == (
        "error: module 'broken' cannot be imported: ZeroDivisionError: division by zero"
    )
    assert "broken.py" in answer.stderr and "return 1 / 0" in answer.stderr
    assert "importlib" not in answer.stderr


def test_a_module_that_lacks_a_package_of_its_own(stepfast: Verbs, shop: Shop) -> None:
    shop.write("lacking.py", "import no_such_package\n")
    answer = stepfast("runs", "--app", "lacking:app", code=2)
    assert "module 'lacking' cannot be imported: ModuleNotFoundError" in answer.stderr
    assert "import no_such_package" in answer.stderr


def test_a_url_on_the_command_line_wins_over_the_code(stepfast: Verbs, shop: Shop) -> None:
    shop.write("fixed.py", "from stepfast import Stepfast\napp = Stepfast('sqlite:////nowhere/x.db', 'fixed')\n")
    stepfast("migrate", "--app", "fixed:app", code=2)
    stepfast("migrate", "--app", "fixed:app", "--url", shop.url)
    stepfast("runs", "--namespace", "fixed")


# -- the reference page names every verb and every option, and nothing else


PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text()
COMMAND: Any = typer.main.get_command(cli)


def options(command: Any) -> set[str]:
    """Those of the verb, or of all verbs in a group."""
    own = {name for parameter in command.params for name in parameter.opts if name.startswith("-")}
    return own.union(*map(options, getattr(command, "commands", {}).values()))


def names(command: Any, before: str = "") -> list[str]:
    """Every verb; those of a group by both words."""
    return [
        name
        for word, verb in command.commands.items()
        for name in (names(verb, f"{word} ") if hasattr(verb, "commands") else [before + word])
    ]


def verb_of(name: str) -> Any:
    found = COMMAND
    for word in name.split():
        found = found.commands[word]
    return found


@pytest.mark.parametrize("verb", names(COMMAND))
def test_every_verb_and_option_is_documented(verb: str) -> None:
    assert f"**`{verb}" in PAGE
    missing = [name for name in options(verb_of(verb)) if not re.search(rf"`{name}[` ]", PAGE)]
    assert not missing


def test_every_documented_option_exists() -> None:
    known = options(COMMAND) | {"--help"}
    assert set(re.findall(r"`(--[a-z-]+)", PAGE)) <= known
