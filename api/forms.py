"""Forms of a file: what it is to hold beside the result itself, as a request says it."""

from __future__ import annotations

from dataclasses import dataclass

from factorize.errors import InvalidParameter
from factorize.factorization import MATRIX_NAMES, MatrixName
from factorize.format.description import DTYPES


def read_names(text: str | None) -> tuple[MatrixName, ...]:
    """Read a list of matrices, `C,C_inv,B`.

    Raises:
        InvalidParameter: an unknown name.
    """
    names = [] if text is None else text.split(",")
    if not set(names) <= set(MATRIX_NAMES):
        known = ", ".join(MATRIX_NAMES)
        raise InvalidParameter(f"matrices is a list of {known} with commas between, such as C,C_inv", field="matrices")
    return tuple(name for name in MATRIX_NAMES if name in names)


@dataclass(frozen=True, slots=True)
class Form:
    """What a file is to hold.

    Args:
        matrices: names; C alone by default.
        dtype: of their numbers; as they were certified first by default.
    """

    matrices: tuple[MatrixName, ...] = ()
    dtype: str | None = None

    def __bool__(self) -> bool:
        """Whether anything but the result itself is asked for."""
        return bool(self.matrices) or self.dtype is not None


ANY_FORM = Form()


def read_form(matrices: str | None, dtype: str | None) -> Form:
    """Read the parameters `matrices` and `dtype` of a request.

    Raises:
        InvalidParameter: an unknown name or type.
    """
    if dtype is not None and dtype not in DTYPES:
        raise InvalidParameter(f"dtype {dtype[:20]!r} is not one of {', '.join(DTYPES)}", field="dtype")
    return Form(read_names(matrices), dtype)
