"""Who a worker is to the database: its id, and which runs it takes."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ..engine.workflow import Workflow
from ..model.records import Lane, WorkerInfo
from ..model.status import DAG_STEP
from ..settings import Settings
from .clockwork import Clockwork
from .neighbours import this_process


class Identity:
    """The id changes when the worker was declared dead and goes on; what it takes does not."""

    def __init__(
        self,
        workflows: Mapping[str, Workflow[Any, Any]],
        queues: Sequence[str] | None,
        clock: Clockwork,
        schedules: Sequence[str] = (),
        limits: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._limits = dict(limits)
        """What the code declares of queues, as it is stored."""
        self.clock = clock
        self.id = clock.new_id()
        self.registered = True
        """Whether the database has been told of the id. The first one is registered before anything else begins."""
        self.workflows = dict(workflows)
        """The code that is here, steps of dags among it, by name."""
        self.versions = {name: workflow.version for name, workflow in workflows.items()}
        self.queues = None if queues is None else list(queues)
        """None: all of them."""
        self._queues = frozenset(queues or ())
        self.schedules = list(schedules)
        """The names of those that the code here declares."""

    def renew(self) -> str:
        """Go on under a new id; the old one."""
        self.registered = False  # first: the heartbeat's thread reads the id, and then this
        old, self.id = self.id, self.clock.new_id()
        return old

    def serves(self, lane: Lane) -> bool:
        """Whether this worker takes runs of a lane."""
        return lane.workflow in self.versions and (self.queues is None or lane.queue in self._queues)

    def declared(self) -> list[str]:
        """The names that people have declared: without the steps of dags."""
        return [name for name, workflow in self.workflows.items() if workflow.kind != DAG_STEP]

    def served(self) -> list[str]:
        """The declared names whose queue, or that of one of their steps, this worker serves."""
        own = {w.dag for w in self.workflows.values() if self.queues is None or w.queue in self._queues}
        return [name for name in self.declared() if name in own]

    def info(self, settings: Settings) -> WorkerInfo:
        """What the database is told."""
        return WorkerInfo(
            self.id,
            socket.gethostname(),
            os.getpid(),
            self.queues,
            self.versions,
            settings.concurrency,
            int(settings.lease * 1000),
            process=this_process(),
            limits=self._limits,
            modules={name: self.workflows[name].module for name in self.declared()},
            schedules=self.schedules,
        )
