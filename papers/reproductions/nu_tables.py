"""C24, Tables 2, 3 and 4: sensitivities, which mechanisms are anytime, and rates of the asymptotic suboptimality.

Rates have no constants, so exponents are fitted: at 0.001 and below, the learning rates are small enough for
Gaussian inputs (docs/notes/frequency-domain.md) to differ from their averages by less than the fit. Where a table
prints 0 for anti-PGD and for nu = 0, it means infinity: the text says so and the sensitivity forces it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from factorize.factors.factorization import Factorization
from factorize.noise.source import source_of
from factorize.predict.asymptotic import limiting_sensitivity_squared
from factorize.predict.filters import Independent, Nu, noise_product
from factorize.predict.quadratic import QuadraticRun
from papers.reproductions.comparison import Comparison
from papers.reproductions.kept_results import prefix_sums

TITLE = "Choquette-Choo et al. 2024, Tables 2, 3 and 4: sensitivities, anytime mechanisms, rates"

LENGTHS = (256, 1024, 4096)
POWERS = {"1": 0.0, "1/sqrt(k)": 0.5, "k^-0.8": 0.8, "1/k": 1.0, "1/k^2": 2.0, "k^-1.5": 1.5}
VARIANTS: dict[str, tuple[dict[str, Any], bool, str]] = {
    "DP-SGD": ({"kind": "identity"}, True, "constant"),
    "Honaker/TreeAgg": ({"kind": "tree", "decoder": "honaker_online"}, True, "logarithmic"),
    "Optimal CC": ({"kind": "square_root"}, True, "linear"),
    "nu-DP-FTRL": ({"kind": "nu_toeplitz", "nu": 0.01}, True, "linear"),
    "FFT": ({"kind": "fft", "decoder": "circulant"}, False, "linear"),
    "Full Honaker": ({"kind": "tree", "decoder": "honaker_full"}, False, "logarithmic"),
    "Multi-Epoch": ({"kind": "dense"}, False, "linear"),
}
"""Table 3: mechanism, printed "anytime", and how the vectors kept grow with T: as the printed cost, but one."""


def run(comparison: Comparison) -> None:
    """Print the three tables."""
    comparison.remark("no noise multiplier: losses per G^2 / (2 rho)")
    sensitivities(comparison, (64, 128, 256) if comparison.quick else LENGTHS)
    suboptimality(comparison, 256 if comparison.quick else 2048)
    anytime(comparison)
    rates(comparison, 10 if comparison.quick else 14)


def factorized(mechanism: dict[str, Any], n: int, epochs: int = 1) -> Factorization:
    """Return a mechanism for n prefix sums."""
    participation = {"participation": {"kind": "fixed_epochs", "epochs": epochs}} if epochs > 1 else {}
    return prefix_sums(n, mechanism, **participation)


def exponent(at: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope in logarithms between the last two points, where lower orders matter least."""
    return math.log(values[-1] / values[-2]) / math.log(at[-1] / at[-2])


def sensitivities(comparison: Comparison, lengths: Sequence[int]) -> None:
    """Report Table 2, column 3: certified squared sensitivities against T and nu."""
    comparison.heading("Table 2: squared sensitivity, certified; growth per printed unit")

    def squared(mechanism: dict[str, Any], n: int) -> float:
        return factorized(mechanism, n).certificate.sensitivity.value ** 2

    roots = [squared({"kind": "square_root"}, n) for n in lengths]
    comparison.row(
        "nu = 0, log T: coefficient of ln T (1/pi)",
        None,
        (roots[-1] - roots[-2]) / math.log(lengths[-1] / lengths[-2]),
        check=1 / math.pi,
        tolerance=1e-3,
    )
    limits = [limiting_sensitivity_squared(nu) for nu in (1e-5, 1e-6)]
    comparison.row(
        "nu > 0, log(1/nu): coefficient of ln(1/nu) (1/pi)",
        None,
        (limits[1] - limits[0]) / math.log(10),
        check=1 / math.pi,
        tolerance=1e-4,
    )
    nu = 16 / lengths[-1]
    comparison.row(
        f"nu = {nu:g}: T = {lengths[-1]} beside T without end",
        None,
        squared({"kind": "nu_toeplitz", "nu": nu}, lengths[-1]),
        check=limiting_sensitivity_squared(nu),
        tolerance=1e-6,
    )
    for n in lengths[-1:]:
        comparison.row(f"anti-PGD: T, at T = {n}", n, squared({"kind": "anti_pgd"}, n), tolerance=1e-6 * n)
    for damping in (0.1, 0.05):
        found = squared({"kind": "anti_pgd", "damping": damping}, lengths[-1])
        limit = 1 / (damping * (2 - damping))
        comparison.row(f"anti-PGD damped by {damping:g}: 1/(nu (2 - nu))", limit, found, tolerance=1e-6 * limit)


