"""The loss distribution of a run under random bins, for dp_accounting, which composes it with runs of any other kind.

The deterministic bounds give delta of both directions at every epsilon: points above the curve of the run's dominating
pair. Their greatest convex minorant in T = e^epsilon is still above it, since that curve is convex. The distribution
whose curve connects these dots dominates the run's (Doroshenko et al. 2022, Connect the dots), so that dp_accounting
composes it with any other, and its answer is never too small.
"""

import math
from typing import Any

import numpy as np

from factorize.accounting.law import Law
from factorize.errors import InvalidParameter, UnsupportedProblem
from factorize.format.manifest import CertifiedFactors
from factorize.numbers.scalars import finite_real, multiplier_of, whole_number, within_scale
from factorize.privacy.question import SamplingOptions
from factorize.samplings import sampling_of

_MIN_LOG_DELTA = math.log(1e-30)
"""The logarithm of a negligible delta: at the epsilon that has it, and above, the loss counts as infinite."""
_MAX_EPSILON = 200.0
"""The largest epsilon that is tabulated: a run with so little noise is refused, since its grid would be huge."""


def loss_distribution(
    factorization: CertifiedFactors,
    *,
    sigma: float,
    sampling: str = "balls_in_bins",
    bins: int | None = None,
    clip_norm: float = 1.0,
    interval: float = 1e-4,
    points: int = 400,
) -> Any:
    """Return dp_accounting's `PrivacyLossDistribution` of a run under random bins, from above.

    Runs are independent if each draws its own bins and its own Z. `compose` this distribution with those of other runs
    that were made with the same interval; adjacency is zero-out throughout.

    Args:
        factorization: a `factorize.Factorization`, or factors that have a file.
        sigma: standard deviation per entry of Z, for sums.
        sampling: `balls_in_bins` or `random_allocation`.
        bins: b; by default the steps of an epoch.
        clip_norm: bound on one contribution.
        interval: `value_discretization_interval` of the other distributions.
        points: values of epsilon at which the bounds are taken, for each direction.

    Raises:
        InvalidParameter: a value outside its range, or so little noise that the losses exceed 200.
        UnsupportedProblem: dp_accounting is not installed.
    """
    noise = within_scale("sigma", finite_real("sigma", sigma, remedy="give the standard deviation of Z"))
    remedy = "give the norm that contributions are clipped to"
    clip = within_scale("clip_norm", finite_real("clip_norm", clip_norm, remedy=remedy))
    gap = finite_real("interval", interval, remedy="give the discretization interval of the other distributions")
    named = sampling_of(sampling)
    law = named.law(factorization, SamplingOptions(bins=bins)) if "bins" in named.takes else None
    if law is None:
        message = f"sampling={sampling!r} does not use bins; use the distributions of dp_accounting itself"
        raise InvalidParameter(message, field="sampling")
    return distribution_of(law, multiplier_of(noise, clip_norm=clip), gap, points)


def distribution_of(law: Law, multiplier: float, interval: float, points: int) -> Any:
    """Return the distribution of a run under a law; see `loss_distribution`."""
    try:
        from dp_accounting.pld import pld_pmf
        from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
    except ModuleNotFoundError:
        raise UnsupportedProblem(
            "composing loss distributions needs dp_accounting, which is not installed; install dp-accounting, or "
            "factorize with its extra 'accounting'"
        ) from None
    whole_number("points", points, low=2, remedy="give at least 2, since fewer make no curve")
    largest = 1.0  # grows to an epsilon at which both deltas are negligible
    while law.log_delta(multiplier, largest) > _MIN_LOG_DELTA:
        largest *= 1.25
        if largest > _MAX_EPSILON:
            raise InvalidParameter(
                f"at multiplier={multiplier:g} losses above {_MAX_EPSILON:g} are not negligible; use a larger sigma",
                field="sigma",
            )
    dots = np.unique(np.ceil(np.linspace(0.0, largest, points) / interval).astype(int))
    bounds = [law.bounds(multiplier, float(dot) * interval) for dot in dots]
    removal, addition = (
        np.array([math.exp(min(one.log_delta, 0.0)) for one in own]) for own in zip(*bounds, strict=True)
    )
    losses = np.concatenate([-dots[:0:-1], dots])
    masses = []
    for own, other in ((removal, addition), (addition, removal)):
        below = 1 - np.exp(-dots * interval) * (1 - other)  # delta(-e) = 1 - e^-e + e^-e times the other's delta(e)
        deltas = convex_minorant(losses * interval, np.concatenate([below[:0:-1], own]))
        masses.append(pld_pmf.create_pmf_pessimistic_connect_dots(interval, losses, deltas))
    return PrivacyLossDistribution(*masses)


def convex_minorant(epsilons: np.ndarray, deltas: np.ndarray) -> np.ndarray:
    """Return the greatest convex function of e^epsilon below the points and (0, 1), at the same epsilons.

    Args:
        epsilons: rising.
        deltas: deltas, each at least that of a convex curve that starts at (0, 1).
    """
    x, y = np.concatenate([[0.0], np.exp(epsilons)]), np.concatenate([[1.0], np.minimum.accumulate(deltas)])
    hull: list[int] = []
    for i in range(len(x)):
        while len(hull) > 1:
            a, b = hull[-2:]
            if (y[b] - y[a]) * (x[i] - x[a]) < (y[i] - y[a]) * (x[b] - x[a]):
                break
            hull.pop()
        hull.append(i)
    return np.minimum(np.interp(x, x[hull], y[hull])[1:], y[1:])
