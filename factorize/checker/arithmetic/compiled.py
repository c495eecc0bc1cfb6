"""The compiler of loops: that of numba where it is, else none, as in `factorize-check`, which is in no hurry.

Imported on first use: numba is heavy.
"""

from __future__ import annotations

from typing import Any

try:
    from factorize.numbers.compiling import kernel as kernel
    from factorize.numbers.compiling import part as part
except ImportError:

    def kernel(**_options: Any) -> Any:
        """Leave a function as it is."""
        return lambda function: function

    part = kernel
