"""Projections onto convex sets, by hand."""

from __future__ import annotations

import numpy as np

from papers.algorithms import Ball, Box


def test_projections() -> None:
    np.testing.assert_allclose(Ball(1.0)(np.array([3.0, 4.0])), [0.6, 0.8])
    np.testing.assert_array_equal(Ball(10.0)(np.array([3.0, 4.0])), [3.0, 4.0])
    np.testing.assert_array_equal(Box(1.0)(np.array([3.0, -0.4])), [1.0, -0.4])
