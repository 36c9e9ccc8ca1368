"""Testing, for users' own suites: a lab in memory whose clock stands, and crashes at every commit."""

from .crashing import CrashReport, crash_everywhere
from .doubles import InjectedFailure
from .lab import Lab
from .results import LabError

__all__ = ["CrashReport", "InjectedFailure", "Lab", "LabError", "crash_everywhere"]
