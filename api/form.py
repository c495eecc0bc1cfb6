"""The form of a file: what it is to hold beside the result itself, further matrices or another type of numbers.

The key of a form is a digest of what it is made from and of what it is to hold.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from factorize.encoding import sha256
from factorize.errors import InvalidParameter
from factorize.format.description import DTYPES
from factorize.format.manifest import Manifest
from factorize.format.tensors import MATRIX_NAMES, MatrixName
from factorize.numbers.scalars import check_choice


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a file: what it is to hold.

    Args:
        matrices: names; C alone by default.
        dtype: type of their numbers; as they were certified first by default.
    """

    matrices: tuple[MatrixName, ...] = ()
    dtype: str | None = None

    def __bool__(self) -> bool:
        """Return whether anything but the result itself is asked for."""
        return bool(self.matrices) or self.dtype is not None


ANY_FORM = Form()


def read_form(matrices: str | None, dtype: str | None) -> Form:
    """Read the parameters `matrices` and `dtype` of a request.

    Raises:
        InvalidParameter: an unknown name or type.
    """
    if dtype is not None:
        check_choice("dtype", dtype, DTYPES)
    return Form(read_names(matrices), dtype)


def read_names(text: str | None) -> tuple[MatrixName, ...]:
    """Read a list of matrices, `C,C_inv,B`.

    Raises:
        InvalidParameter: an unknown name.
    """
    names = [] if text is None else text.split(",")
    for name in (name for name in names if name not in MATRIX_NAMES):
        known = ", ".join(MATRIX_NAMES)
        message = f"matrix {name[:20]!r} is not one of {known}; write them with commas between, such as C,C_inv"
        raise InvalidParameter(message, field="matrices")
    return tuple(name for name in MATRIX_NAMES if name in names)


def matrices_key(manifest: Manifest, names: Sequence[str]) -> str:
    """Return the key of a result's C with further matrices: they share the spec and the bytes of C."""
    return sha256(f"{manifest.spec_digest} {manifest.matrix('C').sha256} {','.join(names)}".encode())


def type_key(digest: str, dtype: str) -> str:
    """Return the key of a result's C alone in another type."""
    return sha256(f"{digest} as {dtype} C".encode())


def form_of(manifest: Manifest) -> str | None:
    """Return the key of a result that is a form of another, or None for one that is not."""
    names = tuple(name for name in MATRIX_NAMES if name in manifest.names)
    if len(names) > 1:
        return matrices_key(manifest, names)
    return type_key(manifest.cast_from, manifest.matrix("C").dtype) if manifest.cast_from else None
