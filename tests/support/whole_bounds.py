"""Lower bounds by whole matrices, of the checker's `Utility`: with the polar factor of eigenvectors, or of C."""

from __future__ import annotations

from factorize.checker.utility import Utility, bound_by_whole


def by_vectors(one: Utility) -> float:
    return float(bound_by_whole(one._spec, one._dual, one._workload, None))


def by_strategy(one: Utility) -> float:
    return float(bound_by_whole(one._spec, one._dual, one._workload, lambda: one._inverse))
