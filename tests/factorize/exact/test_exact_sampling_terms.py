"""Error terms of what is computed of sampled batches, beside their formulas, in units so coarse that each term shows.

Bounds on sums, chains and laws are rounded up by terms of 2^-52 and 10^-40, which no comparison of values comes near.
Here they are as large as the values: a term that is left out, or has another sign, is another number.
"""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr

from factorize.errors import InvalidParameter, InvalidStrategy, TooLarge
from factorize.exact.arithmetic.enclosures import Enclosed
from factorize.exact.arithmetic.integers import Numbers
from factorize.exact.sampling import allocation, bins, epoch_chain
from factorize.exact.sampling.allocation import Blocks, LossCells
from factorize.exact.sampling.bins import ClassSums
from factorize.exact.sampling.epoch_chain import Epochs, Scaled
from factorize.exact.strategy import Strategy

U, LEAST, EXP, LOST = 1 / 512, 1 / 4096, 1 / 300, 1e-4
SLACK = 1 / 700
NEARLY = 1e-12
N, B = 7, 3


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    units = {"_UNIT": U, "_LEAST": LEAST, "EXP_SLACK": EXP, "_LOST": Decimal(LOST), "SLACK": Decimal(SLACK)}
    for module in (allocation, bins, epoch_chain):
        for name, value in units.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)


def near(found: Any, wanted: Any, within: float = NEARLY) -> None:
    assert np.shape(found) == np.shape(wanted)
    assert np.asarray(found, dtype=float) == pytest.approx(np.asarray(wanted, dtype=float), rel=within, abs=1e-14)


def some(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.5, 2.0, shape)


def around(values: np.ndarray, roundings: int) -> tuple[np.ndarray, np.ndarray]:
    slack = (roundings + 4) * U
    return np.maximum(values * (1 - slack) - LEAST, 0), values * (1 + slack) + LEAST


def classes(columns: np.ndarray) -> np.ndarray:
    """Sums of the columns of a class."""
    return np.stack([columns[:, j::B].sum(axis=1) for j in range(B)], axis=1)


def toeplitz(column: np.ndarray) -> np.ndarray:
    return np.array([[column[i - j] if i >= j else 0.0 for j in range(len(column))] for i in range(len(column))])


def test_ends_around_sums() -> None:
    values = np.array([0.0, 1e-4, 1.0, 3.0])
    near(bins._around(values, 5), around(values, 5))


def test_sums_of_a_toeplitz_matrix_over_its_first_class() -> None:
    column = some(1, N) * [1, -1, 1, -1, 1, -1, 1]
    sums = toeplitz(np.abs(column))[:, ::B].sum(axis=1)
    near(bins._of_series(Numbers(np.zeros(N, dtype=object), 0), column, B), around(sums, 3))
    numbers = Numbers(np.array([5, -9, 3, 7, -4, 6, 8], dtype=object), -1, 1)
    low, high = (toeplitz((np.abs(numbers.values.astype(float)) + d) / 2)[:, ::B].sum(axis=1) for d in (-1, 1))
    down = toeplitz(np.maximum((np.abs(numbers.values.astype(float)) - 1) / 2 * (1 - 4 * U) - LEAST, 0))
    near(bins._of_series(numbers, None, B).high, around(high, 3)[1])
    near(bins._of_series(numbers, None, B).low, around(down[:, ::B].sum(axis=1), 3)[0])
    assert (bins._of_series(numbers, None, B).low < low).all()


def test_sums_of_a_toeplitz_matrix_with_factors() -> None:
    values, factors = np.array([5, -9, 3, 7, -4, 6, 8], dtype=object), some(2, N)
    size = np.abs(values.astype(float)) / 2
    high = classes(toeplitz(size + 0.5) * factors)
    low = classes(toeplitz(np.maximum((size - 0.5) * (1 - 4 * U) - LEAST, 0)) * factors)
    strategy: Any = SimpleNamespace(n=N, series=Numbers(values, -1, 1), scale=factors)
    found = bins._scaled_series(strategy, B)
    near(found.low, around(low, 4)[0])
    near(found.high, around(high, 4)[1])
    with pytest.raises(TooLarge, match="up to n=65536"):
        bins._scaled_series(SimpleNamespace(n=65537, series=0, scale=None), B)  # type: ignore[arg-type]


