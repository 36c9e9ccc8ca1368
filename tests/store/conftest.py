"""The databases of the store suite: Postgres, the newest and the oldest; a SQLite file; SQLite in memory (rule 55).

Its short form, the files in `POOLED`, also runs through a pooler in transaction mode, and on a server that is taken for
the coordinator of a cluster (`make test-all`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest

from stepfast.model.records import Claimed
from stepfast.model.rows import Definition
from stepfast.model.urls import parse_url
from stepfast.settings import Settings
from stepfast.store import Store, open_store
from tests.store.citus import as_citus
from tests.store.graph_scene import CHAIN, Dag, graph_of
from tests.store.scene import Rows, Scene
from tests.support.warm import take_up_sessions

Opener = Callable[..., Store]

ON_POSTGRES = ("postgres", "postgres12")
ON_SQLITE = ("sqlite", "memory")
SHARED = (*ON_POSTGRES, "mariadb", "sqlite")
"""Those that others can connect to: a database in memory is its store's alone."""


def only_on(*databases: str) -> pytest.MarkDecorator:
    """The test is made for these databases alone."""
    return pytest.mark.parametrize("store_url", databases, indirect=True)


ENOUGH = pytest.mark.enough_on("postgres", "sqlite")
"""What the oldest server and a database in memory do is the same code, and MariaDB has the flows of all databases;
`make test-all` runs everything there too. Files that say `pytestmark = EVERYWHERE` run there in `make test`: together
they use what a run needs in its life."""
EVERYWHERE = pytest.mark.enough_on(*ON_POSTGRES, "mariadb", *ON_SQLITE)

POOLED = (
    "starting", "claiming", "fence", "flushing", "transact", "mailbox", "children", "graphs", "retry", "workers", "due",
)  # fmt: skip
"""The life of a run: what these files try must hold where every transaction may have another session."""


COLD = ("schema", "wakeups", "claiming", "overloads", "columns", "strict_isolation")
"""Files in which sessions themselves are the subject: each test has new ones."""


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The same mark as below, when it is decided which cases are made at all."""
    if metafunc.definition.get_closest_marker("enough_on") is None:
        metafunc.definition.add_marker(ENOUGH)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if not _is_short(item) or item.path.stem.removeprefix("test_") in POOLED]
    for item in items:
        if "tests/store/" in item.nodeid and item.get_closest_marker("enough_on") is None:
            item.add_marker(ENOUGH)
    take_up_sessions(items, "store", COLD)


def _is_short(item: pytest.Item, kinds: tuple[str, ...] = ("pooled", "routed")) -> bool:
    parameters = getattr(item, "callspec", None)
    return parameters is not None and parameters.params.get("store_url") in kinds


@pytest.fixture
async def routed_url(postgres_url: str) -> AsyncIterator[str]:
    """A database whose server is taken for the coordinator of a cluster."""
    async with as_citus(postgres_url):
        yield postgres_url


@pytest.fixture(params=["postgres", "postgres12", "pooled", "routed", "mariadb", "sqlite", "memory"])
def store_url(request: pytest.FixtureRequest) -> str:
    """Where the store under test lives; the test runs once on each."""
    if request.param == "memory":
        return "sqlite://"
    return str(request.getfixturevalue(f"{request.param}_url"))


class Stores:
    """Opens stores on the test's database and closes them afterwards."""

    def __init__(self, url: str, stack: AsyncExitStack, direct: str | None = None) -> None:
        self.url = parse_url(url)
        self._direct = direct or url
        """For the tests' own looks at the rows."""
        self._stack = stack

    @property
    def shared(self) -> bool:
        """Whether a second store sees the same data; a database in memory is its store's alone."""
        return self.url.kind != "sqlite" or self.url.path is not None

    async def open(self, namespace: str = "stepfast", settings: Settings | None = None) -> Store:
        store = open_store(self.url, namespace, settings or Settings())
        await store.open()
        self._stack.push_async_callback(store.close)
        return store

    async def scene(self, store: Store, namespace: str = "stepfast") -> Scene:
        rows = Rows(store, namespace, self._direct)
        self._stack.push_async_callback(rows.close)
        scene = Scene(store, rows)
        scene.worker = await scene.add_worker()
        return scene


@pytest.fixture
async def stores(request: pytest.FixtureRequest, store_url: str) -> AsyncIterator[Stores]:
    direct = request.getfixturevalue("postgres_url") if _is_short(request.node, ("pooled",)) else None
    async with AsyncExitStack() as stack:
        yield Stores(store_url, stack, direct)


@pytest.fixture
async def bare(stores: Stores) -> Store:
    """A store without tables."""
    return await stores.open()


@pytest.fixture
async def store(bare: Store) -> Store:
    await bare.migrate()
    return bare


@pytest.fixture
async def scene(stores: Stores, store: Store) -> Scene:
    """A migrated store with one registered worker."""
    return await stores.scene(store)


@pytest.fixture
async def twin(stores: Stores, store: Store) -> Store:
    """A second store on the same database, as another process would have; in memory it is the same one."""
    return await stores.open() if stores.shared else store


@pytest.fixture
async def run(scene: Scene) -> Claimed:
    """A run just started and claimed."""
    return await scene.running()


@pytest.fixture
async def run_id(scene: Scene) -> str:
    """A run just started, which nothing has claimed yet."""
    return await scene.start()


@pytest.fixture
async def dag(scene: Scene) -> Dag:
    """A dag run of three steps, one after the other, with its graph on record, as any start brings it."""
    graph = graph_of(CHAIN)
    await scene.store.put_definitions([Definition("dag", graph.version, "dag", "graphs", "{}", None, graph.text)])
    return await Dag(scene, graph).start()
