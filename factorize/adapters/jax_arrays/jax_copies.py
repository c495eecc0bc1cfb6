"""Copies in data of JAX: arrays that hold each of their examples several times."""

from collections.abc import Sequence

import jax
import numpy as np
from jax import numpy as jnp

from factorize.adapters.jax_arrays.jax_programs import is_traced
from factorize.adapters.jax_arrays.jax_table import with_auto_axes
from factorize.errors import InvalidParticipation

MAX_COPIES = 10
"""The most copies of the whole data that are looked for."""
_TWINS = 8
"""The number of pairs of equal examples, all different, that are no accident; fewer may be of different people."""


def refuse_copies(data: Sequence[jax.Array]) -> None:
    """Refuse data that are copies of fewer examples, one after another or side by side, as tile and repeat make them.

    Keys of random numbers do not tell examples apart, and arrays without values yet are not looked at.

    Raises:
        InvalidParticipation: the data are, so that an example takes part more often than the participation allows.
    """
    arrays = [each for each in data if not jnp.issubdtype(each.dtype, jax.dtypes.extended)]
    if not arrays or any(map(is_traced, arrays)):
        return
    size = len(arrays[0])
    for count in (count for count in range(2, MAX_COPIES + 1) if size % count == 0 and size >= count * _TWINS):
        for apart, stride in ((size // count, 1), (1, count)):
            first = np.arange(_TWINS) * stride
            one, other = _rows(arrays, first), _rows(arrays, first + apart)
            if one == other and len(set(one)) == _TWINS:
                raise InvalidParticipation(
                    f"the {size} examples are {count} copies of {size // count}, so that each would take part more "
                    "often than the participation allows; give each once and more epochs, or users=[number of the "
                    "example of each row], whose rows take turns",
                    field="data",
                )


def _rows(arrays: Sequence[jax.Array], places: np.ndarray) -> list[bytes]:
    """Return the bytes of examples, each over all arrays."""
    with jax.ensure_compile_time_eval():
        taken = [np.asarray(with_auto_axes(lambda each: each[places], each)) for each in arrays]
    return [b"".join(each[i].tobytes() for each in taken) for i in range(len(places))]