def test_sums_of_bands() -> None:
    bands, factors = some(3, 3, N), some(4, N)
    bands[1, -1:] = bands[2, -2:] = 0
    bands[1] *= -1
    for scale in (None, factors):
        whole = np.zeros((N, N))
        for d in range(3):
            for j in range(N - d):
                whole[j + d, j] = abs(bands[d, j]) * (1 if scale is None else scale[j])
        near(bins._of_bands(bands, scale, B), around(classes(whole), 4))


def test_sums_of_stored_columns_and_of_solved_ones() -> None:
    array, factors = np.tril(some(5, N, N)), some(6, N)
    stored: Any = SimpleNamespace(n=N, entries_of=lambda steps: -array[:, steps])
    near(bins._of_stored(stored, factors, B), around(classes(array * factors), 4))
    solved: Any = SimpleNamespace(n=N, magnitudes=lambda j: (array[:, j] * 0.5, array[:, j] * 2))
    found = bins._of_solved(solved, factors, B)
    near(found.low, around(classes(array * factors * 0.5), 4)[0])
    near(found.high, around(classes(array * factors * 2), 4)[1])
    with pytest.raises(TooLarge, match="up to n=65536"):
        bins._of_stored(SimpleNamespace(n=65537), factors, B)  # type: ignore[arg-type]


def test_sums_of_a_recursion() -> None:
    groups, states = 3, 2
    moves, inputs, outputs = (
        some(7, N, groups, states, states) / 3,
        some(8, N, groups, states),
        some(9, N, groups, states),
    )
    diagonal, factors = some(10, N), some(11, N)
    whole = np.diag(diagonal)
    for j in range(N):
        state = inputs[j]
        for i in range(j + 1, N):
            state = np.einsum("gst,gt->gs", moves[i], state)
            whole[i, j] = (outputs[i] * state).sum()
    given: Any = SimpleNamespace(transition=moves, inputs=inputs, outputs=outputs, diagonal=diagonal)
    roundings = N * (states + 3) + groups * states + 4
    near(bins._of_buffers(given, factors, B), around(classes(whole * factors), roundings))


def test_sums_of_integers() -> None:
    whole = np.tril(np.random.default_rng(12).integers(5, 90, (N, N))) * np.array([1, -1, 1, 1, -1, 1, 1])
    found = bins._of_numbers(Numbers(whole.astype(object), -3, 1), B)
    total = classes(np.abs(whole).astype(float))
    near(found.high, (total + 3) / 8)  # a radius for each of the three columns that a class has at most
    near(found.low, np.maximum(np.maximum(total - 3, 0) / 8 * (1 - 4 * U) - LEAST, 0))


@pytest.mark.parametrize("count", [3, 9])
def test_products_of_shifts(count: int) -> None:
    low, high = some(13, N), some(13, N) + 0.25
    columns = [
        np.array([np.concatenate([np.zeros(j), part[: N - j]]) for j in range(min(count, N))]) for part in (low, high)
    ]
    wanted = np.zeros((2, count, count))
    wanted[:, : len(columns[1]), : len(columns[1])] = around(columns[1] @ columns[1].T, N + 2)
    found = bins._of_shifts(ClassSums(low, high), count)
    used = np.outer(*[np.arange(count) < N] * 2)
    near(np.where(used, found.high, 0), np.where(used, wanted[1], 0))
    near(np.where(used, found.near, 0), np.where(used, wanted[0], 0))
    near(found.least[:N], around((columns[0] ** 2).sum(axis=1), N + 2)[0])
    assert not found.least[N:].any()


def test_products_of_sums_of_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bins, "_ROWS", 3)
    low, high = some(14, N, B), some(14, N, B) + 0.25
    found = bins._of_columns(ClassSums(low, high))
    near(found.high, high.T @ high)
    near(found.near, (high.T @ high) * (1 - 4 * U) - LEAST)
    near(found.least, around((low**2).sum(axis=0), N + 2)[0])
    monkeypatch.setattr(bins, "_LEAST", 0.0)
    apart = np.diag([1.0, 2.0, 3.0])
    found = bins._of_columns(ClassSums(apart, apart))
    assert (found.near[~np.eye(3, dtype=bool)] == 0).all() and (found.high[~np.eye(3, dtype=bool)] == 0).all()


