"""The pytest plugin of Stepfast: the fixture ``stepfast_lab``.

Pytest loads this wherever Stepfast is installed, for every suite. So it stands beside the package and imports nothing
of it before a test asks for a lab.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from stepfast.testing import Lab


@pytest.fixture
def stepfast_lab() -> type[Lab]:
    """``async with stepfast_lab(app) as lab``: the application's workflows in memory, by a clock that stands."""
    from stepfast.testing import Lab

    return Lab
