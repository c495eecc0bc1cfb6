"""Coefficients and norms that the exact checker encloses by recursions in fixed point, beside fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from factorize.errors import CorruptObject, InvalidStrategy, TooLarge
from factorize.exact.arithmetic.integers import Numbers
from factorize.exact.arithmetic.intervals import PLACES
from factorize.exact.structures import blt, buffered, inverse_banded_toeplitz

UNIT = Fraction(1, 2**PLACES)
SIZES = st.floats(0.0, 1.0, allow_subnormal=False)


def enclosed(found: Numbers, true: list[Fraction], radius: int) -> None:
    """In units of 2^-256, each within the radius, which is as stated."""
    assert found.exponent == -PLACES and found.radius == radius and len(found.values) == len(true)
    for value, exact in zip(found.values, true, strict=True):
        assert abs(int(value) * UNIT - exact) <= radius * UNIT


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(-1e20, 1e20)), min_size=1, max_size=3), st.integers(1, 6))
def test_decays_are_cut_by_less_than_a_unit_per_step_and_decay(pairs: list[tuple[float, float]], n: int) -> None:
    true = [Fraction(1)]
    for t in range(n - 1):
        true.append(sum((Fraction(scale) * Fraction(decay) ** t for decay, scale in pairs), Fraction(0)))
    decays = blt.read({"theta": np.array([d for d, _ in pairs]), "omega": np.array([s for _, s in pairs])})
    enclosed(decays.series(n), true, n * len(pairs) if n > 1 else 0)


def test_scales_of_every_size_are_enclosed() -> None:
    for scale in (2.0**-300, 3 * 2.0**-256, 2.0**-204, 2.0**-203, 2.0**300):
        found = blt.read({"theta": np.array([0.5]), "omega": np.array([scale])}).series(3)
        enclosed(found, [Fraction(1), Fraction(scale), Fraction(scale) / 2], 3)


@pytest.mark.parametrize(
    ("theta", "omega"), [([0.5], [0.5, 0.5]), ([], []), ([[0.5]], [[0.5]]), ([0.5, 0.5], [[0.5, 0.5]])]
)
def test_decays_of_other_shapes(theta: list, omega: list) -> None:
    with pytest.raises(CorruptObject, match="are no decays and scales"):
        blt.read({"theta": np.array(theta), "omega": np.array(omega)})


def test_decays_by_hand() -> None:
    found = blt.read({"theta": np.array([0.5]), "omega": np.array([2.0])}).series(3)
    assert found.values.tolist() == [2**PLACES, 2 * 2**PLACES, 2**PLACES]


def test_decays_up_to_one() -> None:
    assert blt.read({"theta": np.array([1.0, -1.0]), "omega": np.ones(2)}).bandwidth > 10**18
    for beyond in (np.nextafter(1.0, 2.0), -1.5, 2.0):
        with pytest.raises(InvalidStrategy, match="grow without end"):
            blt.read({"theta": np.array([0.5, beyond]), "omega": np.ones(2)})


@given(st.lists(st.floats(0, 0.25), min_size=0, max_size=4), st.integers(5, 8))
def test_inverses_are_cut_by_less_than_a_unit_per_step(weights: list[float], n: int) -> None:
    true = [Fraction(1)]
    for t in range(1, n):
        true.append(sum((Fraction(w) * true[t - d] for d, w in enumerate(weights, 1) if d <= t), Fraction(0)))
    found = inverse_banded_toeplitz.read({"inverse_coefficients": np.array([1.0, *(-w for w in weights)])}, n)
    enclosed(found.series(n), true, n if any(weights) else 0)
    assert found.bandwidth > 10**18 if any(weights) else found.bandwidth == 1


@pytest.mark.parametrize("column", [[], [[1.0, -0.5]], [1.0, 0.0, 0.0, 0.0]])
def test_inverses_of_other_shapes(column: list) -> None:
    with pytest.raises(CorruptObject, match="n=3 cannot have shape"):
        inverse_banded_toeplitz.read({"inverse_coefficients": np.array(column)}, 3)


@pytest.mark.parametrize("column", [[2.0, -0.5], [1.0, 0.5], [1.0, -0.5, 0.25], [1.0, -0.5, -0.75], [0.5, -0.25]])
def test_inverses_whose_coefficients_may_leave_the_unit_interval(column: list[float]) -> None:
    with pytest.raises(InvalidStrategy, match="sum to at least -1"):
        inverse_banded_toeplitz.read({"inverse_coefficients": np.array(column)}, 3)


def test_inverses_at_the_limit() -> None:
    for column in ([1.0], [1.0, -1.0], [1.0, -0.5, -0.5]):
        assert (
            inverse_banded_toeplitz.read({"inverse_coefficients": np.array(column)}, 3).weights[1:]
            == -np.array(column)[1:]
        ).all()


Block = np.ndarray


def dense(given: buffered.Buffers) -> list[list[Fraction]]:
    """C in fractions: output_i . T_i ... T_{j+1} input_j below the diagonal."""
    n, groups, states = given.inputs.shape
    out = [[Fraction(0)] * n for _ in range(n)]
    for j in range(n):
        out[j][j] = Fraction(float(given.diagonal[j]))
        state = [[Fraction(float(x)) for x in group] for group in given.inputs[j]]
        for i in range(j + 1, n):
            blocks = given.transition[i]
            state = [
                [
                    sum((Fraction(float(blocks[g, a, b])) * state[g][b] for b in range(states)), Fraction(0))
                    for a in range(states)
                ]
                for g in range(groups)
            ]
            read = [Fraction(float(x)) for x in given.outputs[i].ravel()]
            out[i][j] = sum(
                (r * s for r, s in zip(read, [x for group in state for x in group], strict=True)), Fraction(0)
            )
    return out


def random_buffers(seed: int, groups: int, states: int, n: int = 5, size: float = 1.0) -> buffered.Buffers:
    rng = np.random.default_rng(seed)
    middle = size * rng.uniform(-1, 1, (n, groups, states, states))
    return buffered.Buffers(1 + rng.random(n), middle, *rng.standard_normal((2, n, groups, states)))


@pytest.mark.parametrize(("groups", "states"), [(1, 1), (3, 1), (1, 2), (2, 2), (3, 3)])
@pytest.mark.parametrize("size", [0.9, 3.0])
def test_buffers_beside_fractions(groups: int, states: int, size: float) -> None:
    for seed in range(2):
        given_ = random_buffers(seed, groups, states, size=size)
        true = dense(given_)
        norms, whole = buffered.column_norms(given_), buffered.entries(given_)
        for j, column in enumerate(zip(*true, strict=True)):
            exact = sum(x * x for x in column)
            assert abs(int(norms.values[j]) * UNIT - exact) <= norms.radius * UNIT
            for i in range(len(true)):
                assert abs(int(whole.values[i, j]) * UNIT - true[i][j]) <= whole.radius * UNIT
        assert max(norms.radius, whole.radius) < 2**40  # of 2^256


def test_buffers_by_hand() -> None:
    """T = 1/2 and all else 1: 1 below the diagonal in units of 1/2, 1/4; no place is cut."""
    ones = np.ones((3, 1, 1))
    found = buffered.column_norms(buffered.Buffers(np.ones(3), 0.5 * np.ones((3, 1, 1, 1)), ones, ones))
    assert [int(v) * UNIT for v in found.values] == [Fraction(21, 16), Fraction(5, 4), 1]
    whole = buffered.entries(buffered.Buffers(np.ones(3), 0.5 * np.ones((3, 1, 1, 1)), ones, ones))
    assert [[int(v) * UNIT for v in row] for row in whole.values] == [
        [1, 0, 0], [Fraction(1, 2), 1, 0], [Fraction(1, 4), Fraction(1, 2), 1],
    ]  # fmt: skip


def same_everywhere(transition: list, feed: list, out: list, n: int, groups: int = 1) -> buffered.Buffers:
    states = len(transition)
    parts = (np.tile(np.array(part, dtype=float).reshape(-1, states), (n, 1, 1)) for part in (feed, out))
    return buffered.Buffers(np.ones(n), np.tile(np.array(transition, dtype=float), (n, groups, 1, 1)), *parts)


@pytest.mark.parametrize(("step", "feed"), [(2**54, 1), (1, 2**54)])
def test_large_buffers_are_integers(step: int, feed: int) -> None:
    large = same_everywhere([[step]], [feed], [4], 2)
    norms, whole = buffered.column_norms(large), buffered.entries(large)
    assert [int(v) * UNIT for v in norms.values] == [1 + (4 * step * feed) ** 2, 1]
    assert [int(v) * UNIT for v in whole.values[1]] == [4 * step * feed, 1]


def test_what_column_norms_lose_by_hand() -> None:
    """A step cuts 2 m^2 + 2 units, m states, and moves on what was lost before it; with T <= 1 what is lost stays."""
    for size in (1.0, 0.5):
        assert buffered.column_norms(same_everywhere([[size]], [3], [1], 2)).radius == 2 * (9 + 1) + 4
        assert buffered.column_norms(same_everywhere([[size]], [3], [1], 3)).radius == 4 * (9 + 1) + 4
    assert buffered.column_norms(same_everywhere([[2]], [3], [1], 2)).radius == 9 * (4 * 1 + 2) + 4
    double = [[2, 0], [0, 2]]
    assert buffered.column_norms(same_everywhere(double, [1, 3], [1, 1], 2)).radius == 10 * (4 * 2 + 16) + 10
    half = [[0.5, 0], [0, 0.5]]
    assert buffered.column_norms(same_everywhere(half, [1, 3], [1, 1], 2)).radius == 10 * (0 + 16) + 10


def test_what_entries_lose_by_hand() -> None:
    """W <- T W T^T + (1 + m s^2) I; row i is off by at most sqrt((i + 1) m (s + 1)^2 (o . W o + m^2)) + m + 2."""
    assert buffered.entries(same_everywhere([[2]], [1], [3], 1)).radius == 2 + 3  # sqrt(4 (0 + 1))
    assert buffered.entries(same_everywhere([[2]], [1], [3], 2)).radius == 12 + 3  # sqrt(2 * 4 (9 * 2 + 1))
    assert buffered.entries(same_everywhere([[2]], [1], [3], 3)).radius == 33 + 3  # sqrt(3 * 4 (9 (4 * 2 + 2) + 1))
    one_way = [[0, 2], [0, 0]]  # takes the second state to the first
    for out in ([1, 0, 0, 0], [0, 0, 1, 0]):
        found = buffered.entries(same_everywhere(one_way, [1] * 4, out, 3, groups=2))
        assert found.radius == 104 + 6  # sqrt(3 * 4 * 9 (4 * 17 + 17 + 16))


def test_losses_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    given_ = same_everywhere([[2]], [3], [3], 2)
    for run, radius in ((buffered.column_norms, 58), (buffered.entries, 15)):
        monkeypatch.setattr(buffered, "_WIDEST", radius)
        assert run(given_).radius == radius
        monkeypatch.setattr(buffered, "_WIDEST", radius - 1)
        with pytest.raises(TooLarge, match="grow so much"):
            run(given_)


def test_signs_of_buffers() -> None:
    given_ = same_everywhere([[0]], [0], [1], 2)
    assert given_.nonnegative and not given_._replace(inputs=given_.inputs - 1).nonnegative


def test_shapes_of_buffers() -> None:
    parts = {"diagonal": np.ones(3), "input": np.ones((3, 2)), "output": np.ones((3, 2))}
    for middle, groups, states in (("decay", 2, 1), ("transition", 1, 2), ("transition", 2, 1)):
        shape = (3, 2) if middle == "decay" else (3, 2, 2) if groups == 1 else (3, 2, 1, 1)
        assert buffered.read(dict(parts) | {middle: np.ones(shape)}, 3).transition.shape == (3, groups, states, states)
    for shape in ((3,), (3, 2, 2, 2, 2)):
        with pytest.raises(CorruptObject, match="none of a matrix with buffers"):
            buffered.read(dict(parts) | {"transition": np.ones(shape)}, 3)
    for name, wrong in (
        ("diagonal", np.ones(2)),
        ("input", np.ones((3, 3))),
        ("output", np.ones((2, 2))),
        ("transition", np.ones((2, 2, 2))),
        ("transition", np.ones((3, 2, 3))),
    ):
        with pytest.raises(CorruptObject, match="do not fit n=3"):
            buffered.read(dict(parts) | {"transition": np.ones((3, 2, 2))} | {name: wrong}, 3)


def test_whole_buffers_as_long_as_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    given_ = random_buffers(0, 1, 1, 3)
    monkeypatch.setattr(buffered, "LARGEST_WHOLE", 3)
    assert buffered.entries(given_).values.shape == (3, 3)
    monkeypatch.setattr(buffered, "LARGEST_WHOLE", 2)
    with pytest.raises(TooLarge, match="n=3"):
        buffered.entries(given_)


def test_steps_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    given_ = random_buffers(1, 2, 2)
    at_once = buffered.column_norms(given_)
    monkeypatch.setattr(buffered, "_STEPS", 2)
    found = buffered.column_norms(given_)
    assert found.values.tolist() == at_once.values.tolist() and found.radius == at_once.radius
