"""Files of strategies as other libraries write them: TensorFlow's serialized tensors, numpy's arrays and archives."""

from __future__ import annotations

from io import BytesIO

import numpy as np


def varint(value: int) -> bytes:
    low, rest = value & 127, value >> 7
    return bytes([low | 128]) + varint(rest) if rest else bytes([low])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def tensor_proto(array: np.ndarray, kind: int = 2, number: int = 4) -> bytes:
    """Return what `tf.io.serialize_tensor` writes: dtype, shape, tensor_content."""
    sides = b"".join(field(2, b"\x08" + varint(side)) for side in array.shape)
    numbers = array.astype({1: "<f4", 2: "<f8"}[kind]).tobytes()
    return b"\x08" + varint(kind) + field(2, sides) + field(number, numbers)


def npy(array: np.ndarray) -> bytes:
    stream = BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def npz(**arrays: np.ndarray) -> bytes:
    stream = BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()
