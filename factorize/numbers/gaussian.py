"""Privacy of the Gaussian mechanism: mu-GDP, rho-zCDP and (epsilon, delta), each rounded towards safety.

A Gaussian mechanism whose noise has standard deviation z times its sensitivity has one parameter, `mu = 1/z`:

    mu-GDP (Dong, Roth, Su 2019)
    rho-zCDP with rho = mu^2 / 2 (Bun, Steinke 2016)
    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu) (Balle, Wang 2018, theorem 8)
"""

import math
from collections.abc import Iterable, Mapping
from fractions import Fraction

from factorize.errors import InvalidParameter
from factorize.numbers.scalars import double_above, finite_real, root_above

MAX_NOISE_MULTIPLIER = 1e8
"""The largest noise multiplier; above (mu < 1e-8), a request is taken for a mistake in units."""
MIN_NOISE_MULTIPLIER = 1e-8
"""The smallest noise multiplier; below, epsilon is above 1e15 and a request is taken for a mistake in units."""
MARGIN = 1e-12
"""The relative inflation of mu before the curve is evaluated, so that delta and epsilon are never below the true ones.

In doubles the curve is that of a mu off by less than 2e-13 relative (the tests check it with 40 digits).
"""
_SQRT_2 = math.sqrt(2)
_SQRT_HALF_PI = math.sqrt(math.pi / 2)
_SPLIT = 134_217_729.0  # 2^27 + 1
_TAIL = 2.0
_TERMS = 120  # At t = 2, 100 terms already leave less than a rounding.
_LOG_SQRT_2PI = math.log(2 * math.pi) / 2
_MIN_ARGUMENT = -40.0  # Phi(-40) < 1e-349 is less than the smallest positive double.
_GAUSS_LEGENDRE = ((-math.sqrt(0.6), 5 / 18), (0.0, 8 / 18), (math.sqrt(0.6), 5 / 18))


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Return the exact delta of a mu-GDP Gaussian mechanism at epsilon, rounded up (Balle, Wang 2018, theorem 8).

    Args:
        epsilon: at least 0; 0 gives the total variation distance.
        mu: 1 / noise multiplier, in [1e-8, 1e8].

    Returns:
        A double in (0, 1], never below the true delta and never 0: the true one is positive.
    """
    eps = finite_real("epsilon", epsilon, low=0.0, strict=False, remedy="give a finite epsilon >= 0")
    return _delta_above(eps, _check_mu(mu))


def _delta_above(epsilon: float, mu: float) -> float:
    """Return delta, rounded up.

    With x = epsilon/mu, p = mu/2 - x and R the Mills ratio, e^epsilon phi(mu/2 + x) = phi(p) gives
        delta = phi(p) (R(-p) - R(mu/2 + x))   and   1 - delta = phi(p) (R(p) + R(mu/2 + x)):
    neither subtracts epsilon from a logarithm of similar size, as the formula with two log-cdfs does.
    """
    mu *= 1 + MARGIN
    half, x = mu / 2, epsilon / mu
    p = half - x
    if p < _MIN_ARGUMENT:
        return math.nextafter(0.0, math.inf)
    log_density = -p * p / 2 - _LOG_SQRT_2PI
    if p > 1:
        log_complement = log_density + math.log(_mills(p) + _mills(x + half))
        log_delta = math.log1p(-math.exp(log_complement))
    else:
        log_delta = log_density + math.log(_mills_drop(x, half))
        log_complement = math.log1p(-math.exp(log_delta))
    nearest = math.exp(log_delta) if log_delta < -0.7 else -math.expm1(log_complement)
    return min(math.nextafter(nearest, math.inf), 1.0)


def gaussian_epsilon(delta: float, mu: float) -> float:
    """Return the smallest epsilon >= 0 at which a mu-GDP Gaussian mechanism has this delta, rounded up.

    Args:
        delta: in (0, 1).
        mu: 1 / noise multiplier, in [1e-8, 1e8].
    """
    target, mu = check_delta(delta), _check_mu(mu)
    if _delta_above(0.0, mu) <= target:
        return 0.0
    low, high = 0.0, mu * mu + 50 * mu  # The upper end lies beyond `_MIN_ARGUMENT`.
    while (middle := (low + high) / 2) > low and high - low > 1e-15 * high:
        if _delta_above(middle, mu) <= target:
            high = middle
        else:
            low = middle
    return high


def noise_multiplier_for_epsilon(epsilon: float, delta: float) -> float:
    """Return the smallest noise multiplier that gives (epsilon, delta)-differential privacy, rounded up.

    It is found by bisection on the exact curve (Balle, Wang 2018, algorithm 1); the classic sqrt(2 ln(1.25 / delta)) /
    epsilon wastes noise below epsilon = 1 and is wrong above it.

    Raises:
        InvalidParameter: epsilon <= 0, delta outside (0, 1), or an answer outside [1e-8, 1e8].
    """
    eps = finite_real("epsilon", epsilon, remedy="give a finite epsilon > 0")
    target = check_delta(delta)

    def private(z: float) -> bool:
        return _delta_above(eps, mu_of(z)) <= target

    low, high = MIN_NOISE_MULTIPLIER, MAX_NOISE_MULTIPLIER
    if not private(high):
        raise _out_of_reach(f"epsilon={eps}, delta={target}", "above", high, "ask for a larger epsilon")
    if private(low):
        raise _out_of_reach(f"epsilon={eps}, delta={target}", "below", low, "ask for a smaller epsilon")
    while low < (middle := math.sqrt(low * high)) < high:
        if private(middle):
            high = middle
        else:
            low = middle
    return high


def noise_multiplier_for_rho(rho: float) -> float:
    """Return the noise multiplier 1 / sqrt(2 rho) of rho-zCDP, rounded up (Bun, Steinke 2016, proposition 1.6)."""
    value = finite_real("rho", rho, remedy="give a finite rho > 0")
    return _check_multiplier(root_above(1 / (2 * Fraction(value)), "noise_multiplier"), f"rho={value}")


def noise_multiplier_for_mu(mu: float) -> float:
    """Return the noise multiplier 1 / mu of mu-GDP, rounded up."""
    value = finite_real("mu", mu, remedy="give a finite mu > 0")
    return _check_multiplier(double_above(1 / Fraction(value), "noise_multiplier"), f"mu={value}")


def mu_of(noise_multiplier: float) -> float:
    """Return mu = 1 / z of the Gaussian mechanism with noise multiplier z, rounded up."""
    z = finite_real("noise_multiplier", noise_multiplier, remedy="give a finite noise multiplier > 0")
    return double_above(1 / Fraction(z), "mu")


def rho_of(noise_multiplier: float) -> float:
    """Return rho = 1 / (2 z^2) of zCDP of the Gaussian mechanism with noise multiplier z, rounded up."""
    z = finite_real("noise_multiplier", noise_multiplier, remedy="give a finite noise multiplier > 0")
    return double_above(1 / (2 * Fraction(z) ** 2), "rho")


def compose_mu(mus: Iterable[float]) -> float:
    """Return the mu of independent Gaussian mechanisms run on the same data: sqrt(sum mu_i^2), rounded up.

    Independent means that each run draws its own Z (Dong, Roth, Su 2019, corollary 3.3). A restarted run that reuses
    rows of Z is not covered.
    """
    runs = [Fraction(finite_real("mu", mu, remedy="give the mu of each run")) for mu in mus]
    if not runs:
        raise InvalidParameter("0 runs to compose, at least 1 is needed; give the mu of each run", field="mu")
    return root_above(sum((mu**2 for mu in runs), Fraction(0)), "mu")


def mu_by_name(others: object) -> dict[str, float]:
    """Return the mu of other runs on the same data by name, from a caller's mapping; None is an empty one.

    Raises:
        InvalidParameter: it is no mapping, two names are the same text, or a mu is no positive number.
    """
    if not isinstance(others := {} if others is None else others, Mapping):
        message = (
            f"others is of type {type(others).__name__}; give each run's mu by name, {{'first run': 0.3}} for example"
        )
        raise InvalidParameter(message, field="others")
    remedy = "give the mu from that run's calibration"
    named = {str(name): finite_real("mu", mu, remedy=remedy) for name, mu in others.items()}
    if len(named) < len(others):
        names = ", ".join(map(repr, others))[:80]
        raise InvalidParameter(f"others has two of the same name among {names}; give each run its own", field="others")
    return named


def remaining_mu(noise_multiplier: float, spent: float) -> float:
    """Return the mu that is left of a budget for an independent run on the same data, rounded down.

    Args:
        noise_multiplier: the noise multiplier that would use the whole budget.
        spent: mu of the earlier runs; see `compose_mu`.

    Raises:
        InvalidParameter: nothing is left.
    """
    mu = finite_real("spent_mu", spent, low=0.0, strict=False, remedy="give the mu of the earlier runs")
    left = 1 / Fraction(noise_multiplier) ** 2 - Fraction(mu) ** 2
    if left <= 0:
        raise InvalidParameter(
            f"spent_mu={mu!r} is not below {1 / noise_multiplier:.6g}, the mu of the whole budget, so nothing is left "
            "for this run; choose a larger target, or spend less before",
            field="spent_mu",
        )
    return math.nextafter(float(1 / Fraction(root_above(1 / left, "spent_mu"))), 0.0)


def _mills_drop(x: float, half: float) -> float:
    """Return R(x - half) - R(x + half), to a few units in the last place of `half`."""
    if half > 0.005:
        return _mills(x - half) - _mills(x + half)
    # The difference would cancel, so 1 - t R(t) = -R'(t) is integrated instead (3 nodes: error < half^6).
    nodes = ((x + half * node, weight) for node, weight in _GAUSS_LEGENDRE)
    return 2 * half * math.fsum(weight * (1 - t * _mills(t)) for t, weight in nodes)


def _mills(t: float) -> float:
    """Return Phi(-t) / phi(t), for t of -1 or more, to a few units in the last place.

    The tail uses Laplace's continued fraction t + 1/(t + 2/(t + 3/(...))), smaller t use e^(t^2/2) erfc(t / sqrt 2)
    with an exact t^2. It is plain Python, so that a training image without scipy can calibrate, too.
    """
    if t > _TAIL:
        tail = t
        for k in range(_TERMS, 0, -1):
            tail = t + k / tail
        return 1 / tail
    square = t * t
    moved = _SPLIT * t  # Halves of 26 bits make each product exact (Dekker 1971).
    high = moved - (moved - t)
    error = (high * high - square) + 2 * high * (t - high) + (t - high) * (t - high)
    return _SQRT_HALF_PI * math.exp(square / 2) * (1 + error / 2) * math.erfc(t / _SQRT_2)


def check_delta(delta: float) -> float:
    """Return delta as a double in (0, 1), or raise InvalidParameter."""
    remedy = "give delta in (0, 1), well below 1 / (number of users)"
    value = finite_real("delta", delta, remedy=remedy)
    if value >= 1:
        raise InvalidParameter(f"delta={value} must be below 1; {remedy}", field="delta")
    return value


def _check_mu(mu: float) -> float:
    value = finite_real("mu", mu, remedy="give mu = 1 / noise multiplier")
    low, high = 1 / MAX_NOISE_MULTIPLIER, mu_of(MIN_NOISE_MULTIPLIER)
    if not low <= value <= high:
        raise InvalidParameter(
            f"mu={value} is outside [{low:g}, {high:g}], the range of 1 / noise multiplier;"
            " check the units of the noise",
            field="mu",
        )
    return value


def _check_multiplier(z: float, target: str) -> float:
    if z > MAX_NOISE_MULTIPLIER:
        raise _out_of_reach(target, "above", MAX_NOISE_MULTIPLIER, "ask for a larger one")
    if z < MIN_NOISE_MULTIPLIER:
        raise _out_of_reach(target, "below", MIN_NOISE_MULTIPLIER, "ask for a smaller one")
    return z


def _out_of_reach(target: str, side: str, limit: float, remedy: str) -> InvalidParameter:
    message = f"{target} needs a noise multiplier {side} the limit {limit:g}; {remedy}"
    return InvalidParameter(message, field=target.partition("=")[0])
