"""DP-SkGD: gradient descent on sketched coordinates with full batches (M24, algorithm 1).

Every step releases the mean partial gradient on the drawn coordinates U, clipped per example to L_U, with noise of
standard deviation sigma_U proportional to L_U. In units of L_U all K T releases are alike, so they are one Gaussian
mechanism with C = I in which every example takes part K T times: sensitivity sqrt(K T).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from factorize.checker.arithmetic.near import square_root_up
from factorize.errors import ConditionNotMet, InvalidParameter
from factorize.noise.normals import ReplayableNormals
from factorize.numbers.scalars import MAX_STEPS
from factorize.privacy import Calibration, PrivacyTarget, calibrate
from factorize.privacy.adjacency import Adjacency
from factorize.training.orders import full_batch
from papers.algorithms.filtered_noise import standard_row
from papers.algorithms.sketches import Draw, Sketch
from papers.training.clip import Rows, clipped_sum
from papers.training.ftrl import Observer, Run, unobserved
from papers.training.order_record import OrderRecord

if TYPE_CHECKING:
    from factorize.factors.factorization import Factorization
    from factorize.training.receipt import Receipt

PartialGradient = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""A function of weights, shape (d,), and coordinates U; all examples' partial derivatives, shape (examples, len(U))."""


@dataclass(frozen=True)
class Lengths:
    """The lengths of a run: `inner` steps K in each of `outer` rounds T. They are counted before noise is computed."""

    inner: int
    outer: int = 1

    def __post_init__(self) -> None:
        """Refuse counts below 1."""
        if min(self.inner, self.outer) < 1 or int(self.inner) != self.inner or int(self.outer) != self.outer:
            message = f"inner={self.inner} and outer={self.outer} must be integers >= 1; round before calibrating"
            raise InvalidParameter(message, field="inner")
        if self.total > MAX_STEPS:
            message = f"inner * outer={self.total} is above the limit of {MAX_STEPS} steps; ask for less accuracy"
            raise InvalidParameter(message, field="inner")

    @property
    def total(self) -> int:
        """Return K T."""
        return self.inner * self.outer


def sketch_calibration(
    lengths: Lengths,
    target: PrivacyTarget,
    *,
    examples: int,
    adjacency: Adjacency | str = Adjacency.REPLACE_ONE,
) -> Calibration:
    """Return the exact noise of K T releases, for contributions in units of L_U: sigma_U = sigma L_U.

    Args:
        lengths: K and T, the numbers that are run.
        target: the privacy asked for; `paper_target` gives the paper's larger noise.
        examples: n, the fixed divisor.
        adjacency: M24 states replace-one.
    """
    from factorize.factors.sensitivity import Sensitivity

    total = lengths.total
    participation = {"kind": "fixed_epochs", "epochs": total} if total > 1 else {"kind": "single"}
    value = square_root_up(Fraction(total))  # C = I: every column has norm 1, and an example is in all of them
    sensitivity = Sensitivity(value, "exact", "banded: sums of column norms", participation)
    return calibrate(sensitivity, target, clip_norm=1.0, divisor=examples, adjacency=adjacency)


def paper_target(epsilon: float, delta: float) -> PrivacyTarget:
    """Return the target whose noise is the paper's: sigma_U^2 = 12 L_U^2 K T ln(1/delta) / (n epsilon)^2.

    That is a noise multiplier of sqrt(3 ln(1/delta)) / epsilon under replace-one (with 3 in place of 12 under
    zero-out); its true epsilon at delta, in the calibration, is smaller than the one asked for.

    Raises:
        ConditionNotMet: epsilon > 1 or delta >= 1/3, outside the theorem.

    Reference:
        M24, theorem 4.1 (the printed N(0, sigma_S I) has a standard deviation where a variance belongs).
    """
    if not (0 < epsilon <= 1 and 0 < delta < 1 / 3):
        raise ConditionNotMet(
            f"epsilon={epsilon}, delta={delta}: the paper's formula is proved for epsilon <= 1 and delta < 1/3; use "
            "PrivacyTarget(epsilon=..., delta=...), which is exact and smaller",
            field="epsilon",
        )
    return PrivacyTarget(mu=epsilon / math.sqrt(3 * math.log(1 / delta)), delta=delta)


