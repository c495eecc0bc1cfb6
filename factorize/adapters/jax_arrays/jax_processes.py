"""Several processes of JAX: what all of them have to share, since they make one job's noise together."""

import hashlib

import jax
import numpy as np
import optax
from jax.experimental import multihost_utils

from factorize.adapters.jax_arrays.jax_programs import is_traced
from factorize.encoding import JsonObject, canonical_json
from factorize.errors import InvalidParameter


def refuse_alone(tree: optax.Params, field: str) -> None:
    """Refuse arrays that one of several processes holds by itself.

    Args:
        tree: the parameters, their gradients, or the data.
        field: their name, for the message.

    Raises:
        InvalidParameter: they are on devices of this process only, so that each process would train alone.
    """
    if jax.process_count() > 1 and any(
        getattr(leaf, "is_fully_addressable", True) for leaf in jax.tree.leaves(tree) if not is_traced(leaf)
    ):
        raise InvalidParameter(
            f"{jax.process_count()} processes train together (jax.distributed), but the {field} are on devices of "
            "this one, so each would make the job alone, and with one seed their differences have no noise; place "
            "parameters and data on a mesh of all devices: jax.make_array_from_callback(shape, sharding, part)",
            field=field,
        )


def refuse_other_noise(stated: JsonObject) -> None:
    """Refuse processes whose noises differ, since each would add its own to the same sum; all of them call this.

    Raises:
        InvalidParameter: seed, factorization, scale or dtype are others on another process; every process raises it.
    """
    if jax.process_count() == 1:
        return
    own = np.frombuffer(hashlib.sha256(canonical_json(stated)).digest(), np.uint32)
    if len(np.unique(multihost_utils.process_allgather(own), axis=0)) > 1:
        raise InvalidParameter(
            f"seed, factorization, calibration or dtype differ on the {jax.process_count()} processes, so that each "
            "would release the same sums with a noise of its own; draw one secret seed for all of them before they "
            "start (secrets.randbits(128)), and give all the same factors and settings",
            field="seed",
        )


def number_of_first(number: int) -> int:
    """Return the first process's number, which alone is called back by programs; all processes call this."""
    return number if jax.process_count() == 1 else int(multihost_utils.broadcast_one_to_all(np.int32(number)))


def refuse_other_process(name: str) -> None:
    """Refuse to tell on another process than the first what it alone knows.

    Args:
        name: what is asked for.

    Raises:
        InvalidParameter: this is another process.
    """
    if jax.process_index() > 0:
        raise InvalidParameter(
            f"process {jax.process_index()} does not know whose noise was taken; save {name} on the first process "
            "(jax.process_index() == 0), and load it on all",
            field="state",
        )