def test_doubles_above_integers_of_any_size() -> None:
    for value in (1, 3, 2**999 + 1, 2**1500 + 1, 2**2000 - 1):
        above = Fraction(float(bins.doubles_up(np.array([value], dtype=object), -1450)[0]))
        exact = Fraction(value) / 2**1450
        assert exact < above <= max(exact * (1 + Fraction(1, 2**50)), Fraction(1, 2**1070))
    assert bins.doubles_up(np.array([0, 0], dtype=object), 3).tolist() == [0, 0]
    near(bins.doubles_up(np.array([[1, -7]], dtype=object), -1, 2), [[1.5, 4.5]])


def test_how_long_columns_may_be() -> None:
    """65536 steps are added up, if whoever reads their columns is not what ends it, as here."""
    for given in ({"series": SimpleNamespace()}, {"entries_of": None}):
        long: Any = SimpleNamespace(n=65536, scale=None, **given)
        with pytest.raises((AttributeError, TypeError)):
            bins._scaled_series(long, B) if "series" in given else bins._of_stored(long, np.ones(3), B)


def test_what_is_too_much_for_a_gram_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bins, and products: n b for the shifts of one column, n b^2 for columns; and squares beyond doubles."""
    shifts = Strategy("banded_toeplitz", {"coefficients": np.array([1.0, 0.5])}, N)
    columns = Strategy("dense", {"": np.tril(some(17, N, N))}, N)
    for number in (0, -1, True, 2.0):
        with pytest.raises(InvalidParameter, match="at least 1"):
            bins.gram(shifts, number)  # type: ignore[arg-type]
    assert bins.gram(shifts, 1).high.shape == (1, 1)
    for strategy, work in ((shifts, N * B), (columns, N * B * B)):
        monkeypatch.setattr(bins, "MOST_BINS", B)
        monkeypatch.setattr(bins, "MOST_WORK", work)
        assert bins.gram(strategy, B).high.shape == (B, B)
        monkeypatch.setattr(bins, "MOST_WORK", work - 1)
        with pytest.raises(TooLarge, match="products, above"):
            bins.gram(strategy, B)
        monkeypatch.setattr(bins, "MOST_BINS", B - 1)
        with pytest.raises(TooLarge, match="limited to 2 bins"):
            bins.gram(strategy, B)
    monkeypatch.undo()
    huge = Strategy("banded_toeplitz", {"coefficients": np.array([1e160, 1.0])}, N)
    with pytest.raises(InvalidStrategy, match="beyond the range"):
        bins.gram(huge, B)
    some_lost = bins.Gram(np.full((B, B), np.inf), np.ones((B, B)), np.ones(B))
    monkeypatch.setattr(bins, "_of_shifts", lambda *_: some_lost)
    with pytest.raises(InvalidStrategy, match="beyond the range"):
        bins.gram(shifts, B)


def test_long_columns_are_solved_and_short_ones_are_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.tril(np.random.default_rng(18).integers(1, 9, (N, N)))
    solved = SimpleNamespace(n=N, magnitudes=lambda j: (array[:, j] * 0.5, array[:, j] * 2.0))
    reading = SimpleNamespace(buffers=None, diagonals=lambda _: None, by_columns=solved)
    strategy: Any = SimpleNamespace(
        toeplitz=None, series=None, n=N, scale=None, reading=reading, numbers=lambda: Numbers(array.astype(object), 0)
    )
    monkeypatch.setattr(bins, "LARGEST_WHOLE", N)
    near(bins.column_sums(strategy, B).high, classes(array))
    monkeypatch.setattr(bins, "LARGEST_WHOLE", N - 1)
    near(bins.column_sums(strategy, B).high, around(classes(array) * 2.0, 4)[1])
    reading.by_columns = None
    near(bins.column_sums(strategy, B).high, classes(array))


def test_what_is_told_of_sums() -> None:
    gram: Any = SimpleNamespace(high=np.array([[1.0, 9.0], [9.0, 4.0]]))
    largest, mean = bins.describe(gram)
    assert largest == 4 and mean == math.nextafter(2.5, 3)


def value_of(scaled: Scaled) -> np.ndarray:
    return np.asarray(np.ldexp(scaled.value, scaled.power.astype(int)))


def test_numbers_with_powers_of_their_own() -> None:
    first, second = some(15, 4, 3), some(16, 4, 3)
    near(value_of(Scaled.of(first, 3)), 8 * first)
    near(value_of(Scaled.of(first).times(Scaled.of(second, 1))), 2 * first * second)
    for exponent in (0, 1, 2, 5, 6):
        near(value_of(Scaled.of(first).to_the(exponent)), first**exponent, 1e-11)
        assert (value_of(Scaled.of(first).to_the(exponent)) >= first**exponent * (1 - 1e-15)).all()
    powers = np.arange(12).reshape(4, 3) * 3
    near(value_of(Scaled.of(first, powers).sums()), np.ldexp(first, powers).sum(axis=0) * (1 + 8 * U))
    apart = Scaled(np.array([0.5, 0.5]), np.array([0, -5000]))
    assert float(apart.sums().value) >= 0.5


KERNEL = np.array([[1 + abs(math.sin(1.0 + i * j + i + j)) for j in range(N)] for i in range(N)])
KERNEL = (KERNEL + KERNEL.T) / 2 + np.eye(N)


def block(e: int, x: int) -> np.ndarray:
    whole = np.zeros((9, 9))
    whole[:N, :N] = KERNEL
    return whole[3 * e : 3 * e + 3, 3 * x : 3 * x + 3]


def floor(e: int, x: int) -> np.ndarray:
    """The largest product of a step with the far part of another epoch: of three steps the last one, or the first two."""
    part = block(e, x)
    return np.asarray((part[:, 2:] if x == e + 1 else part[:, :2] if x == e - 1 else part).max(axis=1))


def excess(e: int, x: int) -> np.ndarray:
    found = np.maximum(block(e, x) - floor(e, x)[:, None], 0)
    found[:, slice(2, None) if x > e else slice(None, 2)] = 0
    return np.asarray(found)


def test_parts_of_products_of_epochs() -> None:
    epochs = Epochs(KERNEL, B)
    assert epochs.number == 3
    for e in range(3):
        near(epochs.far(e), sum(floor(e, x) for x in range(3) if x != e) * (1 + 5 * U))
        for x in (e - 1, e + 1):
            if 0 <= x < 3:
                near(epochs.excess(e, x), excess(e, x))
    largest = [
        max(block(e, e)[s, s] + sum(block(e, x)[s].max() for x in range(3) if x != e) for s in range(3))
        for e in range(3)
    ]
    near(float(epochs.norm()), sum(largest) * (1 + 5 * U))
    with pytest.raises(TooLarge, match="up to n=4096"):
        Epochs(np.broadcast_to(0.0, (4097, 4097)), 4097)


def raised(exponents: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(exponents) * (1 + EXP + 2 * U))


def ratios(rows: np.ndarray, above: np.ndarray) -> np.ndarray:
    found = (raised(above) @ rows.T) / rows.sum(axis=1) * (1 + 8 * EXP + 4 * (B + 8) * U)
    return np.asarray(np.maximum(found, 1))


@pytest.mark.parametrize("order", [2, 3, 5])
def test_the_chain_of_epochs(order: int) -> None:
    """Every factor of it, multiplied out: (a e^{t f}), and the ratios between neighbouring epochs, to the power m - 1."""
    kernel, half = KERNEL / 8, order / 2
    epochs, total = Epochs(kernel, B), 0.0
    rows = [raised(half * block(e, e) / 8) for e in range(3)]
    own = [
        (rows[e].sum(axis=1) * ((1 + (B + 8) * U) / B) * raised(half * epochs.far(e))) ** (order - 1) for e in range(3)
    ]
    steps = [
        (ratios(rows[e + 1], half * excess(e, e + 1) / 8) * ratios(rows[e], half * excess(e + 1, e) / 8).T)
        ** (order - 1)
        for e in range(2)
    ]
    chain = own[0]
    for e in range(2):
        chain = (chain[:, None] * steps[e]).sum(axis=0) * (1 + (B + 4) * U) * own[e + 1]
    total = float(chain.sum()) * (1 + (B + 4) * U)
    wanted = math.log(total) - 3 * math.log(B) + SLACK
    near(float(epoch_chain.log_moment(epochs, order)), wanted, 1e-10)
    least = order - 1
    near(
        float(epoch_chain.log_ceiling(epochs, order, 0.5)),
        wanted + least * (math.log(least) - 0.5) - order * math.log(order) + SLACK,
        1e-10,
    )
    with pytest.raises(InvalidParameter, match="so little noise"):
        epoch_chain.log_moment(Epochs(KERNEL * 600, B), order)


def test_the_other_direction_of_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Means of the Gram matrix over sigma^2, each end from the ends of its parts; 2^-40 covers sums of doubles."""
    monkeypatch.setattr(epoch_chain.star, "closed_form", lambda *given: given)
    sigma, grown, slack = 1.25, Fraction(1, 2**40), Fraction(Decimal(SLACK))

    def parts(part: np.ndarray) -> tuple[Fraction, Fraction, Fraction]:
        own = sum(Fraction(float(one.sum(axis=1).sum())) for one in (part[:3, :3], part[3:, 3:]))
        whole = Fraction(float(part.sum(axis=1).sum()))
        return Fraction(float(np.trace(part))) / 3, own / Fraction(9), whole / 9

    for scale in (1.0, 0.05):
        high, low = KERNEL[:6, :6] * scale, KERNEL[:6, :6] * (scale * 0.999)
        gram: Any = SimpleNamespace(high=high, near=low)
        mean, whole, epsilon = epoch_chain.addition(gram, B, sigma, 0.75)  # type: ignore[misc]
        (d0, o0, w0), (d1, o1, w1), square = parts(low), parts(high), Fraction(sigma) ** 2
        wanted = [
            w0 * (1 - grown) / square * (1 - slack),
            w1 * (1 + grown) / square * (1 + slack),
            ((d0 + w0) * (1 - grown) - o1 * (1 + grown)) / square * (1 - slack),
            ((d1 + w1) * (1 + grown) - o0 * (1 - grown)) / square * (1 + slack),
        ]
        assert 0 < wanted[2] and (scale == 1 or max(wanted) < 1)
        for end, true in zip((*whole, *mean), wanted, strict=True):
            assert abs(Fraction(end) / true - 1) < Fraction(1, 10**40)
        assert epsilon == Decimal("0.75")
    for nothing in (np.zeros((6, 6)), -high, high * 0.01):
        gram = SimpleNamespace(high=high, near=nothing)
        assert epoch_chain.addition(gram, B, sigma, 0.75) == (Decimal(0), Decimal(1))


