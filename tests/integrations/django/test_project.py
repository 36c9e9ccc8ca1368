"""A project of Django's: its own tests on every database, and its pages, its worker and its commands as processes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[3]
SHOP = ROOT / "examples" / "integrations" / "django_shop"
SETTINGS = "tests.integrations.django.settings"
OWN_TESTS = ("tests.integrations.django.app", "orders")

pytestmark = [pytest.mark.empty, pytest.mark.timeout(600)]


def environment(url: str, more: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STEPFAST_")}
    given = {
        "DJANGO_SETTINGS_MODULE": SETTINGS,
        "DJANGO_TEST_DATABASE": url,
        "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
    }
    return {**kept, "PYTHONUNBUFFERED": "1", **given, **more}


def manage(url: str, *words: str, fails: bool = False, **more: str) -> str:
    """Run a command of `manage.py` to its end; what it has said."""
    command = [sys.executable, "manage.py", *words]
    done = subprocess.run(
        command, cwd=SHOP, env=environment(url, more), text=True, timeout=300,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert (done.returncode != 0) == fails, done.stdout
    return done.stdout


@contextmanager
def process(url: str, *words: str, says: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    """A command of `manage.py` that stays, once it has said something; stopped at the end."""
    child = subprocess.Popen(
        [sys.executable, "manage.py", *words], cwd=SHOP, env=environment(url, more), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        if says:
            heard(child, says)
        yield child
    finally:
        if child.poll() is None:
            child.terminate()
        child.communicate(timeout=60)


def heard(child: subprocess.Popen[str], pattern: str) -> str:
    """The line that a process says next which matches; the test's own limit ends the wait."""
    assert child.stdout is not None
    lines = []
    for line in child.stdout:
        lines.append(line)
        if re.search(pattern, line):
            return line
    raise AssertionError(f"{pattern!r} was not said:\n{''.join(lines)}")


