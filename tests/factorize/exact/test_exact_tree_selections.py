"""Selections over the nodes of trees: never below any allowed selection, and at the best one where X is a sum."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from exact_files import parts, sealed
from hypothesis import given, settings
from hypothesis import strategies as st

from factorize import parse_spec, solvers
from factorize.exact import check_factor_file
from factorize.exact.sensitivity import NODES
from factorize.exact.structures import tree_selections
from factorize.exact.structures.tree_selections import node_selection

DECODERS = ("online", "honaker_online", "honaker_full")


def tree_of(n: int, decoder: str, restart: int) -> np.ndarray:
    mechanism = {"kind": "tree", "decoder": decoder, "restart_every": restart}
    spec = parse_spec({"workload": {"kind": "prefix", "n": n}, "mechanism": mechanism})
    return np.asarray(solvers.solve(spec).strategy.dense())


def selections(n: int, separation: int, most: int, start: int = 0) -> Iterator[tuple[int, ...]]:
    """Give every selection of at least one step."""
    for first in range(start, n):
        yield (first,)
        if most > 1:
            yield from ((first, *rest) for rest in selections(n, separation, most - 1, first + separation))


def best(array: np.ndarray, separation: int, most: int) -> float:
    gram = array.T @ array
    return max(float(gram[np.ix_(some, some)].sum()) for some in selections(len(array), separation, most))


@given(
    n=st.integers(1, 12),
    restart=st.integers(1, 12),
    separation=st.integers(1, 12),
    most=st.integers(1, 12),
    decoder=st.sampled_from(DECODERS),
)
@settings(max_examples=150, deadline=None)
def test_no_selection_is_above_the_bound(n: int, restart: int, separation: int, most: int, decoder: str) -> None:
    restart, separation = min(restart, n), min(separation, n)
    check(tree_of(n, decoder, restart), restart, separation, most)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("n", range(1, 12))
def test_any_numbers_without_a_sign_are_bounded(n: int, seed: int) -> None:
    """Trees that are made here have no entries between two sides of a node that is cut off; stored ones may."""
    for restart in {n, min(n, 5), min(n, 3)}:
        tree = np.arange(n) // restart
        array = np.tril(np.random.default_rng(seed).random((n, n)) ** 3 * np.equal.outer(tree, tree))
        for separation in (1, 2, 3):
            for most in (1, 2, n):
                check(array, restart, min(separation, n), most)


def check(array: np.ndarray, restart: int, separation: int, most: int) -> None:
    found = node_selection(array, restart, separation, most)
    assert found is not None
    assert found.upper >= best(array, separation, most) * (1 - 1e-14)
    assert 1 <= len(found.pattern) <= most
    assert all(later - step >= separation for step, later in zip(found.pattern, found.pattern[1:], strict=False))
    assert 0 <= found.pattern[0] and found.pattern[-1] < len(array)


def test_tables_that_take_too_long_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sides of 2, 4 and 8 steps, 3 apart: sums over free steps, margins at both ends, and numbers of steps."""
    monkeypatch.setattr(tree_selections, "_MOST_WORK", 1 * 4 + 3 * 9 * 4 + 3 * 9 * 9)
    assert node_selection(np.eye(16), 16, 3, 6) is not None
    monkeypatch.setattr(tree_selections, "_MOST_WORK", 1 * 4 + 3 * 9 * 4 + 3 * 9 * 9 - 1)
    assert node_selection(np.eye(16), 16, 3, 6) is None
    assert node_selection(np.eye(16), 16, 3, 1) is not None, "of one step there is one number"


@pytest.mark.parametrize(("n", "min_sep"), [(12, 3), (24, 13), (64, 3), (64, 13), (64, 24)])
def test_trees_that_rows_do_not_decide_are_proved(n: int, min_sep: int) -> None:
    document: dict[str, Any] = {
        "workload": {"kind": "prefix", "n": n},
        "participation": {"kind": "min_sep", "min_sep": min_sep},
        "mechanism": {"kind": "tree", "decoder": "online"},
    }
    result = solvers.solve(parse_spec(document))
    assert result.certificate.sensitivity.kind == "exact"
    report = check_factor_file(sealed(*parts(result)))
    assert report.supported, report.failed
    assert report.sensitivity["upper"] == pytest.approx(result.certificate.sensitivity.value, rel=1e-13)
    if (n, min_sep) in ((12, 3), (24, 13)):
        assert report.sensitivity["rule"] == NODES