def suboptimality(comparison: Comparison, n: int) -> None:
    """Report Table 2, column 4."""
    comparison.heading("Table 2: suboptimality; exponents for eigenvalues 1/k")
    without_end = []
    for name, mechanism, growth, per in (
        ("nu = 0", {"kind": "square_root"}, "log T", 1.0),
        ("anti-PGD", {"kind": "anti_pgd"}, "T", 2.0),
    ):
        first, second, third = (finite_loss(factorized(mechanism, steps)) for steps in (n // 4, n // 2, n))
        without_end.append((third - second) / (second - first))
        comparison.row(
            f"{name}: growth at T = {n} over that at T/2 ({growth})", None, without_end[-1], check=per, tolerance=0.05
        )
    comparison.claim(
        "nu = 0 and anti-PGD have no finite limit (printed 0): doubling T adds as much as the doubling before",
        min(without_end) > 0.95,
    )
    small = (1e-5, 1e-6)
    ours, damped = ([loss(spectrum(128, 1.0), eta) for eta in small] for loss in (_ftrl_by_log, best_anti_pgd))
    comparison.row("nu-Noisy-FTRL, divided by log^2(1/nu): eta^2", 2.0, exponent(small, ours), tolerance=0.03)
    comparison.row("anti-PGD, best damping: eta^(3/2)", 1.5, exponent(small, damped), tolerance=0.03)
    problems = [spectrum(dimension, power) for power in (0.0, 0.5, 1.0, 2.0) for dimension in (16, 128, 1024)]
    means = [best_anti_pgd(values, 1e-6) / math.sqrt(1e-12 * values.sum() * sgd(values, 1e-6)) for values in problems]
    comparison.row("damped anti-PGD / geometric mean of the two bounds, smallest", None, min(means))
    comparison.row("damped anti-PGD / geometric mean of the two bounds, largest", None, max(means))
    comparison.claim(
        "damped anti-PGD is the geometric mean of lower bound and Noisy-SGD, up to a constant",
        max(means) < 1.01 * min(means),
    )


def finite_loss(found: Factorization) -> float:
    """Return the exact loss after the last step, eigenvalues 1/k, k up to 8, learning rate 0.05."""
    values = [1 / k for k in range(1, 9)]
    asked = QuadraticRun(
        kind="quadratic", eigenvalues=values, learning_rate=0.05, sigma=1.0, initial=[0.0] * len(values)
    )
    _, moments = asked.second_moments(found)
    return float(moments[-1] @ values) / 2 * found.certificate.sensitivity.value**2


def spectrum(dimension: int, power: float) -> np.ndarray:
    """Return k^-power."""
    return np.arange(1.0, dimension + 1) ** -power


def _gaussian(values: np.ndarray, eta: float) -> tuple[np.ndarray, float]:
    """Return weights and denominator of the exact loss for Gaussian inputs."""
    x = eta * values
    return values * (1 - x / 2) / (1 - x), 1 - float((x / (2 * (1 - x))).sum())


def sgd(values: np.ndarray, eta: float) -> float:
    """Return F of Noisy-SGD."""
    weights, rest = _gaussian(values, eta)
    return eta**2 / 2 * noise_product(Independent(), values.tolist(), eta, weights.tolist()) / rest


def ftrl(values: np.ndarray, eta: float) -> float:
    """Return F of nu-Noisy-FTRL at nu = eta times the smallest eigenvalue."""
    weights, rest = _gaussian(values, eta)
    return eta**2 / 2 * noise_product(Nu(kind="nu"), values.tolist(), eta, weights.tolist()) / rest


def _ftrl_by_log(values: np.ndarray, eta: float) -> float:
    return ftrl(values, eta) / math.log(8 / (eta * float(values.min()))) ** 2


def best_anti_pgd(values: np.ndarray, eta: float) -> float:
    """Return F of anti-PGD at its best damping."""
    weights, rest = _gaussian(values, eta)
    x = eta * values

    def loss(logarithm: float) -> float:
        nu = math.exp(logarithm)
        power = (nu**2 + 2 * (1 - nu) * x) / (x * (2 - x))  # 1 + q^2 - 2 q (1 - x), q = 1 - nu, without cancellation
        return eta**2 / 2 * float(weights @ power) / (nu * (2 - nu)) / rest

    found = minimize_scalar(loss, bounds=(math.log(1e-12), 0.0), method="bounded", options={"xatol": 1e-9})
    return float(found.fun)


def anytime(comparison: Comparison) -> None:
    """Report Table 3: is C for T the leading block of C for 2 T, and how does the memory of a step grow?"""
    comparison.heading("Table 3: vectors kept for the noise of a step, at T = 128")
    for name, (mechanism, printed, growth) in VARIANTS.items():
        epochs = 4 if name == "Multi-Epoch" else 1
        short, long, longer = (factorized(mechanism, n, epochs) for n in (64, 128, 256))
        same = np.abs(long.rows("C", 0, 64)[:, :64] - short.rows("C", 0, 64)).max() < 1e-9
        vectors = [source_of(found).cost.vectors for found in (short, long, longer)]
        comparison.row(name, None, vectors[1])
        comparison.claim(f"{name} is {'' if printed else 'not '}anytime, as printed", bool(same) is printed)
        steps = vectors[1] - vectors[0], vectors[2] - vectors[1]
        found_growth = {(0, 0): "constant", (1, 1): "logarithmic", (64, 128): "linear"}.get(steps, str(steps))
        comparison.claim(f"{name}: the vectors kept are {growth} in T", found_growth == growth)
    comparison.remark(
        "Full Honaker is printed with T^2 work; as one square matrix (docs/mechanisms.md) log T vectors do"
    )


def rates(comparison: Comparison, largest: int) -> None:
    """Report Table 4: exponents of d and eta for six spectra, logarithms divided out as printed."""
    eta = 1e-7
    dimensions = [2**power for power in range(6, largest + 1, 2)]
    etas = (1e-8, eta)
    for name, power in POWERS.items():
        comparison.heading(f"Table 4: eigenvalues {name}; exponents of d and of the learning rate")
        spectra = [spectrum(d, power) for d in dimensions]
        theirs, ours = [sgd(values, eta) for values in spectra], [ftrl(values, eta) for values in spectra]
        comparison.row("Noisy-SGD: d", 1.0, exponent(dimensions, theirs), tolerance=0.01)
        comparison.row("Noisy-SGD: eta", 1.0, exponent(etas, [sgd(spectra[0], e) for e in etas]), tolerance=0.01)
        by_eta = exponent(etas, [_ftrl_by_log(spectra[0], e) for e in etas])
        comparison.row("nu-Noisy-FTRL / log^2: eta", 2.0, by_eta, tolerance=0.03)
        logs = [math.log(8 / (eta * float(values[-1]))) for values in spectra]
        plain = [loss / float(values.sum()) for loss, values in zip(ours, spectra, strict=True)]
        single, squared = ([f / log**times for f, log in zip(plain, logs, strict=True)] for times in (1, 2))
        tight = 0.0 if power <= 1 else None
        comparison.row("nu-Noisy-FTRL / (deff log^2): d", tight, exponent(dimensions, squared), tolerance=0.03)
        comparison.row("nu-Noisy-FTRL / (deff log): d", None, exponent(dimensions, single))
        closer = [loss / sharper(values, eta) for loss, values in zip(ours, spectra, strict=True)]
        comparison.row("nu-Noisy-FTRL / (eta^2/2pi^2) ln(8/nu) sum l ln(4/(eta l))", None, closer[-1])
        comparison.claim("this is the rate with its constant, within 8 %", 1 <= min(closer) <= max(closer) < 1.08)
        comparison.claim("the printed rate bounds it with one constant", max(squared) <= squared[0] * 1.001)
        gains = [f / g for f, g in zip(ours, theirs, strict=True)]
        if power > 0:
            gaining = all(later < first for first, later in zip(gains, gains[1:], strict=False))
            comparison.claim("Noisy-FTRL gains more the larger d", gaining)
    comparison.remark("where eigenvalues fall faster than 1/k, one of the two printed log(d^a/eta) is a log(1/eta)")


def sharper(values: np.ndarray, eta: float) -> float:
    """Return what F of nu-Noisy-FTRL, nu = eta times the smallest eigenvalue, tends to."""
    nu = eta * float(values.min())
    return eta**2 / (2 * math.pi**2) * math.log(8 / nu) * float((values * np.log(4 / (eta * values))).sum())
