"""Workloads and objectives as the exact checker reads them from a spec, each kind once."""

from factorize.checker.spec.objectives import OBJECTIVES, Weighing, weighing_of
from factorize.checker.spec.workloads import KINDS, array_of, balls_of, check_known, program_of, toeplitz_column

__all__ = [
    "KINDS",
    "OBJECTIVES",
    "Weighing",
    "array_of",
    "balls_of",
    "check_known",
    "program_of",
    "toeplitz_column",
    "weighing_of",
]
