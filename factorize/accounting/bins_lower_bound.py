"""The lower bound under balls in bins: an amplified error that no strategy matrix beats, even if dense or signed.

With sigma at clip norm 1 and without a divisor, two facts about the dominating pair bound it from below (theorem 8,
docs/notes/amplification-proofs.md):

- one bin alone: mean_j delta_Gauss(epsilon + log b; sqrt(G_jj) / sigma) <= delta. Where that is convex in G_jj, the
  mean of the G_jj is at most sigma^2 mu_1^2, and the dual of fixed epochs bounds error x mean G_jj from below;
- all bins together: sigma is at least the distance of the hull of the bins' shifts from 0, over mu(epsilon, delta), and
  error x |C u|^2 >= |T u|^2 for every u.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.utility import lower_bound
from factorize.errors import InvalidParameter
from factorize.numbers.gaussian import noise_multiplier_for_epsilon
from factorize.spec import Spec

_MU_MARGIN = 1e-9
"""Relative margin of mu, which is far above what its computation loses."""
_MAX_ENTRIES = 1 << 25
"""The most entries of the array that holds T times the bins: 256 MiB of doubles."""


@dataclass(frozen=True)
class BinsLowerBound:
    """A lower bound on the error of every strategy at one privacy.

    Attributes:
        objective: the smallest sigma^2 x error, in the objective's units, for contributions of norm 1 and sums.
        rule: `single bin` or `hull of the bins`.
    """

    objective: float
    rule: str

    @property
    def rmse(self) -> float:
        """The square root of the objective."""
        return math.sqrt(self.objective)


def bins_lower_bound(
    spec: Spec, dual: Mapping[str, np.ndarray], *, epsilon: float, delta: float
) -> BinsLowerBound | None:
    """Return the larger of both bounds at (epsilon, delta), or None where neither is known.

    Args:
        spec: canonical, with fixed epochs (else InvalidParameter); its mechanism does not matter.
        dual: `factors` of the fixed epochs, shape (b, k, k); any that are not zero certify.
        epsilon: above 0.
        delta: a number in (0, 1).
    """
    if not spec.participation.periodic:
        raise InvalidParameter(
            f"balls_in_bins needs epochs, and participation {spec.participation.kind!r} has none; use fixed_epochs",
            field="/participation/kind",
        )
    bins = spec.participation.spread(spec.workload.n).separation
    bounds = [_single_bin(spec, dual, bins, epsilon, delta), _hull(spec, bins, epsilon, delta)]
    return max((one for one in bounds if one is not None), key=lambda one: one.objective, default=None)


def _single_bin(
    spec: Spec, dual: Mapping[str, np.ndarray], bins: int, epsilon: float, delta: float
) -> BinsLowerBound | None:
    """Give every class the weight 1 / b, as the mean over the bins does."""
    if "factors" not in dual or delta * bins >= 1:
        return None
    level = epsilon + math.log(bins)
    if _mu_above(level, delta * bins) ** 2 > 2 * (math.sqrt(1 + level**2) - 1):
        return None  # delta is a convex function of mu^2 only up to this mu
    largest = np.sqrt(np.einsum("jik,jik->ji", dual["factors"], dual["factors"]).max(axis=1))
    if not largest.all():
        return None
    try:
        bound = lower_bound(spec.document(), {"factors": dual["factors"] / largest[:, None, None]}, spec.user_arrays())
    except NotEnclosed:
        return None
    return BinsLowerBound(bound.objective / _mu_above(level, delta) ** 2, "single bin")


def _hull(spec: Spec, bins: int, epsilon: float, delta: float) -> BinsLowerBound | None:
    """Return the bound by the hull: any y has |sum_j v_j P_j| >= min_j <y, P_j> / |y| for all weights v of the bins."""
    from scipy.optimize import nnls

    work = max(spec.workload.m, spec.workload.n) * bins
    if work > _MAX_ENTRIES or spec.objective.row_weights(spec.workload.m) is None:
        return None
    members = np.tile(np.eye(bins), (-(-spec.workload.n // bins), 1))[: spec.workload.n]
    sums = spec.objective.weigh(spec.workload.apply(members))
    scale = float(np.abs(sums).max())
    if not 0 < scale < math.inf:
        return None
    stacked = np.vstack([sums / scale, np.full((1, bins), 1e3 * math.sqrt(bins))])
    weights = nnls(stacked, np.append(np.zeros(len(sums)), 1e3 * math.sqrt(bins)))[0]
    direction = sums @ weights
    length = float(np.linalg.norm(direction))
    reached = float((direction @ sums).min()) / length if length > 0 else 0.0
    reached -= 1e-12 * len(sums) * scale
    if reached <= 0:
        return None
    squared = (reached / _mu_above(epsilon, delta)) ** 2
    return BinsLowerBound(spec.objective.scale(spec.workload.m) * squared, "hull of the bins")


def _mu_above(epsilon: float, delta: float) -> float:
    """Return an upper bound on mu of the Gaussian mechanism with this delta at epsilon."""
    return (1 + _MU_MARGIN) / noise_multiplier_for_epsilon(epsilon, delta)
