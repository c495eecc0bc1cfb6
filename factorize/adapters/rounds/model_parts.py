"""Shapes and types of the arrays of a model, of which all updates must be."""

from collections.abc import Iterable, Mapping

import numpy as np

from factorize.adapters.gradients.clipped_sums import host_array
from factorize.errors import InvalidParameter


def read_parts(model: Iterable[object]) -> list[tuple[tuple[int, ...], str]]:
    """Return the shape and the type of each array of a model.

    Raises:
        InvalidParameter: the model is no list of arrays, has none, or has one of whole numbers.
    """
    refuse_unlisted(model)
    parts = [(part.shape, part.dtype.str) for part in map(host_array, model)]
    odd = [
        f"array {i} has {np.dtype(kind)}" for i, (_, kind) in enumerate(parts) if not np.issubdtype(kind, np.floating)
    ]
    if odd or not parts:
        raise InvalidParameter(
            f"the model has to be floating-point arrays, at least one ({', '.join(odd[:3]) or 'it has none'}); leave "
            "counters, such as num_batches_tracked of batch norm, out of the model and of updates",
            field="model",
        )
    return parts


def refuse_unlisted(model: object) -> None:
    """Raise InvalidParameter for a model that is no list, but has names, for example."""
    if isinstance(model, Mapping) or not isinstance(model, Iterable):
        raise InvalidParameter(
            f"the model is of type {type(model).__name__}; give a list of its arrays, in its order: "
            "list(model.values()), or to_numpy_ndarrays() of Flower's record",
            field="model",
        )
