"""Pages of the admin: runs and their steps, read through the application, and the operators' actions by permission."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from django.contrib import admin, messages
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse

from .. import RunInfo, RunNotFound, StepfastError
from .applications import backend_named, own_backends
from .backend import StepfastBackend, outside_of_runs
from .models import Run

_PAGE = 50
_FILTERS = ("status", "workflow", "queue", "key", "tag")
_STATUSES = (
    "queued", "running", "waiting", "paused", "compensating", "completed", "failed", "cancelled", "compensated",
)  # fmt: skip


class Action(NamedTuple):
    """What an operator may do with a run."""

    name: str
    label: str
    done: str
    statuses: tuple[str, ...]

    @property
    def permission(self) -> str:
        """Who has it may do so."""
        return f"stepfast.{self.name}_run"


ACTIONS = (
    Action("cancel", "Cancel", "cancelled", ("queued", "running", "waiting", "paused")),
    Action("retry", "Retry", "queued again", ("failed", "cancelled")),
    Action("pause", "Pause", "paused", ("queued", "running", "waiting")),
    Action("resume", "Resume", "resumed", ("paused",)),
)


@admin.register(Run)
class RunAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Runs of the backends in ``TASKS``. Nothing is changed but by the actions."""

    def has_add_permission(self, request: HttpRequest, *_: Any) -> bool:
        """Runs are started by code."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nothing of a run can be edited."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Runs are removed when their retention is over."""
        return False

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """List runs, newest first; filters and the page are in the address."""
        self._admit(request)
        backend = _backend(request.GET.get("backend"))
        if request.method == "POST":
            self._act(request, backend, request.POST.get("action", ""), request.POST.getlist("run"))
            return HttpResponseRedirect(request.get_full_path())
        filters = {name: request.GET[name] for name in _FILTERS if request.GET.get(name)}
        after, found, error = request.GET.get("after") or None, [], None
        try:
            found = outside_of_runs(backend.app.sync.runs, limit=_PAGE + 1, after=after, **filters)
        except StepfastError as refused:
            error = str(refused)
        older = found[_PAGE - 1].id if len(found) > _PAGE else None
        address = request.GET.copy()
        if older is not None:
            address["after"] = older
        context = {
            "runs": [(info, _console_link(backend, info.id)) for info in found[:_PAGE]],
            "older": None if older is None else f"?{address.urlencode()}",
            "paged": after is not None,
            "filters": {name: request.GET.get(name, "") for name in _FILTERS},
            "statuses": _STATUSES,
            "actions": self._allowed(request),
            "refused": error,
            **_backends(backend),
        }
        return self._page(request, "change_list", "Runs", context, extra_context)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Show a run and its steps."""
        self._admit(request)
        backend = _backend(request.GET.get("backend"))
        if request.method == "POST":
            self._act(request, backend, request.POST.get("action", ""), [object_id])
            return HttpResponseRedirect(request.get_full_path())
        try:
            run = backend.app.sync.get(object_id).this
            info, steps = outside_of_runs(run.info), outside_of_runs(run.steps)
        except RunNotFound as missing:
            raise Http404(str(missing)) from missing
        context = {
            "info": info,
            "steps": steps,
            "facts": _facts(info),
            "input": _pretty(info.input),
            "output": _pretty(info.output) if info.status == "completed" else None,
            "console": _console_link(backend, info.id),
            "actions": [action for action in self._allowed(request) if info.status in action.statuses],
            **_backends(backend),
        }
        return self._page(request, "change_form", f"Run {info.id}", context, extra_context)

    def _admit(self, request: HttpRequest) -> None:
        if not self.has_view_permission(request):
            raise PermissionDenied

    def _allowed(self, request: HttpRequest) -> list[Action]:
        return [action for action in ACTIONS if cast(Any, request.user).has_perm(action.permission)]

    def _act(self, request: HttpRequest, backend: StepfastBackend, name: str, ids: list[str]) -> None:
        """Do what an operator asks for each of these runs, and say what became of it."""
        action = next((action for action in ACTIONS if action.name == name), None)
        if action is None or action not in self._allowed(request):
            raise PermissionDenied
        done = []
        for run_id in ids:
            try:
                call: Callable[[], Any] = getattr(backend.app.sync.get(run_id), action.name)
                outside_of_runs(call)
                done.append(run_id)
                self.log_change(request, Run(id=run_id), f"{action.label}: {action.done}.")
            except StepfastError as refused:
                messages.error(request, str(refused))
        if done:
            messages.success(request, f"{len(done)} {'run is' if len(done) == 1 else 'runs are'} {action.done}.")

    def _page(
        self, request: HttpRequest, template: str, title: str, context: dict[str, Any], extra: Any
    ) -> TemplateResponse:
        everywhere = {**self.admin_site.each_context(request), "opts": self.opts, "title": title}
        return TemplateResponse(
            request, f"admin/stepfast/run/{template}.html", {**everywhere, **context, **(extra or {})}
        )


def _backend(alias: str | None) -> StepfastBackend:
    ours = own_backends()
    if not ours:
        raise ImproperlyConfigured("TASKS has no backend of Stepfast's")
    if alias is None:
        return next((backend for backend in ours if backend.alias == "default"), ours[0])
    try:
        return backend_named(alias)
    except ImproperlyConfigured as error:
        raise Http404(str(error)) from error


def _backends(chosen: StepfastBackend) -> dict[str, Any]:
    query = "" if chosen.alias == "default" else f"?backend={chosen.alias}"
    return {"backend": chosen, "backends": [each.alias for each in own_backends()], "of_backend": query}


def _console_link(backend: StepfastBackend, run_id: str) -> str | None:
    address = backend.options.get("console_url")
    return None if not address else f"{str(address).rstrip('/')}/runs/{run_id}"


def _facts(info: RunInfo) -> list[tuple[str, Any]]:
    told = {
        "Status": info.status, "Reason": info.reason, "Waits for": info.waiting_for, "Workflow": info.workflow,
        "Queue": info.queue, "Priority": info.priority, "Key": info.key, "Tags": ", ".join(info.tags),
        "Attempt": info.attempt, "Lost workers": info.losses, "Enqueued": info.created_at, "Due": info.due_at,
        "Started": info.started_at, "Ended": info.completed_at, "Deadline": info.deadline,
        "Worker": info.executed_by and info.executed_by.worker, "Parent": info.parent,
    }  # fmt: skip
    return [(name, value) for name, value in told.items() if value not in (None, "", 0) or name == "Priority"]


def _pretty(value: Any) -> str:
    try:
        return json.dumps(value, indent=2, default=str, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(value)
