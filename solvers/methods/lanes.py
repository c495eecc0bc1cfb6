"""Eight doubles that move together: one entry of a small matrix for eight poles at once.

Small dense algebra (inverses of 16 x 16 or 32 x 32 matrices) leaves the compiler loops too short to vectorise.  The
same algebra for eight poles has no short loops: every number becomes a vector of eight, one register where the machine
has registers of 512 bits, a few of them elsewhere.  `Lanes` is that vector inside compiled code, with the operations
that the kernels use: ``+ - *``, `load`, `store`, `spread`, `total`, `reciprocal`; a number times a vector is spread.

In the recursions of buffered strategies (solvers/buffered/kernels.py) a vector is eight entries of one matrix row.

Entries live in flat float64 arrays, eight consecutive doubles each; offsets count entries, not doubles. `load_at` and
`store_at` find them in the rows of a matrix.
"""

from typing import Any

from factorize.numbers.compiling import Kernel


def _operation(name: str) -> Any:
    """Return an operation of `lane_operations`, whatever its arguments: compiled code alone calls it."""

    def compiled(_: object) -> Any:
        from factorize.solvers.methods import lane_operations

        return getattr(lane_operations, name)

    return Kernel(compiled, compiled)


load = _operation("load")
store = _operation("store")
load_at = _operation("load_at")
store_at = _operation("store_at")
spread = _operation("spread")
total = _operation("total")
reciprocal = _operation("reciprocal")
