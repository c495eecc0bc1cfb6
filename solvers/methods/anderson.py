"""Anderson's extrapolation of a fixed-point iteration.

Reference: Anderson, Iterative procedures for nonlinear integral equations (1965); the type-II form in differences.
"""

import numpy as np

_DEPTH = 10
_CUT = 1e-8  # singular values of the differences below this share of the largest are noise


class Anderson:
    """Remembers the last iterates x and their images g(x), and proposes the next x."""

    def __init__(self) -> None:
        self._iterates: list[np.ndarray] = []
        self._images: list[np.ndarray] = []

    def forget(self) -> None:
        """Start afresh: the last proposal was refused."""
        self._iterates.clear()
        self._images.clear()

    def mix(self, iterate: np.ndarray, image: np.ndarray, importance: np.ndarray) -> np.ndarray | None:
        """Return the combination of the remembered images whose residual g(x) - x is smallest, or None at first.

        Args:
            iterate: x, shape (d,).
            image: g(x), shape (d,).
            importance: weights of the residual's entries in the least squares, shape (d,).
        """
        self._iterates = [*self._iterates[-_DEPTH:], iterate]
        self._images = [*self._images[-_DEPTH:], image]
        if len(self._images) < 2:
            return None
        images = np.array(self._images)
        residuals = (images - np.array(self._iterates)) * importance
        steps = np.diff(residuals, axis=0)
        try:
            shares = np.linalg.lstsq(steps.T, residuals[-1], rcond=_CUT)[0]
        except np.linalg.LinAlgError:
            return None
        mixed = image - shares @ np.diff(images, axis=0)
        return mixed if np.isfinite(mixed).all() else None
