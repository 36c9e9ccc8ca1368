"""Testing, for users' own suites: a lab in memory with a clock of its own, and crashes at every commit."""

from .crashes import CrashReport, crash_everywhere
from .doubles import InjectedFailure
from .lab import Lab, LabError

__all__ = ["CrashReport", "InjectedFailure", "Lab", "LabError", "crash_everywhere"]
