"""The compiler of loops: that of numba where it is, else none, as in `factorize-check`, which is in no hurry.

Imported on first use: numba is heavy.
"""

from __future__ import annotations

try:
    from numba import njit as njit
except ImportError:

    def njit(**_options):  # type: ignore[no-redef,no-untyped-def]  # numba's has no types either
        """Leave a function as it is."""
        return lambda function: function
