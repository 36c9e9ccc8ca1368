"""The worker: one duty per file, wired together in ``worker.py``."""

from .worker import Worker

__all__ = ["Worker"]