def test_how_epochs_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The half of an epoch that is far from its neighbour: the later one of the next, the earlier one of the last."""
    assert Epochs(KERNEL, 4)._far_part(0, 1) == slice(2, None) and Epochs(KERNEL, 4)._far_part(1, 0) == slice(None, 2)
    monkeypatch.setattr(epoch_chain, "MOST_STEPS", N)
    assert Epochs(KERNEL, 4).number == 2


def blocks(variance: float, count: int = 4, number: int = 3) -> Blocks:
    made = Blocks(Fraction(variance), 1.0, count, number)
    assert float(made.variance) == pytest.approx(variance * (1 + SLACK))
    made.variance = Decimal(variance)
    return made


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("order", [2, 3])
def test_moments_by_every_tuple(order: int, count: int) -> None:
    """E L^m is the mean over m-tuples of e^{c pairs that are equal}, and is rounded up."""
    grid = np.indices((count,) * order).reshape(order, -1)
    pairs = sum((grid[i] == grid[j]).astype(float) for i in range(order) for j in range(i))
    wanted = float(np.mean(np.exp(0.7 * pairs))) * (1 + SLACK)
    near(float(blocks(0.7, count).moment(order)), wanted)
    constant = (order - 1) * (math.log(order - 1) - 0.5) - order * math.log(order)
    wanted = math.exp(3 * math.log(wanted) + constant + SLACK) * (1 + SLACK)
    near(float(blocks(0.7, count).removal(order, 0.5)), wanted)


def test_what_is_beyond_a_time() -> None:
    found = blocks(0.3)
    for eta, log_time in ((1, Decimal("2.5")), (3, Decimal(4)), (2, Decimal(6)), (5, Decimal(1))):
        bounds = []
        for q in (eta + 1, 2 * eta + 8, 4 * eta + 40):
            moment = q * 0.3 / 2 + q * q * 0.3 / (2 * 4)
            bounds.append(
                math.exp(q * (math.log(q) - 1) + moment + (eta - q) * float(log_time)) / (q - eta) * (1 + SLACK)
            )
        near(float(found._tail(eta, log_time)), min(bounds), 1e-11)


def test_the_transform_of_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = LossCells(np.array([0.0, 0.5, 3.0]), np.array([0.2, 0.5, 0.4]))
    monkeypatch.setattr(Blocks, "_cells", lambda _: cells)
    monkeypatch.setattr(allocation, "LEAST_EXPONENT", -5.0)
    rates = np.array([0.1, 1.0, 4.0])
    wanted = [
        sum(w * math.exp(max(-rate * p, -5)) for p, w in zip(*cells, strict=True)) * (1 + EXP) * (1 + 11 * U)
        for rate in rates
    ]
    near(blocks(0.3)._transform(rates), wanted)


def test_heights_and_what_they_make_of_an_inverse_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum of chords up to the best of some times, and what is beyond that time."""
    monkeypatch.setattr(allocation, "_TIMES", 23)
    monkeypatch.setattr(allocation, "_RATIO", 1.5)
    monkeypatch.setattr(allocation, "_FIRST", 0.01)
    asked = []
    monkeypatch.setattr(Blocks, "_transform", lambda _, rates: asked.append(rates) or 1.2 * np.exp(-rates))
    found = blocks(0.3)
    times, heights = found._heights
    near(times, 0.01 * 1.5 ** np.arange(23))
    near(asked[0], times / 4 * (1 - 2 * U))
    wanted = np.minimum(1.2 * np.exp(-asked[0]), 1) ** 4
    near([float(one) for one in heights], wanted)
    for eta in (1, 2, 4):
        sums = []
        for stop in (0, 10, 20):
            within = times[0] ** eta / eta
            for i in range(stop):
                within += (times[i + 1] ** eta - times[i] ** eta) / eta * (wanted[i] + wanted[i + 1]) / 2
            sums.append(within + float(found._tail(eta, Decimal(math.log(times[stop])))))
        value = min(sums) / math.factorial(eta - 1) * (1 + SLACK)
        near(float(found.inverse_moment(eta)), value, 1e-10)
        constant = eta * math.log(eta) - (eta + 1) * math.log(eta + 1) - eta * 0.5
        near(float(found.addition(eta, 0.5)), math.exp(3 * math.log(value) + constant + SLACK) * (1 + SLACK), 1e-10)


