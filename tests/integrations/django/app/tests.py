"""Run by `manage.py test`, on every database: what a project sees of its tasks."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, Permission, User
from django.core.exceptions import ImproperlyConfigured, SynchronousOnlyOperation
from django.db import transaction
from django.test import TestCase, TransactionTestCase, override_settings
from django.urls import reverse
from django.utils import timezone

import stepfast
from stepfast.django import StepfastBackend, StepfastTask, context, get_app
from stepfast.django.applications import database_url
from stepfast.django.checks import refuse_unusable
from stepfast.django.interface import (
    InvalidTask,
    TaskResult,
    TaskResultDoesNotExist,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from stepfast.django.testing import run_tasks

from . import tasks
from .tasks import CALLS, add, task
from .workflows import onboarding


def read(result: TaskResult) -> TaskResult:
    result.refresh()
    return result


class Enqueueing(TransactionTestCase):
    def test_a_task_is_part_of_the_transaction(self) -> None:
        with transaction.atomic():
            kept = add.enqueue(1, y=2)
            assert add.get_result(kept.id).status == "READY"
        try:
            with transaction.atomic():
                lost = add.enqueue(3)
                raise KeyError
        except KeyError:
            pass
        with transaction.atomic():
            Group.objects.create(name="outer")
            try:
                with transaction.atomic():
                    inner = add.enqueue(5)
                    raise KeyError
            except KeyError:
                pass
        run_tasks()
        assert read(kept).return_value == 3
        for result in (lost, inner):
            with pytest.raises(TaskResultDoesNotExist):
                add.get_result(result.id)
        assert Group.objects.count() == 1

    def test_a_refused_task_leaves_the_transaction_usable(self) -> None:
        with transaction.atomic():
            Group.objects.create(name="kept")
            with self.assertRaisesMessage(stepfast.PayloadError, "x"):
                tasks.tells.enqueue("x" * 20_000_000)
            with pytest.raises(TypeError):
                add.enqueue(datetime.now())
            kept = add.enqueue(1)
        run_tasks()
        assert read(kept).return_value == 2 and Group.objects.count() == 1

    def test_priority_queue_and_time_are_those_of_the_call(self) -> None:
        later = add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1)
        told = tasks.about.using(priority=-100, queue_name="mail").enqueue()
        order: list[str] = []

        def finished(sender: Any, task_result: TaskResult, **_: Any) -> None:
            order.append(task_result.id)

        ids = [add.using(priority=priority).enqueue(1).id for priority in (0, 100, -100)]
        task_finished.connect(finished)
        try:
            get_app().sync.drain(["default"], 1)
        finally:
            task_finished.disconnect(finished)
        assert order == [ids[1], ids[0], ids[2]]
        assert read(told).status == "READY"
        run_tasks()
        assert read(later).status == "READY" and later.task.run_after is not None
        assert add.get_result(later.id).task == later.task
        about = read(told).return_value
        assert about == {
            "id": told.id, "status": "RUNNING", "priority": -100, "queue": "mail", "workers": told.worker_ids,
            "attempts": 1, "enqueued_at": True,
        }  # fmt: skip
        assert told.task == tasks.about.using(priority=-100, queue_name="mail")
        assert told.enqueued_at <= told.started_at <= told.finished_at

    def test_options_of_stepfast(self) -> None:
        assert isinstance(add, StepfastTask)
        first, again = (add.using(key="one", tags=("a",)).enqueue(number) for number in (1, 2))
        assert first.id == again.id and again.args == [1]  # the first one, as it is
        assert again.task == add.using(key="one", tags=("a",))
        expired = add.using(expires_in=0.01).enqueue(1)
        info = get_app().sync.get(first.id).info()
        assert (info.key, info.tags, info.workflow) == ("one", ["a"], "tests.integrations.django.app.tasks.add")
        assert info.max_attempts == 1
        time.sleep(0.05)  # it expires
        run_tasks()
        assert read(expired).status == "FAILED" and expired.errors and expired.attempts == 0
        with self.assertRaisesMessage(TypeError, "'colour'"):
            add.using(colour="red")
        with self.assertRaisesMessage(InvalidTask, "max_attempts"):
            task(max_attempts=0)(add.func)

    async def test_coroutines_await(self) -> None:
        result = await add.aenqueue(1)
        with self.assertRaisesMessage(SynchronousOnlyOperation, "await aenqueue()"):
            add.enqueue(1)
        await result.arefresh()
        assert result.status == "READY"
        await sync_to_async(run_tasks)()
        await result.arefresh()
        assert result.return_value == 2

    def test_a_function_that_is_not_at_the_top_of_a_module_is_refused_by_name(self) -> None:
        def inner() -> None: ...

        with self.assertRaisesMessage(InvalidTask, "<locals>.inner"):
            task(inner)


class Executing(TransactionTestCase):
    def setUp(self) -> None:
        CALLS.clear()

    def test_attempts_and_their_errors(self) -> None:
        short, over = tasks.fails.enqueue(1), tasks.fails.enqueue(9)
        for _ in range(50):
            run_tasks()
            if read(short).is_finished and read(over).is_finished:
                break
        assert (short.return_value, short.attempts, len(short.errors)) == (2, 2, 1)
        assert (over.status, over.attempts) == ("FAILED", 3) and len(set(over.worker_ids)) >= 1
        assert [error.exception_class for error in over.errors] == [LookupError] * 3
        assert "LookupError: attempt 3" in over.errors[-1].traceback and "in fails" in over.errors[0].traceback
        assert "/stepfast/" not in over.errors[0].traceback  # the frames of the library are left out

    def test_steps_are_done_once_though_the_body_is_called_again(self) -> None:
        result = tasks.durable.enqueue("g")
        for _ in range(50):
            run_tasks()
            if read(result).is_finished:
                break
        assert result.return_value == ["g", "in the end", "g-2", 1]
        assert CALLS["body"] > 1  # it has left its worker to sleep
        assert (CALLS["create"], CALLS["flaky"]) == (2, 2) and Group.objects.count() == 2
        names = [step.name for step in get_app().sync.get(result.id).steps()]
        assert names == ["create_group", "sleep", "again", "labelled"]

    def test_async_tasks_use_the_database_and_steps(self) -> None:
        Group.objects.create(name="one")
        results = [tasks.counts_groups.enqueue() for _ in range(5)]
        run_tasks()
        assert [read(result).return_value for result in results] == [1] * 5 and CALLS["awaited"] == 5

    def test_workflows_of_the_application_call_tasks(self) -> None:
        run = get_app().sync.start(onboarding, "w")
        for _ in range(50):
            run_tasks()
            if run.status() == "completed":
                break
        assert run.result(timeout=1) == ["w", 3] and Group.objects.get().name == "w"

    def test_tasks_enqueue_others(self) -> None:
        result = tasks.enqueues.enqueue(3)
        run_tasks()
        ids = read(result).return_value
        assert [add.get_result(each).return_value for each in ids] == [1, 2, 3]

    def test_a_broken_connection_is_not_left_to_the_next_task(self) -> None:
        for _ in range(3):
            broken = tasks.breaks_connection.enqueue()
            run_tasks()
            made = tasks.makes_a_group.enqueue(f"after {broken.id}")
            run_tasks()
            assert read(made).status == "SUCCESSFUL", made.errors

    def test_signals_of_each_attempt(self) -> None:
        told: list[tuple[str, str, int]] = []

        def note(signal: str) -> Any:
            def receive(sender: Any, task_result: TaskResult, **_: Any) -> None:
                told.append((signal, str(task_result.status.value), task_result.attempts))

            return receive

        receivers = [(which, note(name)) for which, name in (
            (task_enqueued, "enqueued"), (task_started, "started"), (task_finished, "finished"))]  # fmt: skip
        for which, receiver in receivers:
            which.connect(receiver)
        try:
            twice = tasks.fails_once.using(max_attempts=2)
            for enqueue in (lambda: tasks.durable.enqueue("s"), lambda: twice.enqueue()):
                result = enqueue()
                for _ in range(50):
                    run_tasks()
                    if read(result).is_finished:
                        break
        finally:
            for which, receiver in receivers:
                which.disconnect(receiver)
        assert told == [  # the first waits in between, and begins no other attempt
            ("enqueued", "READY", 0), ("started", "RUNNING", 1), ("finished", "SUCCESSFUL", 1),
            ("enqueued", "READY", 0), ("started", "RUNNING", 1), ("started", "RUNNING", 2),
            ("finished", "SUCCESSFUL", 2),
        ]  # fmt: skip

    def test_a_task_that_takes_too_long_has_not_finished(self) -> None:
        told: list[str] = []

        def finished(sender: Any, task_result: TaskResult, **_: Any) -> None:
            told.append(task_result.status)

        task_finished.connect(finished)
        try:
            result = tasks.dawdles.using(timeout=0.2).enqueue(1.0)
            run_tasks()
            while not CALLS["dawdled"]:  # its thread goes on
                time.sleep(0.01)
            time.sleep(0.1)  # nothing is sent
        finally:
            task_finished.disconnect(finished)
        assert read(result).status == "FAILED" and "Timeout" in result.errors[0].exception_class_path
        assert told == []

    def test_a_cancelled_task_has_failed(self) -> None:
        result = add.enqueue(1)
        get_app().sync.get(result.id).cancel()
        assert read(result).status == "FAILED" and result.errors[0].exception_class is stepfast.RunCancelled

    def test_context_is_refused_outside_of_tasks(self) -> None:
        with self.assertRaisesMessage(stepfast.ContextMisuse, "context.step was called outside"):
            context.step(len, "x")

    def test_runs_of_the_test_before_are_gone(self) -> None:
        assert get_app().sync.count() == 0
        add.enqueue(1)

    def test_runs_of_the_test_before_are_gone_again(self) -> None:
        self.test_runs_of_the_test_before_are_gone()


class InATransaction(TestCase):
    def test_a_task_is_enqueued_and_rolled_back_with_the_test(self) -> None:
        result = add.enqueue(1)
        assert read(result).status == "READY"
        with self.assertRaisesMessage(RuntimeError, "TransactionTestCase"):
            run_tasks()


EAGER = {"default": {"BACKEND": "stepfast.django.StepfastBackend", "QUEUES": [], "OPTIONS": {"eager": True}}}


@override_settings(TASKS=EAGER)
class Eagerly(TestCase):
    def test_tasks_are_executed_where_they_are_enqueued(self) -> None:
        CALLS.clear()
        result = tasks.durable.enqueue("eager")
        assert result.status == "FAILED" and result.errors[0].exception_class is stepfast.RetryLater
        result = tasks.durable.enqueue("eager 2")
        assert result.return_value == ["eager 2", "in the end", "eager 2-2", 1] and Group.objects.count() == 3
        assert tasks.durable.get_result(result.id) == result
        assert tasks.counts_groups.enqueue().return_value == 3 and CALLS["awaited"] == 1


class InTheAdmin(TransactionTestCase):
    def setUp(self) -> None:
        self.boss = User.objects.create_superuser("boss")
        self.viewer = User.objects.create_user("viewer", is_staff=True)
        self.viewer.user_permissions.add(Permission.objects.get(codename="view_run"))
        self.client.force_login(self.boss)
        self.runs = reverse("admin:stepfast_run_changelist")

    def page(self, run_id: str) -> str:
        return reverse("admin:stepfast_run_change", args=[run_id])

    def test_runs_and_their_steps_are_shown(self) -> None:
        done, waits = tasks.durable.enqueue("g"), add.using(queue_name="mail").enqueue("<b>", y=1)
        for _ in range(50):
            run_tasks(["default"])
            if read(done).is_finished:
                break
        said = self.client.get(self.runs).content.decode()
        assert done.id in said and waits.id in said and f"http://127.0.0.1:8710/runs/{done.id}" in said
        filtered = self.client.get(self.runs, {"status": "completed", "queue": "default"}).content.decode()
        assert done.id in filtered and waits.id not in filtered
        said = self.client.get(self.page(done.id)).content.decode()
        assert "create_group" in said and "labelled" in said and "in the end" in said
        assert "&lt;b&gt;" in self.client.get(self.page(waits.id)).content.decode()
        assert self.client.get(self.page("01a1f646-534a-75d3-8314-7001d28e692c")).status_code == 404
        assert self.client.get(self.page("nonsense")).status_code == 404
        assert "limit" not in self.client.get(self.runs, {"status": "odd"}).content.decode()
        assert "there is no status" in self.client.get(self.runs, {"status": "odd"}).content.decode()
        assert self.client.get(self.runs, {"backend": "none"}).status_code == 404
        assert "Stepfast" in self.client.get(reverse("admin:index")).content.decode()

    def test_pages_follow_each_other(self) -> None:
        get_app().sync.start_many(tasks.add.module_path, [{"args": [n], "kwargs": {}} for n in range(60)])
        first = self.client.get(self.runs).content.decode()
        assert first.count('name="run"') == 50
        older = re.search(r'<a href="(\?after=[^"]*)">Older', first)
        assert older is not None
        second = self.client.get(self.runs + older[1]).content.decode()
        assert second.count('name="run"') == 10 and "Newest" in second

    def test_operators_act_by_permission(self) -> None:
        one, other = add.enqueue(1), add.enqueue(2)
        said = self.client.post(self.page(one.id), {"action": "pause"}, follow=True).content.decode()
        assert "1 run is paused" in said and 'value="resume"' in said and 'value="pause"' not in said
        self.client.post(self.page(one.id), {"action": "resume"})
        said = self.client.post(
            self.runs, {"action": "cancel", "run": [one.id, other.id]}, follow=True
        ).content.decode()
        assert "2 runs are cancelled" in said and read(one).status == "FAILED"
        assert LogEntry.objects.filter(object_id=one.id).count() == 3
        said = self.client.post(self.page(one.id), {"action": "pause"}, follow=True).content.decode()
        assert "only a run that has neither ended" in said
        self.client.post(self.page(one.id), {"action": "retry"})
        run_tasks()
        assert read(one).return_value == 2

    def test_without_permission_there_is_no_action_and_no_page(self) -> None:
        result = add.enqueue(1)
        self.client.force_login(self.viewer)
        said = self.client.get(self.page(result.id)).content.decode()
        assert 'name="action"' not in said and result.id in self.client.get(self.runs).content.decode()
        for address in (self.page(result.id), self.runs):
            assert self.client.post(address, {"action": "cancel", "run": [result.id]}).status_code == 403
        assert self.client.post(self.page(result.id), {"action": "delete"}).status_code == 403
        self.viewer.user_permissions.add(Permission.objects.get(codename="cancel_run"))
        assert self.client.post(self.page(result.id), {"action": "cancel"}).status_code == 302
        assert self.client.post(self.page(result.id), {"action": "retry"}).status_code == 403
        self.client.force_login(User.objects.create_user("staff", is_staff=True))
        assert (
            self.client.get(self.runs).status_code == 403 and self.client.get(self.page(result.id)).status_code == 403
        )
        self.client.logout()
        assert self.client.get(self.runs).status_code == 302
        assert (
            reverse("admin:stepfast_run_add") and self.client.get(reverse("admin:stepfast_run_add")).status_code == 302
        )


def backend(alias: str = "default", queues: Sequence[str] = (), **options: Any) -> StepfastBackend:
    return StepfastBackend(alias, {"QUEUES": queues, "OPTIONS": options})


class Checking(TestCase):
    def test_a_wrong_option_is_named_with_the_remedy(self) -> None:
        for options, number, words in (
            ({"colour": "red"}, "E001", "'colour'"),
            ({"max_attempts": 0}, "E001", "max_attempts"),
            ({"settings": {"lease": "x"}}, "E001", "lease"),
            ({"settings": 5}, "E001", "stepfast.Settings"),
            ({"modules": "shop.jobs"}, "E001", "list of modules"),
            ({"database": "other"}, "E003", "'default'"),
            ({"queues": ["a,b"]}, "E002", "'a,b'"),
        ):
            with self.subTest(words):
                (message,) = backend(**options).check()  # type: ignore[arg-type]
                assert message.id == f"stepfast.{number}" and words in f"{message.msg} {message.hint}"
                with pytest.raises(ImproperlyConfigured):
                    refuse_unusable(backend(**options))  # type: ignore[arg-type]
        assert list(backend().check()) == []

    def test_two_backends_with_the_same_tables_are_noted(self) -> None:
        with override_settings(TASKS={"default": settings.TASKS["default"], "second": settings.TASKS["default"]}):
            (message,) = task_backends["second"].check()
            assert message.id == "stepfast.W002" and "namespace" in str(message.hint)

    def test_an_entry_of_databases_as_a_url(self) -> None:
        def postgres(**more: Any) -> dict[str, Any]:
            return {"ENGINE": "django.db.backends.postgresql", "NAME": "shop", **more}

        several = postgres(USER="a@b", PASSWORD="p/w:", HOST="h1,h2", PORT="1,2", OPTIONS={"sslmode": "require"})
        socket = postgres(HOST="/run/pg", PORT=5433)
        mysql = {"ENGINE": "django.db.backends.mysql", "NAME": "s", "USER": "u", "HOST": "/run/my.sock"}
        gis = {"ENGINE": "django.contrib.gis.db.backends.postgis", "NAME": "x", "HOST": "h"}
        for entry, url in (
            (several, "postgresql://a%40b:p%2Fw%3A@h1:1,h2:2/shop?sslmode=require"),
            (socket, "postgresql:///shop?host=%2Frun%2Fpg&port=5433"),
            (mysql, "mysql://u@localhost/s?unix_socket=%2Frun%2Fmy.sock"),
            (gis, "postgresql://h/x"),
        ):
            assert database_url("x", entry) == url
        for entry, words in (
            ({"ENGINE": "django.db.backends.oracle", "NAME": "x"}, "works on PostgreSQL"),
            ({"ENGINE": "django.db.backends.postgresql", "OPTIONS": {"service": "s"}}, "OPTIONS"),
            ({"ENGINE": "django.db.backends.sqlite3", "NAME": "file:/tmp/x"}, "write the path"),
            ({**mysql, "OPTIONS": {"read_default_file": "/etc/my.cnf"}}, "OPTIONS"),
        ):
            with pytest.raises(ImproperlyConfigured, match=words):
                database_url("x", entry)