def until(what: Callable[[], Any], seconds: float = 200) -> Any:
    """Wait until something is true."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.05)
    return found


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture
def file(sqlite_url: str) -> str:
    """The URL of a file with the tables of the project."""
    manage(sqlite_url, "migrate", "-v", "0")
    return sqlite_url


def python(url: str, code: str, **more: str) -> Any:
    """Run code in the project; what its last line prints, as JSON."""
    set_up = "import json, django; django.setup()\nfrom orders.models import *; from orders.tasks import *\n"
    imports = "from tests.integrations.django.app.tasks import *\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{set_up}{imports}{code}"], cwd=SHOP, env=environment(url, more), text=True,
        capture_output=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else None


# -- the tests of a project --------------------------------------------------------------------------------------------


def test_the_tests_of_a_project_pass(url: str) -> None:
    assert "OK" in manage(url, "test", *OWN_TESTS)


def test_the_tests_of_a_project_pass_on_mariadb(mariadb_url: str) -> None:
    assert "OK" in manage(mariadb_url, "test", *OWN_TESTS)


def test_tests_in_several_processes_have_databases_of_their_own(postgres_url: str) -> None:
    assert "OK" in manage(postgres_url, "test", "--parallel", "2", *OWN_TESTS)


# -- pages, worker -----------------------------------------------------------------------------------------------------


@contextmanager
def site(url: str) -> Iterator[httpx.Client]:
    port = free_port()
    serving = process(url, "runserver", "--noreload", f"127.0.0.1:{port}", says="Quit the server")
    with serving, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        yield client


def test_pages_enqueue_and_a_worker_executes(postgres_url: str, tmp_path: Path) -> None:
    manage(postgres_url, "migrate", "-v", "0")
    notes = {"SHOP_NOTES": str(tmp_path / "notes")}
    with site(postgres_url) as client:
        placed = client.post("/orders/", data={"item": "book", "cents": "1200"}).json()
        assert client.get(f"/orders/{placed['order']}/").json()["task"] == "READY"
        assert client.post("/orders/", data={"item": "sold out", "cents": "5"}).status_code == 409
        dear = client.post("/orders/", data={"item": "piano", "cents": "500000"}).json()["order"]
        with process(
            postgres_url, "stepfast_worker", "--poll-interval", "0.2", says="worker: .* tasks", **notes
        ) as worker:
            until(lambda: client.get(f"/orders/{placed['order']}/").json()["receipts"] == 1)
            until(lambda: client.get(f"/orders/{dear}/").json()["task"] == "RUNNING")
            assert client.post(f"/orders/{dear}/approve/").status_code == 200
            until(lambda: client.get(f"/orders/{dear}/").json()["task"] == "SUCCESSFUL")
            worker.terminate()
            assert worker.wait(100) == 0
    assert (tmp_path / "notes").read_text().splitlines() == ["charged 1200", "charged 500000"]


def test_a_worker_dies_inside_a_task(url: str, tmp_path: Path) -> None:
    manage(url, "migrate", "-v", "0")
    notes = tmp_path / "notes"
    task = python(url, f"print(json.dumps(dies_between_steps.enqueue({str(notes)!r}).id))")
    worker = ("stepfast_worker", "--lease", "2", "--poll-interval", "0.2")
    with process(url, *worker, says="Stepfast worker", TASK_DIES="1") as dying:
        assert dying.wait(100) == -signal.SIGKILL
    assert notes.read_text() == "first\n"
    with process(url, *worker, says="Stepfast worker"):
        until(lambda: notes.read_text() != "first\n")
        ask = f"from stepfast.django import get_app; get_app().sync.get({task!r}).result(200)\n"
        ask += f"r = dies_between_steps.get_result({task!r}); print(json.dumps([r.status, r.attempts, len(r.errors)]))"
        assert python(url, ask) == ["SUCCESSFUL", 1, 0]
    assert notes.read_text() == "first\nsecond\n"


def test_a_worker_that_is_stopped_waits_for_its_task(file: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    python(file, f"slow.enqueue(1.5, {str(notes)!r})")
    with process(file, "stepfast_worker", says="Stepfast worker") as worker:
        until(notes.exists)
        worker.terminate()
        assert worker.wait(100) == 0
    assert notes.read_text() == "began\nended\n"


def test_a_worker_in_development_loads_changed_code_again(file: str, tmp_path: Path) -> None:
    (tmp_path / "changing.py").write_text("")
    options = {"DJANGO_TEST_OPTIONS": json.dumps({"modules": ["changing"]}), "DJANGO_TEST_DEBUG": "1"}
    paths = {"PYTHONPATH": f"{ROOT}:{tmp_path}"}
    with process(file, "stepfast_worker", says=r"Stepfast worker: \d+ tasks", **options, **paths) as worker:
        task = "from tests.integrations.django.app.tasks import task\n@task\ndef new(): return 7\n"
        time.sleep(1.5)  # the reloader has noted the file: it looks once a second
        (tmp_path / "changing.py").write_text(task)
        heard(worker, r"Stepfast worker: \d+ tasks")
        code = "import changing; from stepfast.django import get_app\nr = changing.new.enqueue()\n"
        code += "print(json.dumps(get_app().sync.get(r.id).result(200)))"
        assert python(file, code, **options, **paths) == 7


def test_a_drained_worker_ends(file: str) -> None:
    task = python(file, "print(json.dumps(add.enqueue(2).id))")
    assert "queues default" in manage(file, "stepfast_worker", "--drain", "--queues", "default")
    assert python(file, f"print(json.dumps(add.get_result({task!r}).return_value))") == 3


# -- settings ----------------------------------------------------------------------------------------------------------


def alone(code: str) -> str:
    """What code prints in a process without the settings of the project."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_psycopg2_and_wrong_options_are_named_by_check() -> None:
    said = alone("""
import sys
sys.modules["psycopg"] = None
import django
from django.conf import settings
own = [] if django.VERSION >= (6, 0) else ["django_tasks"]
settings.configure(INSTALLED_APPS=["stepfast.django", *own],
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "x"}},
    TASKS={"default": {"BACKEND": "stepfast.django.StepfastBackend", "OPTIONS": {"colour": "red"}}})
django.setup()
from django.core.checks import run_checks
print(*run_checks(), sep="\\n")
""")
    assert "stepfast.E005" in said and "pip install psycopg" in said
    assert "stepfast.E001" in said and "'colour'" in said


