"""The compiler of loops: that of numba, or none, as in `factorize-check`, which is in no hurry."""

from typing import Any

try:
    from factorize.numbers.compiling import HAS_COMPILER as HAS_COMPILER
    from factorize.numbers.compiling import kernel as kernel
    from factorize.numbers.compiling import part as part
except ImportError:
    HAS_COMPILER = False

    def kernel(**options: object) -> Any:
        """Return a decorator that leaves a function as it is."""
        return lambda function: function

    part = kernel
