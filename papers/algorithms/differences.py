"""Differences of contributions at two iterates, which recursive gradients clip in place of the gradients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from factorize.errors import InvalidParameter
from papers.training.clip import Contributions, Rows
from papers.training.models import OuterProducts


def combined(one: Contributions, factor: float, other: Contributions, other_factor: float) -> Contributions:
    """Return factor one - other_factor other, example by example; of outer products of the same features by residuals.

    Args:
        one: contributions of a batch.
        factor: factor of these contributions.
        other: contributions of the same batch at the other iterate.
        other_factor: factor of the other ones.

    Raises:
        InvalidParameter: there is another number of rows.
    """
    if isinstance(one, OuterProducts) and isinstance(other, OuterProducts):
        if np.array_equal(one.features, other.features):
            return replace(one, residuals=factor * one.residuals - other_factor * other.residuals)
    if len(other) != len(one):
        raise InvalidParameter(
            f"the gradient function returned {len(one)} contributions for a batch, then {len(other)} for the same "
            "batch; return the same number each time, one per example",
            field="gradient",
        )
    with np.errstate(over="ignore", invalid="ignore"):
        return Rows(factor * one.dense() - other_factor * other.dense())