@pytest.mark.parametrize(("variance", "shift"), [(0.01, 1), (0.49, 2), (1.0, 3), (4.0, 5)])
def test_cells_of_a_lognormal_law(variance: float, shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mass and mean of each cell from both ends of the distribution function, what is beyond it with its own mass."""
    monkeypatch.setattr(allocation, "_WIDTH", Decimal("0.41"))
    monkeypatch.setattr(allocation, "_REACH", Decimal("1.7"))
    width = math.sqrt(variance)
    step = width / shift if shift > 1 else 0.41
    half = math.ceil(1.7 / step)
    z = step * np.arange(-half, half + 1)
    ends = np.exp(width * z - variance / 2)

    def law(at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.maximum(ndtr(at) - LOST, 0), ndtr(at) + LOST

    (low, high), (less, more) = law(z), law(z - width)
    weights = np.zeros(len(ends))
    for i in range(2 * half):
        mass = high[i + 1] - low[i]
        right = (less[i + 1] - more[i] - mass * ends[i]) / (ends[i + 1] - ends[i]) - LOST
        right = min(max(right, 0.0), mass)
        weights[i] += mass - right
        weights[i + 1] += right
    weights[-1] += 1 - low[-1]
    found = blocks(variance)._cells()
    near(found.places, [0.0, *(ends * (1 - 2 * U))], 1e-11)
    near(found.weights, [high[0], *weights], 1e-9)
    assert found.weights.sum() >= 1


def test_a_law_below_zero_is_what_the_other_side_leaves() -> None:
    known = [Enclosed(Decimal("0.5"), Decimal("0.6")), Enclosed(Decimal("0.7"), Decimal("1.1"))]
    assert allocation._placed(known, 1, Decimal(0)) == known[1]
    assert allocation._placed(known, 0, Decimal(0)) == known[0]
    assert allocation._placed(known, -1, Decimal(0)) == (Decimal(0), Decimal("0.3"))
    found = allocation._placed([], 5, Decimal("0.3"))
    near([float(end) for end in found], [ndtr(0.3) - LOST, ndtr(0.3) + LOST])


def test_the_largest_square_of_one_band() -> None:
    norms = Numbers(np.array([3, 9, 4], dtype=object), -2, 1)
    one: Any = SimpleNamespace(bandwidth=1, column_norms=norms)
    assert allocation.largest_square(one) == Fraction(10, 4)
    with pytest.raises(InvalidParameter, match="C has 2 bands"):
        allocation.largest_square(SimpleNamespace(bandwidth=2))  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="so little noise"):
        Blocks(Fraction(401), 1.0, 2, 2)
    assert float(Blocks(Fraction(400), 1.0, 2, 2).variance) == pytest.approx(400 * (1 + SLACK))
    assert float(Blocks(Fraction(2), 0.5, 2, 2).variance) == pytest.approx(8 * (1 + SLACK))
