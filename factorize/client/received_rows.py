"""Rows of C, C^-1 or B that a service sends, compared with their checksums."""

import zlib

import numpy as np

from factorize.client.service import PATH, Service
from factorize.errors import InvalidParameter, ServiceUnreachable
from factorize.factors.rows import BLOCK_BYTES
from factorize.format.manifest import Manifest
from factorize.format.tensors import MatrixName


def received(service: Service, manifest: Manifest, matrix: MatrixName, start: int, stop: int) -> np.ndarray:
    """Return rows of a matrix from a service, each block of at most 4 MiB compared with the CRC-32 sent with it.

    Raises:
        InvalidParameter: the rows are outside the matrix.
        ServiceError, ServiceUnreachable: see `Rows.blocks`.
    """
    rows, n = manifest.shape(matrix)
    if not 0 <= start <= stop <= rows:
        raise InvalidParameter(f"rows {start}:{stop} are outside {matrix}, rows 0:{rows}", field="rows")
    per_block, block = max(1, BLOCK_BYTES // (8 * n)), np.empty((stop - start, n))
    path = f"{PATH}/{manifest.digest}/matrices/{matrix}?rows="
    for first in range(start, stop, per_block):
        last = min(first + per_block, stop)
        stated = {"X-Factorize-Digest": manifest.digest, "X-Factorize-Shape": f"{last - first},{n}"}
        body = _receive(service, f"{path}{first}:{last}", 8 * (last - first) * n, stated)
        block[first - start : last - start] = np.frombuffer(body, dtype="<f8").reshape(-1, n)
    return block


def _receive(service: Service, path: str, size: int, stated: dict[str, str]) -> bytes:
    """Return a block of rows as bytes; a block that is broken, or has unexpected headers, is requested again.

    Args:
        service: the service that has the rows.
        path: path of the block.
        size: bytes of the block.
        stated: the expected headers, besides type and checksum.
    """

    def ask() -> bytes:
        with service.connection.send("GET", path) as reply:
            body = reply.body(size)
        own = {**stated, "X-Factorize-Dtype": "float64", "X-Factorize-Crc32": f"{zlib.crc32(body):08x}"}
        wrong = next((name for name, value in own.items() if reply.header(name) != value), None)
        if wrong is None and len(body) == size:
            return body
        of = f"{len(body)} bytes or more" if wrong is None else f"the {wrong} {str(reply.header(wrong))[:64]!r}"
        raise ServiceUnreachable(
            f"{path} came with {of}; a proxy between the service and this machine may change the rows"
        )

    return service.patiently(ask)
