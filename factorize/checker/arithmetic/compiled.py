"""The compiler of loops: that of numba, imported on first use, or none, as in `factorize-check`, in no hurry."""

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
