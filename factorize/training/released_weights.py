"""Released weights: what a job gives, and the digest of it that the receipt states (`factorize.format.weights`)."""

import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from factorize.encoding import json_digest, raw_bytes, sha256
from factorize.errors import InvalidParameter
from factorize.format.container import local_path
from factorize.format.weights import DIRECTORY, FILE, TENSORS, digest_of_path

_TYPES = {
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
    **{"bfloat16": "BF16", "bool": "BOOL"},
}
"""The names of safetensors for types of numpy, torch and JAX."""


def model_digest(model: object) -> dict[str, str]:
    """Return the digest of released weights, and their kind.

    Args:
        model: the path of a file or of a directory; or tensors in memory: a module with `state_dict`, or nested
            mappings and lists of arrays.

    Raises:
        InvalidParameter: the tensors have no names or one name twice, or the model is none of these.
        OSError: a file cannot be read.
    """
    if isinstance(model, str | bytes | os.PathLike):
        path = local_path(model)
        kind = DIRECTORY if path.is_dir() else FILE
        return {"of": kind, "sha256": digest_of_path(path, kind)}
    model = getattr(model, "_module", getattr(model, "_orig_mod", model))  # Opacus and torch.compile wrap models.
    held = model.state_dict() if hasattr(model, "state_dict") else model
    if not isinstance(held, Mapping | list | tuple) or not held:
        raise InvalidParameter(
            f"weights in a {type(model).__name__} have no names; give a module, a mapping from names to arrays, or "
            "the path of the released file",
            field="model",
        )
    described: dict[str, list[object]] = {}
    for name, one in _leaves(held):
        if name in described:
            message = f"two tensors have the name {name[:80]!r}; rename one, or give the path of the released file"
            raise InvalidParameter(message, field="model")
        described[name] = _described(name, one)
    return {"of": TENSORS, "sha256": json_digest(described)}


def _leaves(value: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Yield the tensors in nested mappings and lists, with names joined by points."""
    if isinstance(value, Mapping | list | tuple):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, entry in items:
            yield from _leaves(entry, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def _described(name: str, tensor: Any) -> list[object]:
    """Return the type, the shape and the sha256 of the little-endian bytes of a tensor."""
    kind = _TYPES.get(str(getattr(tensor, "dtype", None)).removeprefix("torch."))
    if kind is None or hasattr(tensor, "full_tensor"):
        raise InvalidParameter(
            f"{name[:80]!r} is a {type(tensor).__name__}, not a whole tensor of numbers; save the model, and give the "
            "path of its file",
            field="model",
        )
    shape = [int(side) for side in tensor.shape]
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().cpu().contiguous().reshape(-1).view(sys.modules["torch"].uint8).numpy()
    return [kind, shape, sha256(raw_bytes(np.asarray(tensor)))]
