"""The checker from outside: on random small files it proves what is true and nothing that is a millionth off.

The truth is in fractions, or in the slow evaluations of `checker_files`, which share nothing with the checker. What it accepts of
a claim is an interval around the truth; here it is shown to hold the truth and to be at most `NARROW` wide to either side.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from checker_files import claim, in_fractions, inverted, parts, random_result, sealed, true_losses, true_squares
from hypothesis import given, settings
from hypothesis import strategies as st
from specs import solved

from factorize.checker.check import check_factor_file
from factorize.checker.report import Report
from factorize.errors import CorruptObject

NARROW = 1e-6
LOOSE = 1.25
LOSSES = ("max_error", "mean_squared", "total_squared", "rmse", "last_iterate", "objective")
STRUCTURES = ("dense", "toeplitz", "banded")
FILES = {"seed": st.integers(0, 2**32 - 1), "structure": st.sampled_from(STRUCTURES)}


def statuses(report: Report) -> dict[str, str]:
    return {entry["claim"]: entry["status"] for entry in report.claims}


def checked(manifest: dict[str, Any], tensors: dict[str, np.ndarray]) -> dict[str, str]:
    return statuses(check_factor_file(sealed(manifest, tensors)))


def losses_of(result: Any, sensitivity: float) -> dict[str, float]:
    """Every loss of the certificate from A C^-1 in fractions, rounded once at the end."""
    decoder = in_fractions(result.spec.workload.dense()) @ inverted(in_fractions(result.strategy.dense()))
    square, m = Fraction(sensitivity) ** 2, len(decoder)
    true = {name: square * loss for name, loss in true_losses(decoder, result.spec.objective.document()).items()}
    return {
        "max_error": math.sqrt(true["largest"]),
        "mean_squared": float(true["total"] / m),
        "total_squared": float(true["total"]),
        "rmse": math.sqrt(true["total"] / m),
        "last_iterate": math.sqrt(true["last"]),
        "objective": float(true["objective"]),
    }


@settings(max_examples=30)
@given(**FILES)
def test_losses_are_proved_where_they_are_true_and_not_where_they_are_a_millionth_off(seed, structure):
    result = random_result(np.random.default_rng(seed), structure)
    manifest, tensors = parts(result)
    truth = losses_of(result, manifest["certificate"]["sensitivity"]["value"])
    assert set(truth) == set(LOSSES)
    manifest["certificate"]["loss"] |= truth
    assert checked(manifest, tensors)["certificate.loss"] == "proved"
    for name, side in itertools.product(LOSSES, (-1, 1)):
        manifest["certificate"]["loss"] = {**truth, name: truth[name] * (1 + side * NARROW)}
        assert checked(manifest, tensors)["certificate.loss"] != "proved", (name, side)


@settings(max_examples=60)
@given(**FILES)
def test_sensitivities_are_proved_from_the_truth_on_and_never_below(seed, structure):
    """Where no sum over patterns is exact, the bound for selections is at most `LOOSE` times absolute Gram sums."""
    result = random_result(np.random.default_rng(seed), structure)
    manifest, tensors = parts(result)
    stated = manifest["certificate"]["sensitivity"]
    signed, absolute = true_squares(result.strategy.dense(), stated["participation"])
    assert signed <= Fraction(stated["value"]) ** 2 <= absolute * Fraction(LOOSE)
    report = check_factor_file(sealed(manifest, tensors))
    assert statuses(report)["certificate.sensitivity"] == "proved"
    low, high = (Fraction(report.sensitivity[end]) for end in ("lower", "upper"))
    below, above = 1 - Fraction(NARROW), 1 + Fraction(NARROW)
    assert low**2 <= absolute * above and signed * below <= high**2 <= absolute * Fraction(LOOSE)
    exact = stated["kind"] == "exact"
    if exact:
        assert signed * below <= low**2 <= signed * above and high**2 <= signed * above
    elif Fraction(stated["value"]) ** 2 > signed * above:
        stated["kind"] = "exact"
        assert checked(manifest, tensors)["certificate.sensitivity"] == "false", "an upper bound sold as exact"
        stated["kind"] = "upper_bound"
    least = math.sqrt(signed if exact else low**2) * (1 - NARROW)
    for value in (0.0, -1.0):
        claim(manifest, value)
        with pytest.raises(CorruptObject, match="the sensitivity is stated as|states a sensitivity of"):
            check_factor_file(sealed(manifest, tensors))
    claim(manifest, least)
    assert checked(manifest, tensors)["certificate.sensitivity"] != "proved", "below the truth"
    claim(manifest, math.sqrt(signed) * (1 + NARROW))
    if exact:
        assert checked(manifest, tensors)["certificate.sensitivity"] != "proved", "it is not exact"


PROBLEMS = {
    "one participation": ("single", "mean"),
    "largest error": ("single", "max"),
    "epochs": ({"kind": "fixed_epochs", "epochs": 3}, "mean"),
    "differences": ("single", {"kind": "lambda_tau", "tau": 2}),
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_lower_bounds_are_proved_from_the_file_and_none_above_the_optimum(problem):
    """The solver's gap of 1e-9 is the width: what is a millionth above the bound is above the optimum."""
    participation, objective = PROBLEMS[problem]
    result = solved(6, "dense", participation, objective, tolerance=1e-9)
    manifest, tensors = parts(result)
    bound = manifest["certificate"]["lower_bound"]
    assert result.certificate.relative_gap <= 1e-9
    states = checked(manifest, tensors)
    assert states["certificate.lower_bound"] == states["certificate.relative_gap"] == "proved"
    honest = dict(bound)
    for name, value in honest.items():
        if isinstance(value, float):
            bound |= {**honest, name: value * (1 + NARROW)}
            assert checked(manifest, tensors)["certificate.lower_bound"] != "proved", name


@settings(max_examples=15)
@given(**FILES)
def test_a_stored_decoder_is_proved_and_no_smaller_added_noise_or_larger_residual(seed, structure):
    """A G + B Z reveals B^-1 A. A - B C may be 2^-40 of the largest column sum of A; here it is twice that."""
    result = random_result(np.random.default_rng(seed), structure, {"kind": "single"})
    manifest, tensors = parts(result.with_matrices(["C", "B"]))
    column = "B.coefficients" in tensors
    stored = tensors["B.coefficients" if column else "B"]
    strategy, workload = result.strategy.dense(), result.spec.workload.dense()
    n = len(strategy)
    decoder = np.array([np.concatenate([stored[i::-1], np.zeros(n - 1 - i)]) for i in range(n)]) if column else stored
    encoder = inverted(in_fractions(decoder)) @ in_fractions(workload)
    noise = math.sqrt(max(sum((entry**2 for entry in c), start=Fraction(0)) for c in zip(*encoder, strict=True)))

    def supported(noise: float) -> bool:
        manifest["matrices"]["B"]["encoder_sensitivity"] = {"kind": "upper_bound", "value": noise, "hex": noise.hex()}
        return check_factor_file(sealed(manifest, tensors)).supported

    assert supported(noise * (1 + NARROW))
    assert not supported(noise * (1 - NARROW))
    stored[-1 if column else (-1, 0)] += 2.0**-39 * np.abs(workload).sum(axis=0).max() / strategy[0, 0]
    assert not supported(noise * (1 + NARROW))
