"""The guard of a noise in JAX: each step is taken once, by the run that the state is of, eagerly and under jit.

A state of JAX is a value: `update` may be called with it twice, `vmap` gives many members one step, and a program that
was traced once runs for ever. What the tracing shows is refused there; the rest is checked on the host whenever the
program runs, and a refusal stops it.
"""

from typing import Any, NoReturn

import jax
import numpy as np
import optax
from jax.custom_batching import custom_vmap
from jax.experimental import io_callback
from jax.typing import ArrayLike

from factorize.adapters.jax_table import manual_axes, place_of
from factorize.client.single_use import NoiseUse
from factorize.errors import InvalidParameter


class StepGuard:
    """The use of one noise by one transformation.

    Args:
        commitment: of seed and factorization.
        steps: n.

    Raises:
        InvalidParameter: another transformation of this noise is alive.
    """

    def __init__(self, commitment: str, steps: int) -> None:
        self._use, self._steps = NoiseUse(commitment), steps

    def take(
        self, updates: optax.Updates, step: jax.Array, commitment: jax.Array, own: np.ndarray
    ) -> tuple[optax.Updates, jax.Array]:
        """Return updates and step, where the step is the next one of this run; to be called for each of them.

        Args:
            updates: a tree.
            step: of the state.
            commitment: of the state.
            own: what it has to be.

        Raises:
            InvalidParameter: vmap; or, where their values are known, a step that was taken, or another run's state.
        """
        updates, step, commitment = _refuse_vmap((updates, step, commitment))
        known = not any(isinstance(each, jax.core.Tracer) for each in (step, commitment))
        if known:
            self._take(own, step, commitment, 0)
        else:
            place = place_of(manual_axes())
            io_callback(lambda *values: self._take(own, *values), None, step, commitment, place)
        return updates, step

    def close(self) -> None:
        """Let another transformation make the noise, or this one make it again."""
        self._use.close()

    def _take(self, own: np.ndarray, step: ArrayLike, commitment: ArrayLike, place: ArrayLike) -> None:
        if not np.array_equal(np.asarray(commitment), own):
            raise InvalidParameter(
                "the state is of another seed, factorization, scale, dtype or of other parameters, and the noise would "
                "not go on where it stopped; restore the state of this run, or begin with init(params)",
                field="commitment",
            )
        if int(step) >= self._steps:
            raise InvalidParameter(
                f"step {int(step) + 1} is past n={self._steps}: no sensitivity covers it; stop, or factor a larger n",
                field="step",
            )
        self._use.take(int(step), int(place))


def _refused(size: int, batched: object, values: object) -> NoReturn:
    raise InvalidParameter(
        f"under vmap the {size} members would get one row of noise, and their differences none; give each a "
        "transformation with a seed of its own, outside of vmap",
        field="updates",
    )


_refuse_vmap: Any = custom_vmap(lambda values: values)
_refuse_vmap.def_vmap(_refused)
