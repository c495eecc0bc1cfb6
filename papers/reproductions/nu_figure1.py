"""C24, Figure 1: DP-FTRL against DP-SGD for mean estimation, and the optimal noise over time and frequency."""

from __future__ import annotations

import math

import numpy as np

from factorize.api.pictures.views import last_step, spectrum
from factorize.factors.factorization import Factorization
from factorize.predict.asymptotic import distance_squared, limiting_sensitivity_squared
from factorize.predict.filters import Independent, Nu, noise_product
from factorize.predict.quadratic import QuadraticRun
from papers.reproductions.comparison import Comparison
from papers.reproductions.kept_results import prefix_sums

TITLE = "Choquette-Choo et al. 2024, Figure 1: mean estimation, ratio of DP-FTRL to DP-SGD and the optimal noise"
OPTIMUM = Nu(kind="nu")  # nu = learning rate

DRAWN_RATES = (0.1, 0.01, 0.001)


def run(comparison: Comparison) -> None:
    """Print the ratio by learning rate, check the optimum in four ways, and draw."""
    comparison.remark("no noise multiplier: losses per G^2 / (2 rho), nu = learning rate")
    comparison.heading("asymptotic suboptimality, optimal DP-FTRL / DP-SGD, by learning rate")
    rates = np.concatenate([np.geomspace(1e-6, 0.1, 31), np.linspace(0.13, 0.99, 44), [1 - 1e-3, 1 - 1e-6]])
    ratios = np.array([mean_estimation(rate) / mean_estimation(rate, Independent()) for rate in rates])
    for rate in (1e-6, 1e-4, 1e-2, 0.1, 0.5, 0.9, 0.99):
        comparison.row(f"{rate:g}", None, mean_estimation(rate) / mean_estimation(rate, Independent()))
    comparison.claim("DP-FTRL is never worse than DP-SGD", bool((ratios <= 1).all()))
    comparison.claim("it is orders of magnitude better at small learning rates", bool(ratios[0] < 1e-3))
    comparison.claim("it is orders of magnitude better at learning rate -> 1 (caption)", bool(ratios[-1] < 0.1))
    comparison.remark(
        "at learning rate 1 the iterate is the last release, no filter has gamma |beta| below 1, and both agree"
    )
    theorem(comparison, rates)
    filters = {rate: optimal(rate, 256 if comparison.quick else 8192) for rate in DRAWN_RATES}
    noise(comparison, filters)
    draw(comparison, rates, ratios, filters)


def optimal(rate: float, n: int) -> Factorization:
    """Return nu-Toeplitz noise at nu = learning rate, for n prefix sums."""
    return prefix_sums(n, {"kind": "nu_toeplitz", "nu": rate})


def mean_estimation(rate: float, noise: Independent | Nu = OPTIMUM) -> float:
    """Return the limit of E delta^2 per G^2 / (2 rho)."""
    return rate**2 * noise_product(noise, [1.0], rate)


def theorem(comparison: Comparison, rates: np.ndarray) -> None:
    """Check what Theorem 2.1 says of the optimum."""
    factors = [math.exp(power) for power in np.linspace(-0.5, 0.5, 9) if power]
    best = all(
        mean_estimation(rate) < mean_estimation(rate, Nu(kind="nu", nu=min(factor * rate, 0.999999)))
        for rate in rates[rates < 0.9]
        for factor in factors
    )
    comparison.claim("nu = learning rate is the best nu", best)
    small = rates[rates < 0.02]
    scaled = [mean_estimation(rate) / (rate * math.log(1 / rate)) ** 2 for rate in small]
    comparison.claim(
        "the optimum is of the order of eta^2 log^2(1/eta) (ratio within a factor 3 from 1e-6 to 0.02)",
        max(scaled) < 3 * min(scaled),
    )
    comparison.heading("limit of E delta^2 by the frequency domain (in brackets) and by n finite steps")
    for rate in (0.1, 0.02):
        steps = 200 if comparison.quick else 4096
        asked = QuadraticRun(kind="quadratic", eigenvalues=[1.0], learning_rate=rate, sigma=1.0, initial=[0.0])
        _, moments = asked.second_moments(optimal(rate, steps))
        found = float(moments[-1, 0]) * limiting_sensitivity_squared(rate)
        comparison.row(f"learning rate {rate:g}", None, found, check=mean_estimation(rate), tolerance=1e-8)


def noise(comparison: Comparison, filters: dict[float, Factorization]) -> None:
    """Check the optimal noise's coefficients over time and frequency."""
    taps = {rate: last_step(found) for rate, found in filters.items()}
    comparison.claim(
        "all coefficients after the first are negative: anti-correlated", all(_negative(t) for t in taps.values())
    )
    binomial = np.cumprod([1.0, *((t - 1.5) / t for t in range(1, 101))])
    smallest = min(taps)
    difference = np.abs(taps[smallest][:101] / (1 - smallest) ** np.arange(101) - binomial).max()
    comparison.claim("beta_t = (-1)^t binom(1/2, t) (1 - eta)^t to 1e-14", bool(difference < 1e-14))
    numeric = prefix_sums(256, {"kind": "spectral", "learning_rate": 0.1, "eigenvalues": [1.0]})
    found = last_step(numeric) / last_step(numeric)[0]
    comparison.claim(
        "factoring the optimal spectrum numerically gives the same coefficients to 1e-10",
        bool(np.abs(found - last_step(optimal(0.1, 256))).max() < 1e-10),
    )
    for rate in (0.1, 0.01):
        at, power = spectrum(taps[rate])
        comparison.claim(
            f"learning rate {rate:g}: |B|^2 = |1 - eta - e^(iw)|, small where w is below eta, near 2 at pi",
            bool(np.allclose(power, np.sqrt(distance_squared(rate, at)), rtol=0.02 if comparison.quick else 1e-6)),
        )


def _negative(taps: np.ndarray) -> bool:
    """Return whether all are negative that are above rounding."""
    return bool((taps[1:] < 1e-16).all() and (taps[1:100] < 0).all())


def draw(comparison: Comparison, rates: np.ndarray, ratios: np.ndarray, filters: dict[float, Factorization]) -> None:
    """Write the three panels."""
    with comparison.picture((12, 3.7), 3) as figure:
        left, middle, right = figure.axes
        left.loglog(rates, ratios, color="#1f5fa8")
        left.axhline(1, color="#9a9a9a", linewidth=0.8)
        left.set(xlabel="learning rate", ylabel="suboptimality, DP-FTRL / DP-SGD", title="ratio")
        for (rate, found), style in zip(filters.items(), ("-", "--", "-."), strict=True):
            taps = last_step(found)
            lags = np.arange(1, min(1000, len(taps)))
            middle.loglog(lags, np.maximum(-taps[lags], 1e-12), style, label=f"$\\eta$ = {rate:g}")
            right.loglog(*spectrum(taps), style, label=f"$\\eta$ = {rate:g}")
        middle.set(xlabel="t", ylabel="$-\\beta_t$", title="noise over time", ylim=(1e-8, 1))
        right.set(xlabel="frequency", ylabel="$|B|^2$", title="noise over frequency")
        right.legend(frameon=False)
