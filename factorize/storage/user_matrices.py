"""Users' workload matrices: raw numbers under the sha256 by which a spec names them."""

from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np

from factorize.encoding import raw_bytes
from factorize.errors import InvalidParameter, NotFound
from factorize.factorization import Factorization
from factorize.spec import Spec
from factorize.storage.blobs import Blobs, blob_key
from factorize.storage.objects import Objects
from factorize.storage.records import user_matrices
from factorize.workloads.matrix import from_array


class Matrices:
    """The users' matrices of a store.

    Args:
        objects: the medium.
        blobs: the blobs on it.
    """

    def __init__(self, objects: Objects, blobs: Blobs) -> None:
        self._objects = objects
        self._blobs = blobs

    def put(self, array: np.ndarray) -> str:
        """Store a matrix and return its sha256; see `Store.put_matrix`."""
        named = from_array(array)
        sha256 = str(named.sha256)
        if self._blobs.sound(sha256):
            self.keep(sha256)
        else:
            self._objects.publish((blob_key(sha256), raw_bytes(named.array), lambda: self._blobs.sound(sha256)))
        return sha256

    def put_those_of(self, factorization: Factorization) -> None:
        """Store the matrices that a factorization's spec names, or see that they are there.

        Raises:
            NotFound: one of them has no numbers here, and none in the store.
        """
        bound = bound_matrices(factorization.spec)
        for sha256, shape in user_matrices(factorization.manifest.spec):
            if sha256 in bound:
                self.put(bound[sha256])
            else:
                self.read(sha256, shape)

    def keep(self, sha256: str) -> None:
        """Let the grace of a blob that nothing names yet start anew (`factorize.storage.gc`)."""
        with suppress(NotFound):
            self._objects.refresh(blob_key(sha256))

    def read(self, sha256: str, shape: Sequence[int]) -> np.ndarray:
        """Return a user's matrix, verified and read-only.

        Args:
            sha256: its name.
            shape: (m, n).

        Raises:
            NotFound: it was never uploaded.
            InvalidParameter: the blob does not have that many numbers.
            CorruptObject: damaged.
        """
        rows, columns = shape
        blob = self._blobs.open(sha256)
        if blob.size != 8 * rows * columns:
            needed = f"shape {rows} x {columns} takes {8 * rows * columns}"
            raise InvalidParameter(f"the matrix {sha256} has {blob.size} bytes; {needed}", field="shape")
        return np.frombuffer(b"".join(blob.read()), dtype="<f8").reshape(rows, columns)

    def bind(self, spec: Spec) -> Spec:
        """Return a spec with the numbers of its users' matrices; those that it lacks are read."""
        arrays = {}
        for part in spec.user_matrices().values():
            if part.sha256 is not None and part.shape is not None and not part.bound:
                arrays[part.sha256] = self.read(part.sha256, part.shape)
        return spec.bind(arrays)

    def named_by(self, document: Mapping[str, object]) -> dict[str, np.ndarray]:
        """Return the matrices that a canonical spec document names, by sha256; see `read`."""
        return {sha256: self.read(sha256, shape) for sha256, shape in user_matrices(document)}


def bound_matrices(spec: Spec) -> dict[str, np.ndarray]:
    """Return the numbers of the users' matrices that a spec carries with it, by sha256."""
    parts = spec.user_matrices().values()
    return {str(part.canonical().sha256): part.array for part in parts if part.bound}
