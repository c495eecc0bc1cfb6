"""Released weights: what a job gives, and the digest of it that the receipt states (`factorize.format.weights`)."""

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
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
_NOTHING = {sha256(b""), json_digest({})}
"""The digests of an empty file, a directory without files, and no tensors."""


def model_digest(model: object, *, receipt: Path | None = None) -> dict[str, str]:
    """Return the digest of released weights, and their kind.

    Args:
        model: the path of a file or of a directory; or tensors in memory: a module with `state_dict`, or nested
            mappings and lists of arrays.
        receipt: the real path of the receipt that will state the digest.

    Raises:
        InvalidParameter: the model is none of these, has no weights, or holds the receipt; or tensors have no names,
            one name or one memory.
        OSError: a file cannot be read.
    """
    if isinstance(model, str | bytes | os.PathLike):
        path = local_path(model)
        if receipt is not None and receipt.is_relative_to(os.path.realpath(path)):
            raise InvalidParameter(
                f"{path} holds the receipt {receipt.name}, which changes now, so nobody would find its digest again; "
                "save the weights in a file or a directory of their own, and give that",
                field="model",
            )
        kind = DIRECTORY if path.is_dir() else FILE
        digest = digest_of_path(path, kind)
    else:
        kind, digest = TENSORS, json_digest(_described_by_name(model))
    if digest in _NOTHING:
        what = "these tensors have" if kind == TENSORS else f"this {kind} has"
        message = f"{what} no weights, so the digest would be that of any other empty model; save the weights first"
        raise InvalidParameter(message, field="model")
    return {"of": kind, "sha256": digest}


def _described_by_name(model: object) -> dict[str, list[object]]:
    """Return the description of each tensor in memory; see `model_digest`."""
    model = getattr(model, "_module", getattr(model, "_orig_mod", model))  # Opacus and torch.compile wrap models.
    held = model.state_dict() if hasattr(model, "state_dict") else model
    if not isinstance(held, Mapping | list | tuple) or not held:
        raise InvalidParameter(
            f"weights in a {type(model).__name__} have no names; give a module, a mapping from names to arrays, or "
            "the path of the released file",
            field="model",
        )
    described: dict[str, list[object]] = {}
    places: dict[object, str] = {}
    for name, one in _leaves(held):
        if name in described:
            message = f"two tensors have the name {name[:80]!r}; rename one, or give the path of the released file"
            raise InvalidParameter(message, field="model")
        described[name] = _described(name, one)
        place = getattr(one, "data_ptr", int)()  # of torch alone: 0 for other arrays, and for an empty tensor
        if place and (other := places.setdefault((getattr(one, "device", None), place), name)) != name:
            raise InvalidParameter(
                f"{other[:80]!r} and {name[:80]!r} are one tensor (tied weights), which a safetensors file holds under "
                "one of the names; save the weights, and give the path of their file or directory",
                field="model",
            )
    return described


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
    if kind is None or hasattr(tensor, "full_tensor") or getattr(tensor, "is_sparse", False):
        raise InvalidParameter(
            f"{name[:80]!r} is a {type(tensor).__name__}, not a whole tensor of numbers; save the model, and give the "
            "path of its file",
            field="model",
        )
    shape = [int(side) for side in tensor.shape]
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().cpu().contiguous().reshape(-1).view(sys.modules["torch"].uint8).numpy()
    return [kind, shape, sha256(raw_bytes(np.asarray(tensor)))]
