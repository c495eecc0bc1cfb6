"""Workloads and objectives as the exact checker reads them from a spec, each kind once."""

from factorize.exact.spec.workloads import KINDS, check_known, program_of, toeplitz_column, workload_numbers

__all__ = ["KINDS", "check_known", "program_of", "toeplitz_column", "workload_numbers"]
