"""The report on sizes: long functions are refused, large files and lonely modules are reported."""

from __future__ import annotations

from pathlib import Path

from tools.sizes import large_files, lonely_modules, long_functions

FUNCTION = "async def f():\n" + "    x = 1\n" * 59


def test_a_function_of_more_than_sixty_lines_is_refused(tmp_path: Path) -> None:
    (tmp_path / "fine.py").write_text(FUNCTION)
    assert long_functions(tmp_path) == []
    (tmp_path / "long.py").write_text(FUNCTION + "    x = 1\n")
    [line] = long_functions(tmp_path)
    assert "f has 61 lines" in line


def test_large_files_are_reported(tmp_path: Path) -> None:
    (tmp_path / "fine.py").write_text("x = 1\n" * 800)
    (tmp_path / "large.sql").write_text("SELECT 1;\n" * 801)
    [line] = large_files(tmp_path)
    assert "large.sql (801 lines)" in line


def test_small_modules_with_one_importer_are_reported(tmp_path: Path) -> None:
    package = tmp_path / "shop"
    (package / "stock").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "stock" / "__init__.py").write_text("")
    (package / "stock" / "shared.py").write_text("x = 1\n")
    (package / "stock" / "large.py").write_text("x = 1\n" * 120)
    (package / "stock" / "lonely.py").write_text("from .shared import x\nfrom .large import x as y\n")
    (package / "till.py").write_text("import shop.stock.shared\nfrom shop.stock import lonely\n")
    [line] = lonely_modules(package)
    assert "lonely.py (2 lines) is imported by shop.till only" in line
