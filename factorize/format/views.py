"""Views of factors, wherever they are: whole matrices as arrays where they fit, and how factors look when shown."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

import numpy as np

from factorize.errors import TooLarge, UnsupportedProblem
from factorize.format.manifest import ENDLESS, steps_of
from factorize.format.portrait import html, line

LARGEST_ARRAY = 1 << 31
"""Bytes of a matrix that is handed out as one array."""


class ViewedFactors(ABC):
    """Factors with `C`, `C_inv` and `B` as arrays, and with a text and a portrait of their certificate."""

    manifest: dict[str, Any]

    @abstractmethod
    def opened(self) -> Any:
        """Return the `factorize.Factorization`, which has C in memory."""

    @abstractmethod
    def _block(self, name: str, start: int, stop: int) -> np.ndarray:
        """Return rows start..stop-1 of a matrix, shape (stop - start, n), float64."""

    @cached_property
    def C(self) -> np.ndarray:  # noqa: N802  the name of the matrix in formulas
        """The strategy matrix, shape (n, n), read-only; kept once it was asked for.

        Raises:
            TooLarge: it takes more than 2 GiB; read its rows.
            UnsupportedProblem: it has no last row.
        """
        return self._whole("C")

    @cached_property
    def C_inv(self) -> np.ndarray:  # noqa: N802  the name of the matrix in formulas
        """The noising matrix C^-1, shape (n, n), read-only; it raises as `C`."""
        return self._whole("C_inv")

    @cached_property
    def B(self) -> np.ndarray:  # noqa: N802  the name of the matrix in formulas
        """The decoder A C^-1, one row for each output of the workload, read-only; it raises as `C`."""
        return self._whole("B")

    def _whole(self, name: str) -> np.ndarray:
        n = steps_of(self.manifest)
        if n == ENDLESS:
            raise UnsupportedProblem(
                f"{name} has no last row and is no array; read a range of rows: factors.rows({name!r}, 0, 100)",
                field=name,
            )
        rows = self.manifest["spec"]["workload"].get("shape", [n])[0] if name == "B" else n
        if 8 * rows * n > LARGEST_ARRAY:
            raise TooLarge(
                f"{name} with n={n} takes {8 * rows * n / 2**30:.1f} GiB as an array, above {LARGEST_ARRAY >> 30} GiB; "
                f"read some rows, factors.rows({name!r}, 0, 100), or make noise from it, which needs no whole matrix"
            )
        found = self._block(name, 0, rows)
        found.setflags(write=False)
        return found

    def __repr__(self) -> str:
        """One line: spec, sensitivity, loss, gap, digest."""
        return line(type(self).__name__, self.manifest)

    def _repr_html_(self) -> str:
        """The certificate in words and a small picture, for notebooks."""
        return html(self, type(self).__name__)
