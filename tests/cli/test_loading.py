"""Finding `module:app`."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Shop, Verbs


@pytest.fixture
def url(sqlite_url: str) -> str:
    """Code is loaded alike whatever the database."""
    return sqlite_url


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
