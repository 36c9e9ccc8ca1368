"""The pages that stand at the top of every page, in their order: their name, and the first part of their address."""

from __future__ import annotations

NAVIGATION = (("Runs", "runs"),)
