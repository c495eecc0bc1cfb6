"""Tree aggregation: the square equivalent of three decoders, its sensitivity and its generation with log n vectors."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from checker_files import min_sep_patterns
from specs import solved

from factorize.errors import TooLarge
from factorize.factors.sensitivity import sensitivity_of
from factorize.participation import FixedEpochs, MinSep, Single
from factorize.solvers.formulas.tree import node_weights
from factorize.structures.tree import TreeMatrix

DECODERS = ("online", "honaker_online", "honaker_full")
VECTORS = json.loads((Path(__file__).parents[1] / "data" / "vectors.json").read_text())


def nodes_inside(n):
    """H: one row for each complete node of the tree, from the leaves up."""
    rows = [
        np.eye(n)[first : first + size].sum(axis=0)
        for size in (1 << k for k in range(n.bit_length()))
        for first in range(0, n - size + 1, size)
    ]
    return np.array(rows)


def decoder_of(n, kind):
    """The decoder by its definition: rows of D with D H = S, shape (n, nodes)."""
    inside, prefix = nodes_inside(n), np.tril(np.ones((n, n)))
    if kind == "honaker_full":
        return prefix @ np.linalg.pinv(inside)
    last = np.array([np.flatnonzero(row)[-1] for row in inside])
    first = np.array([np.flatnonzero(row)[0] for row in inside])
    out = np.zeros((n, len(inside)))
    for t in range(n):
        done = np.flatnonzero(last <= t)
        if kind == "honaker_online":
            out[t, done] = np.linalg.lstsq(inside[done].T, prefix[t], rcond=None)[0]
            continue
        end = t + 1
        while end:
            start = end & (end - 1)
            out[t, np.flatnonzero((first == start) & (last == end - 1))] = 1.0
            end = start
    return out


def square_equivalent(n, kind):
    """C = chol(D D^T)^-1 S, for one tree."""
    decoder = decoder_of(n, kind)
    return np.linalg.solve(np.linalg.cholesky(decoder @ decoder.T), np.tril(np.ones((n, n))))


def matrix_of(n, kind, restart=None):
    return TreeMatrix(node_weights(n, restart or n, kind), restart or n)


def tree(n, decoder, *, participation=None, **more):
    return solved(n, {"kind": "tree", "decoder": decoder, **more}, participation)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7, 8, 11, 16, 23])
def test_closed_forms_are_the_square_equivalents_of_the_decoders(n, decoder):
    assert np.allclose(matrix_of(n, decoder).dense(), square_equivalent(n, decoder), rtol=0, atol=1e-12)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize(("n", "restart"), [(7, 3), (12, 4), (13, 5), (9, 1), (23, 8)])
def test_restarts_are_blocks_of_smaller_trees(n, restart, decoder):
    expected = np.zeros((n, n))
    for start in range(0, n, restart):
        size = min(restart, n - start)
        expected[start : start + size, start : start + size] = square_equivalent(size, decoder)
    assert np.allclose(matrix_of(n, decoder, restart).dense(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("n", [2, 4, 6, 8])
@pytest.mark.parametrize(("decoder", "name"), [("online", "vanilla"), ("honaker_full", "full_honaker")])
def test_published_errors_of_the_decoders(n, decoder, name):
    expected = VECTORS[f"H.tree.T{n}"][name]
    certificate = tree(n, decoder).certificate
    assert certificate.sensitivity.value**2 == pytest.approx(expected["sens2"], rel=1e-12)
    assert certificate.loss.mean_squared == pytest.approx(expected["mean"], rel=1e-9)
    assert certificate.loss.max_error**2 == pytest.approx(expected["max"], rel=1e-9)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("restart", [None, 3, 4])
def test_every_participation_against_enumeration(decoder, restart):
    n = 12
    matrix = matrix_of(n, decoder, restart)
    whole = matrix.dense()
    gram = whole.T @ whole
    single = sensitivity_of(matrix, Single())
    assert single.value**2 == pytest.approx(gram.diagonal().max(), rel=1e-11) and single.kind == "exact"
    for epochs in (2, 3, 4, 6, 12):
        fixed = FixedEpochs(kind="fixed_epochs", epochs=epochs)
        true = max(gram[np.ix_(chosen, chosen)].sum() for chosen in fixed.patterns(n))
        found = sensitivity_of(matrix, fixed)
        assert found.kind == "exact" and found.value**2 == pytest.approx(true, rel=1e-11)
        assert found.value**2 >= true * (1 - 1e-14)
    for separation, most in itertools.product((1, 2, 3, 5), (2, 3, 4)):
        true = max(gram[np.ix_(chosen, chosen)].sum() for chosen in min_sep_patterns(n, separation, most))
        found = sensitivity_of(matrix, MinSep(kind="min_sep", min_sep=separation, max_participations=most))
        assert found.value**2 >= true * (1 - 1e-14)
        if found.kind == "exact":
            assert found.value**2 == pytest.approx(true, rel=1e-8), found.rule
        else:
            assert found.value**2 <= 1.4 * true  # 12 steps; s is 0 to 1.5 % above from some hundred on


def test_long_streams_need_no_dense_matrix():
    found = tree(40_000, "honaker_online")
    assert found.certificate.sensitivity.kind == "exact"
    with pytest.raises(TooLarge, match="up to n=16384"):
        tree(40_000, "honaker_online", participation={"kind": "min_sep", "min_sep": 20_000})
    small = tree(2048, "honaker_full").certificate
    assert small.sensitivity.value**2 == pytest.approx(12.0, rel=1e-12)
    assert small.relative_gap > 0.1 and small.converged