def dp_skgd(
    gradient: PartialGradient,
    start: np.ndarray,
    sketch: Sketch,
    smoothness: np.ndarray,
    lengths: Lengths,
    noise: Calibration | None,
    *,
    seed: int,
    sampling_seed: int = 0,
    observe: Observer = unobserved,
    receipt: Receipt | None = None,
) -> Run:
    """Minimise a loss whose coordinates have smoothness M_j.

        th_0 = w;  draw U;  th_{i+1}[j] = th_i[j] - (1/M_j)(mean_e clip(grad_U loss(th_i, e), L_U)[j] + eta_j),  j in U
        w <- mean(th_1 .. th_K), T times

    Step sizes P M^-1 and sketch I_U P^-1 multiply to I_U M^-1: the probabilities cancel. The clipping makes the
    guarantee independent of the Lipschitz constants, which the paper assumes.

    Args:
        gradient: a function of (weights, coordinates) to the partial derivatives of every example.
        start: w^0, shape (d,).
        sketch: the sampling law, with L_U.
        smoothness: M_j, shape (d,), above 0.
        lengths: K and T, those of the calibration.
        noise: calibration from `sketch_calibration`; None for a run without privacy.
        seed: secret, of the noise.
        sampling_seed: public, of the drawn coordinates.
        observe: called after each inner step with (step, th_{i+1}, release on U).
        receipt: receipt to be written before each release, in units of L_U; `independent_releases(lengths)` proves it.

    Returns:
        A run whose weights are w^T.

    Raises:
        InvalidParameter: shapes or smoothness that do not fit, a calibration for another number of releases or of
            examples, or partial gradients of another shape than (examples, len(U)).

    Reference:
        M24, algorithm 1, theorem 4.1.
    """
    _check_problem(start, sketch, smoothness)
    if noise is not None:
        _check_noise(noise, lengths)
    record = None if receipt is None else _record(receipt, noise, lengths)
    weights = np.array(start, dtype=np.float64)
    sampler, normals = np.random.default_rng(sampling_seed), ReplayableNormals(seed, "DP-SkGD")
    for outer in range(lengths.outer):
        theta, total = weights.copy(), np.zeros_like(weights)
        for inner in range(lengths.inner):
            step = outer * lengths.inner + inner
            drawn = sketch.draw(sampler)
            partial = _checked(gradient(theta, drawn.coordinates), drawn, noise)
            released = clipped_sum(Rows(partial), drawn.bound)
            if record is not None:
                record.record(step)
            if noise is not None:
                released += drawn.bound * noise.sigma_of_sums * standard_row(normals, step, len(released))
            released /= len(partial)
            theta = theta.copy()  # the observer may keep the last one
            theta[drawn.coordinates] -= released / smoothness[drawn.coordinates]
            total += theta
            observe(step, theta, released)
        weights = total / lengths.inner
    return Run(weights, lengths.total, noise)


def independent_releases(lengths: Lengths) -> Factorization:
    """Return C = I for K T releases in which every example takes part: save it for whoever checks a receipt."""
    from factorize.solvers import solve
    from factorize.spec import parse_spec

    epochs = {"kind": "fixed_epochs", "epochs": lengths.total} if lengths.total > 1 else {"kind": "single"}
    workload = {"kind": "prefix", "n": lengths.total}
    return solve(parse_spec({"workload": workload, "participation": epochs, "mechanism": {"kind": "identity"}}))


def _record(receipt: Receipt, noise: Calibration | None, lengths: Lengths) -> OrderRecord:
    if noise is None or noise.divisor is None:
        raise InvalidParameter("a run without noise guarantees nothing; leave its receipt out", field="receipt")
    order = full_batch(noise.divisor, lengths.total)
    return OrderRecord(receipt, noise, independent_releases(lengths), [order], dtype="float64")


