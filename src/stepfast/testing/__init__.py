"""Testing, for users' own suites: a lab in memory whose clock stands, and crashes at every commit."""

from .doubles import InjectedFailure
from .lab import Lab, LabError

__all__ = ["InjectedFailure", "Lab", "LabError"]
