"""Finding `module:app`."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Shop, Verbs


@pytest.fixture
def url(sqlite_url: str) -> str:
    """Code is loaded alike whatever the database."""
    return sqlite_url


def refused(holdfast: Verbs, name: str) -> str:
    return holdfast.error("runs", "--app", name, code=2)


def test_in_the_current_directory(holdfast: Verbs, shop: Shop) -> None:
    (shop.folder / "package").mkdir()
    shop.write("package/__init__.py", "")
    shop.write("package/orders.py", "from holdfast import Holdfast\nclass Rooms:\n    app = Holdfast()\n")
    holdfast("migrate", "--app", "package.orders:Rooms.app")


def test_a_name_without_an_application(holdfast: Verbs, shop: Shop) -> None:
    for name in ("shop", "shop:", ":app"):
        assert "write module:app" in refused(holdfast, name)
    assert "name the module instead: shop:app" in refused(holdfast, "./shop.py:app")


def test_no_such_module(holdfast: Verbs, shop: Shop) -> None:
    assert "there is no module 'shopp', neither in" in refused(holdfast, "shopp:app")
    assert "there is no module 'shop.orders'" in refused(holdfast, "shop.orders:app")


def test_no_such_attribute(holdfast: Verbs, shop: Shop) -> None:
    assert "module 'shop' has no 'application'; it has shop:app" in refused(holdfast, "shop:application")


def test_not_an_application(holdfast: Verbs, shop: Shop) -> None:
    assert "shop:Order is not a Holdfast application, but a type" in refused(holdfast, "shop:Order")
    assert "shop:double is not a Holdfast application, but a Workflow" in refused(holdfast, "shop:double")


def test_a_module_that_breaks_shows_where(holdfast: Verbs, shop: Shop) -> None:
    shop.write("broken.py", "import shop\n\ndef f():\n    return 1 / 0\n\nf()\n")
    answer = holdfast("runs", "--app", "broken:app", code=2)
    assert answer.stderr.splitlines()[-1] == (
        "error: module 'broken' cannot be imported: ZeroDivisionError: division by zero"
    )
    assert "broken.py" in answer.stderr and "return 1 / 0" in answer.stderr
    assert "importlib" not in answer.stderr


def test_a_module_that_lacks_a_package_of_its_own(holdfast: Verbs, shop: Shop) -> None:
    shop.write("lacking.py", "import no_such_package\n")
    answer = holdfast("runs", "--app", "lacking:app", code=2)
    assert "module 'lacking' cannot be imported: ModuleNotFoundError" in answer.stderr
    assert "import no_such_package" in answer.stderr


def test_a_url_on_the_command_line_wins_over_the_code(holdfast: Verbs, shop: Shop) -> None:
    shop.write("fixed.py", "from holdfast import Holdfast\napp = Holdfast('sqlite:////nowhere/x.db', 'fixed')\n")
    holdfast("migrate", "--app", "fixed:app", code=2)
    holdfast("migrate", "--app", "fixed:app", "--url", shop.url)
    holdfast("runs", "--namespace", "fixed")