def _checked(partial: np.ndarray, drawn: Draw, noise: Calibration | None) -> np.ndarray:
    """Return partial gradients of one row per example of the calibration and one column per drawn coordinate."""
    examples = partial.shape[0] if noise is None else noise.divisor
    if partial.shape != (examples, len(drawn.coordinates)):
        raise InvalidParameter(
            f"the partial gradients have shape {partial.shape}, not {(examples, len(drawn.coordinates))}: one row per "
            "example that the calibration counts, one column per coordinate that was asked for",
            field="gradient",
        )
    return partial


def _check_problem(start: np.ndarray, sketch: Sketch, smoothness: np.ndarray) -> None:
    d = len(sketch.probabilities)
    if np.shape(start) != (d,) or np.shape(smoothness) != (d,) or not (np.asarray(smoothness) > 0).all():
        raise InvalidParameter(
            f"start {np.shape(start)} and smoothness {np.shape(smoothness)} need shape ({d},), smoothness above 0",
            field="smoothness",
        )


def _check_noise(noise: Calibration, lengths: Lengths) -> None:
    """Refuse a calibration that is not for K T independent releases in units of L_U."""
    total, stated = lengths.total, dict(noise.sensitivity.participation)
    expected = {"kind": "fixed_epochs", "epochs": total} if total > 1 else {"kind": "single"}
    independent = noise.sensitivity.value >= math.sqrt(total) * (1 - 1e-12)
    if stated != expected or not independent or noise.clip_norm != 1.0 or noise.divisor is None:
        raise InvalidParameter(
            f"the calibration is for sensitivity {noise.sensitivity.value:g} under {stated} with "
            f"clip_norm={noise.clip_norm:g}, but this run makes K T = {total} independent releases in units of L_U; "
            "use sketch_calibration with these lengths",
            field="noise",
        )


def convex_lengths(
    *, examples: int, epsilon: float, delta: float, radius: float, noise_constant: float, paper: bool = False
) -> Lengths:
    """Return T = 1 and the K that minimises the bound R^2/K + 12 K ln(1/delta) Sigma^2 / (n epsilon)^2.

    K = n epsilon R / (Sigma sqrt(12 ln(1/delta))), rounded to an integer; the paper's own choice lacks the 12 and makes
    its bound 1.876 times larger.

    Args:
        examples: n.
        epsilon: epsilon of the target.
        delta: delta of the target.
        radius: R, with R^2 = sum_j (M_j / p_j)(w^0_j - w*_j)^2.
        noise_constant: Sigma^2, from `Sketch.noise_constant`.
        paper: take the printed K.

    Reference:
        M24, theorem 4.2, convex case.
    """
    factor = 1.0 if paper else 12.0
    return Lengths(
        max(1, round(examples * epsilon * radius / math.sqrt(noise_constant * factor * math.log(1 / delta))))
    )


def strongly_convex_lengths(
    *,
    examples: int,
    epsilon: float,
    delta: float,
    strong_convexity: float,
    smoothness: np.ndarray,
    probabilities: np.ndarray,
    initial_gap: float,
    noise_constant: float,
) -> Lengths:
    """Return K = ceil(2 kappa) and T = ceil(log2((f_0 - f*) n^2 epsilon^2 / (kappa Sigma^2 ln(1/delta)))), at least 1.

    kappa = 1 + max_j (M_j / p_j) / mu; the main text has the maximum in the denominator.

    Args:
        examples: n.
        epsilon: epsilon of the target.
        delta: delta of the target.
        strong_convexity: mu.
        smoothness: M_j.
        probabilities: p_j.
        initial_gap: f(w^0) - f*, or a bound on it.
        noise_constant: Sigma^2.

    Reference:
        M24, theorem 4.2, strongly convex case.
    """
    kappa = 1 + float((smoothness / probabilities).max()) / strong_convexity
    ratio = initial_gap * (examples * epsilon) ** 2 / (kappa * noise_constant * math.log(1 / delta))
    return Lengths(math.ceil(2 * kappa), max(1, math.ceil(math.log2(max(ratio, 1.0)))))
