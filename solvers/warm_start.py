"""A start from a stored neighbour: its dual weights, resampled for another number of steps.

Dual weights are smooth in the bulk and have boundary layers of a fixed number of steps at both ends. So they are
interpolated in logit((j + 1/2) / b), logarithms of weights and correlations entry by entry, and towards the ends they
go over into the neighbour's own ends, step by step. Any start is correct; a bad one costs steps.
"""

from __future__ import annotations

import numpy as np

from factorize.factorization import Factorization
from factorize.spec import Spec
from factorize.storage.neighbours import Neighbour

_LAYER = 4  # a quarter of the classes at either end goes over into the neighbour's
_LEAST = 1e-14  # of the largest weight
_SHARE = 1e-9  # of the identity, so that no correlation matrix is singular


def resampled(neighbour: Factorization | Neighbour, spec: Spec) -> np.ndarray | None:
    """Return blocks W_j to start from, shape (b, k, k), summing to 1 along (j, 0, 0); k is 1 for single participation.

    Args:
        neighbour: a result whose dual is known, for any workload.
        spec: canonical spec to be solved.

    Returns:
        None where the neighbour has no dual weights, or other epochs, or the objective weighs rows, too.
    """
    k = _epochs(spec)
    if k is None or k != _epochs(neighbour.spec):
        return None
    blocks = _blocks(neighbour)
    return None if blocks is None or len(blocks) < 2 else stretched(blocks, spec.workload.n // k)


def _epochs(spec: Spec) -> int | None:
    return spec.participation.passes if spec.objective.quadratic else None


def _blocks(neighbour: Factorization | Neighbour) -> np.ndarray | None:
    weights, factors = neighbour.dual.get("weights"), neighbour.dual.get("factors")
    if weights is not None:
        return np.asarray(np.maximum(weights, _LEAST * weights.max())[:, None, None])
    if factors is None:
        return None
    products = factors @ factors.transpose(0, 2, 1)
    roots = np.sqrt(np.einsum("jss->js", products))
    if not roots.all():
        return None
    level = (roots**2).max(axis=1)
    level = np.maximum(level, _LEAST * level.max())
    return np.asarray(level[:, None, None] * products / roots[:, :, None] / roots[:, None, :])


def stretched(blocks: np.ndarray, classes: int) -> np.ndarray:
    """Return blocks for another number of classes.

    Args:
        blocks: W_j with constant diagonals, shape (b, k, k), b at least 2.
        classes: the number wanted.
    """
    old = len(blocks)
    weights = np.log(blocks[:, 0, 0])
    correlations = blocks / blocks[:, :1, :1]
    position = np.interp(_logits(classes), _logits(old), np.arange(old, dtype=np.float64))
    before = np.minimum(position.astype(np.int64), old - 2)
    share = position - before
    smooth = (1 - share) * weights[before] + share * weights[before + 1]
    between = (1 - share)[:, None, None] * correlations[before] + share[:, None, None] * correlations[before + 1]
    here = np.arange(classes)
    from_end = np.minimum(here, classes - 1 - here)
    layer = max(1, min(old, classes) // _LAYER)
    own = np.clip(1 - from_end / layer, 0.0, 1.0)
    source = np.where(here <= classes - 1 - here, np.minimum(from_end, old - 1), np.maximum(old - 1 - from_end, 0))
    level = np.exp(own * weights[source] + (1 - own) * smooth)
    joined = own[:, None, None] * correlations[source] + (1 - own)[:, None, None] * between
    joined = (1 - _SHARE) * joined + _SHARE * np.eye(joined.shape[1])
    return np.asarray((level / level.sum())[:, None, None] * joined)


def _logits(count: int) -> np.ndarray:
    places = (np.arange(count) + 0.5) / count
    return np.asarray(np.log(places / (1 - places)))