def test_a_database_in_memory_is_refused_and_eager_mode_needs_none() -> None:
    said = alone("""
import django
from django.conf import settings
own = [] if django.VERSION >= (6, 0) else ["django_tasks"]
settings.configure(INSTALLED_APPS=["stepfast.django", "django.contrib.auth", "django.contrib.contenttypes", *own],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    TASKS={"default": {"BACKEND": "stepfast.django.StepfastBackend"},
           "eager": {"BACKEND": "stepfast.django.StepfastBackend", "OPTIONS": {"eager": True}}})
django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
from tests.integrations.django.app.tasks import add
try: add.enqueue(1)
except Exception as error: print(type(error).__name__, error)
print(add.using(backend="eager").enqueue(5).return_value)
""")
    assert re.search("ImproperlyConfigured .*in memory.*TEST.*eager", said) and said.splitlines()[-1] == "6"


def test_a_backend_has_a_database_and_a_namespace_of_its_own(tmp_path: Path) -> None:
    said = alone(f"""
import django
from django.conf import settings
def sqlite(name): return {{"ENGINE": "django.db.backends.sqlite3", "NAME": {str(tmp_path)!r} + name}}
own = [] if django.VERSION >= (6, 0) else ["django_tasks"]
options = {{"database": "other", "namespace": "jobs"}}
settings.configure(INSTALLED_APPS=["stepfast.django", "django.contrib.auth", "django.contrib.contenttypes", *own],
    DATABASES={{"default": sqlite("/a.db"), "other": sqlite("/b.db")}}, USE_TZ=False, TIME_ZONE="Europe/Berlin",
    TASKS={{"default": {{"BACKEND": "stepfast.django.StepfastBackend", "OPTIONS": options}}}})
django.setup()
from datetime import datetime, timedelta
from django.core.management import call_command
from django.db import connections, transaction
from stepfast.django.interface import TaskResultDoesNotExist
from stepfast.django.testing import run_tasks
from tests.integrations.django.app.tasks import add
for alias in ("default", "other"):
    call_command("migrate", database=alias, verbosity=0)
    print([name for name in connections[alias].introspection.table_names() if name.endswith("runs")])
with transaction.atomic(using="other"):
    lost = add.enqueue(5)
    transaction.set_rollback(True, using="other")
now, later = add.enqueue(1), add.using(run_after=datetime.now() + timedelta(days=1)).enqueue(2)
run_tasks()
now.refresh()
assert now.return_value == 2 and now.enqueued_at.tzinfo is None and now.started_at.tzinfo is None
assert add.get_result(later.id).task == later.task and add.get_result(later.id).status == "READY"
try: add.get_result(lost.id)
except TaskResultDoesNotExist: print("rolled back")
""")
    assert said.splitlines() == ["[]", "['jobs_runs']", "rolled back"]


# -- commands ----------------------------------------------------------------------------------------------------------


def test_migrations_are_complete_and_may_be_repeated(url: str) -> None:
    assert "No changes detected" in manage(url, "makemigrations", "--check")
    assert "stepfast.0001_initial... OK" in manage(url, "migrate")
    manage(url, "migrate")
    assert python(url, "from stepfast.django import get_app; print(get_app().sync.count())") == 0


def test_tasks_before_the_migration_are_refused_with_the_remedy(sqlite_url: str) -> None:
    code = "try: add.enqueue(1)\nexcept Exception as error: print(json.dumps(str(error)))"
    assert "manage.py migrate" in python(sqlite_url, code)


def test_the_console_is_served(file: str) -> None:
    python(file, "add.enqueue(1)")
    with process(file, "stepfast_console", "--port", "0", says="") as child:
        link = heard(child, "Stepfast console: http").split()[-1]
        with httpx.Client(follow_redirects=True, timeout=30) as client:
            page = until(lambda: _answered(client, link))
            assert "tests.integrations.django.app.tasks.add" in client.get(page.url.join("/runs")).text
    assert "set STEPFAST_CONSOLE_TOKEN" in manage(file, "stepfast_console", "--host", "0.0.0.0", fails=True)


def _answered(client: httpx.Client, link: str) -> httpx.Response | None:
    try:
        return client.get(link)
    except httpx.ConnectError:
        return None
