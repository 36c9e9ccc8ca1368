"""Applications on the test's database."""

from __future__ import annotations

from tests.engine.conftest import MakeApp, app, make_app

__all__ = ["MakeApp", "app", "make_app"]
