"""The application of a lab: the code of the user's own, with a database in memory and a clock that stands."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import cast

from ..app import Stepfast
from ..connecting import Connections
from ..engine.workflow import Workflow
from ..registering import Registry
from ..settings import Settings
from ..store import Store
from ..store.sqlite.store import SqliteStore
from .clock import LabClock
from .doubles import Doubles, LabObservers
from .mortal import Cut, MortalStore
from .transport import LabTransport


class LabRegistry(Registry):
    """The application's own code; what workers are given of it counts its calls."""

    def __init__(self, settings: Settings, doubles: Doubles) -> None:
        super().__init__(settings)
        self._doubles = doubles

    def with_steps(self) -> dict[str, Workflow[object, object]]:
        """All that a worker can be given to execute."""
        return {name: self._doubles.of_workflow(workflow) for name, workflow in super().with_steps().items()}


class LabApp(Stepfast):
    """Made from another application, of which nothing is changed or connected."""

    def __init__(self, app: Stepfast, clock: LabClock, doubles: Doubles, cut: Cut, seed: str | None) -> None:
        super().__init__(
            "sqlite://",
            app.namespace,
            codec=app._payloads._codec,
            logger=app.logger,
            settings=_settings(app.settings, seed),
        )
        self._clock = clock
        self._cut = cut
        self.die: Callable[[], object] = lambda: None
        """Called where a worker is to die at a commit."""
        self.mortal: MortalStore | None = None
        """The store of the last worker that was made."""
        registry = LabRegistry(self.settings, doubles)
        registry.workflows = self.workflows  # the planner has it already
        self.workflows.update(app.workflows)
        self._registry = registry
        if seed is None:  # where one run is looked at, no other is to begin by itself
            self._declared.specs.update(app._declared.specs)
        self._declared_queues.update(app._declared_queues)
        self.remote = LabTransport(doubles, lambda value: self._payloads.bare(value, "the result of a remote step"))
        self.transport = self.remote

        def make_store() -> Store:
            store = SqliteStore(self.url, self.namespace, self.settings, clock.milliseconds)
            store.given_seed = seed
            return store

        self._connections = Connections(
            make_store, self.settings, self.logger,
            lambda: LabObservers(doubles, self.logger, self._clock), lambda: self._clock,
        )  # fmt: skip

    def _workers_store(self, store: Store) -> Store:
        self.mortal = MortalStore(store, self._cut, lambda: self.die())
        return cast(Store, self.mortal)


def _settings(settings: Settings, seed: str | None) -> Settings:
    """A wait gives its slot back at once, runs stay for as long as the lab does, and nobody watches for a blocked loop:
    a debugger blocks it. Where every run is to be the same, no retry is put off by chance."""
    jitter = settings.backoff_jitter if seed is None else 0.0
    return dataclasses.replace(
        settings,
        moment=0.0,
        retention=None,
        retention_failed=None,
        blocked_after=0.0,
        gc_threshold=0,
        backoff_jitter=jitter,
    )
