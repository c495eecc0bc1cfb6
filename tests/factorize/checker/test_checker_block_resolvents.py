"""The lower bound for fixed epochs without a dense matrix: against singular values, and with wrong quadratures."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from specs import spec_of

from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.bounds.block_resolvents import LARGEST_WORK, lower_bound, nuclear_norm_below
from factorize.errors import CertificateError
from factorize.workloads.forms import BidiagonalInverse


def schedule(rates, decay=1.0):
    p = 1 / np.asarray(rates, dtype=float)
    return BidiagonalInverse(p, np.concatenate([[0.0], decay * p[1:]]))


def random_factors(classes, epochs, seed, spread=1.0):
    rng = np.random.default_rng(seed)
    scale = np.exp(spread * rng.standard_normal((classes, 1, 1)))
    return scale * rng.standard_normal((classes, epochs, epochs))


def exact_norm(inverse, factors):
    b, k, _ = factors.shape
    whole = np.zeros((b * k, b * k))
    for j, block in enumerate(factors):
        steps = np.arange(j, b * k, b)
        whole[np.ix_(steps, steps)] = block
    below = np.diag(inverse.p) - np.diag(inverse.q[1:], -1)
    return np.linalg.svd(np.linalg.solve(below, whole), compute_uv=False).sum()


@pytest.mark.parametrize(("epochs", "classes"), [(2, 2), (2, 3), (3, 1), (4, 16), (4, 17), (8, 8), (16, 5), (5, 60)])
def test_prefix_sums(epochs, classes):
    inverse, factors = schedule(np.ones(epochs * classes)), random_factors(classes, epochs, classes)
    exact = exact_norm(inverse, factors)
    assert exact * (1 - 1e-9) <= nuclear_norm_below(*inverse, factors) <= exact * (1 + 1e-13)


@settings(max_examples=25)
@given(
    st.integers(2, 6),
    st.integers(1, 9),
    st.lists(st.floats(-6.0, 6.0), min_size=54, max_size=54),
    st.sampled_from([0.95, 1.0]),
    st.integers(0, 9),
)
def test_random_schedules(epochs, classes, logs, decay, seed):
    inverse = schedule(np.exp(logs[: epochs * classes]), decay)
    factors = random_factors(classes, epochs, seed)
    exact = exact_norm(inverse, factors)
    found = nuclear_norm_below(*inverse, factors)
    assert exact * (1 - 1e-6) <= found <= exact * (1 + 1e-12)


def test_singular_and_empty_blocks():
    factors = random_factors(6, 3, 1)
    factors[2] = 0.0
    factors[4, :, 1:] = 0.0
    inverse = schedule(np.ones(18))
    assert 0 <= nuclear_norm_below(*inverse, factors) <= exact_norm(inverse, factors) * (1 + 1e-13)


def test_what_is_no_chain_is_refused():
    factors = random_factors(4, 3, 0)
    cut = schedule(np.ones(12))
    cut.q[5] = 0.0
    for inverse in (cut, BidiagonalInverse(np.ones(12), np.full(12, 0.1))):
        with pytest.raises(NotEnclosed, match="too uneven"):
            nuclear_norm_below(*inverse, factors)


@pytest.mark.parametrize("objective", [{"kind": "mean"}, {"kind": "weighted", "weights": [*range(1, 12)]}])
@pytest.mark.parametrize(
    ("participation", "patterns"),
    [
        ({"kind": "min_sep", "min_sep": 4}, [(0, 4, 8), (1, 5, 9), (2, 6, 10), (3, 7)]),
        ({"kind": "min_sep", "min_sep": 3, "max_participations": 2}, [(0, 3), (6, 9), (1, 4), (7, 10), (2, 5), (8,)]),
    ],
)
def test_disjoint_patterns_of_unequal_length(objective, participation, patterns):
    """Steps before the first fill the epochs: the bound is that of the singular values of W A F."""
    n, most = 11, len(patterns[0])
    spec = spec_of(
        {"kind": "weight_decay", "rate": 0.25, "mode": "decoupled"}, "dense", participation, objective, n=n
    ).canonical()
    factors = np.random.default_rng(1).normal(size=(len(patterns), most, most))
    whole, cost, start = np.zeros((n, n)), 0.0, 0
    for steps, block in zip(patterns, factors, strict=True):
        own = block[: len(steps), : len(steps)]
        whole[np.ix_(steps, range(start, start + len(steps)))] = own
        cost, start = cost + np.square(own).sum(axis=1).max(), start + len(steps)
    singular = np.linalg.svd(spec.objective.weigh(spec.workload.dense() @ whole), compute_uv=False)
    exact = spec.objective.scale(n) * singular.sum() ** 2 / cost
    bound = lower_bound(spec.document(), {"factors": factors})
    assert exact * (1 - 1e-9) <= float(bound) <= exact * (1 + 1e-13)


def test_factors_of_other_patterns_are_refused():
    spec = spec_of(32, participation=8).canonical().document()
    for shape in ((8, 4, 4), (4, 8, 4), (32, 1, 1)):
        with pytest.raises(CertificateError, match=r"shape \(4, 8, 8\)"):
            lower_bound(spec, {"factors": np.ones(shape)})


def test_too_many_epochs_are_left_to_other_roads():
    spec = spec_of(512, participation=512).canonical().document()
    assert 512**3 > LARGEST_WORK
    with pytest.raises(NotEnclosed, match="512 epochs"):
        lower_bound(spec, {"factors": np.ones((1, 512, 512))})
