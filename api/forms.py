"""Forms of a file: what it is to hold beside the result itself, how a form is known in a store, and how one is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from factorize.api.workers.ending import Ending, WorkerEnded, without_places
from factorize.api.workers.publishing import Limits, Stages, published
from factorize.errors import FactorizeError, InvalidParameter, StoreUnavailable, TooLarge
from factorize.format.description import DTYPES
from factorize.format.names import MATRIX_NAMES, MatrixName

if TYPE_CHECKING:
    from factorize.api.workers.pool import Pool
    from factorize.storage.store import Store


LIMIT_SECONDS = 600.0

Key = tuple[str, tuple[str, ...]]
"""What it is made from, and the names of its matrices."""


def matrices_key(manifest: Mapping[str, Any], names: Sequence[str]) -> Key:
    """Return the key of a result's C with further matrices: they share the spec and the bytes of C."""
    return f"{manifest['spec_digest']} {manifest['matrices']['C']['sha256']}", tuple(names)


def type_key(digest: str, dtype: str) -> Key:
    """Return the key of a result's C alone in another type."""
    return f"{digest} as {dtype}", ("C",)


def form_of(manifest: Mapping[str, Any]) -> Key | None:
    """Return the key of a result that is a form of another, or None for one that is not."""
    matrices, origin = manifest["matrices"], manifest["solver"].get("cast_from")
    names = tuple(name for name in MATRIX_NAMES if name in matrices)
    if len(names) > 1:
        return matrices_key(manifest, names)
    return None if origin is None else type_key(origin, matrices["C"]["dtype"])


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


def made_form(
    pool: Pool,
    store: Store,
    most_seconds: float,
    digest: str,
    matrices: Sequence[MatrixName],
    dtype: str | None,
    *,
    memory_mb: int,
) -> str:
    """Have a stored factorization written in another form, proved and stored by workers, and return its digest.

    Args:
        pool: the workers.
        store: where it is.
        most_seconds: wall limit of this service.
        digest: of the factorization.
        matrices: what the file is to hold beside C.
        dtype: type of C in the file, or None for its own.
        memory_mb: what either worker may take, in units of 2^20 bytes.

    Raises:
        TooLarge: it took more memory or time than it may.
        InvalidParameter: there is no such form.
        StoreUnavailable: a worker ended otherwise; try again.
    """
    limits = Limits(min(LIMIT_SECONDS, most_seconds), memory_mb, pool.processors)
    request = {"digest": digest, "matrices": list(matrices), "dtype": dtype}
    try:
        with pool.place() as place:
            stages = Stages(lambda _step: None)
            manifest = published("form", request, place=place, store=store, limits=limits, stages=stages)
    except WorkerEnded as error:
        if error.ending in (Ending.TIMEOUT, Ending.OUT_OF_MEMORY):
            raise TooLarge(f"{without_places(str(error))}; stream the rows instead") from None
        raise StoreUnavailable(str(error)) from None
    except InvalidParameter:
        raise
    except FactorizeError as error:
        raise StoreUnavailable(str(error)) from None
    return str(manifest["digest"])
