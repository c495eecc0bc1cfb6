"""Warming of a machine or an image: the kernels that usual solves and their proofs need are compiled ahead.

`python -m factorize.api.warm` solves and proves small specs that a service rehearses. What numba compiles is kept in
NUMBA_CACHE_DIR, for processes whose NUMBA_CPU_NAME and NUMBA_CPU_FEATURES are the same.
"""

from __future__ import annotations

from factorize.api.processes.warming import SPECS, rehearse


def warm() -> None:
    """Solve and prove all of them."""
    for spec in SPECS:
        rehearse(spec)


if __name__ == "__main__":
    warm()
