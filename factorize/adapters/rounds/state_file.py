"""The state of a federated run in one file, written as a whole: its digest, then a safetensors file."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import load, save

from factorize.encoding import JsonObject
from factorize.errors import InvalidParameter
from factorize.format.files import replace_file


def write_state(path: Path, plain: Mapping[str, object], arrays: Mapping[str, np.ndarray]) -> None:
    """Replace the whole state, which is on the disk when this returns."""
    body = save(dict(arrays), metadata={"state": json.dumps(plain)})
    replace_file(path, [hashlib.sha256(body).digest(), body])


def read_state(path: Path) -> tuple[JsonObject, dict[str, np.ndarray]]:
    """Return the plain data and the arrays of a state.

    Raises:
        InvalidParameter: the file is damaged.
    """
    data = path.read_bytes()
    if hashlib.sha256(data[32:]).digest() != data[:32]:
        raise InvalidParameter(f"{path} is damaged; restore the newest undamaged state", field="path")
    size = int.from_bytes(data[32:40], "little")
    kept = json.loads(json.loads(data[40 : 40 + size])["__metadata__"]["state"])
    return kept, load(data[32:])
