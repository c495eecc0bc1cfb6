"""Noising matrices C^-1 in memory, for questions about a factorization."""

from __future__ import annotations

import numpy as np


class Noising:
    """A C^-1 in memory."""

    def __init__(self, matrix: np.ndarray) -> None:
        self.matrix = matrix

    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        assert name == "C_inv"
        return self.matrix[start:stop]

    def shape(self, name: str) -> tuple[int, int]:
        return self.matrix.shape


def independent(n: int) -> Noising:
    return Noising(np.eye(n))


def differences(n: int) -> Noising:
    return Noising(np.eye(n) - np.eye(n, k=-1))
