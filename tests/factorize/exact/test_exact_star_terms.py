"""Terms of the star bound, of its other direction and of weights of bets, each beside its formula in coarse units.

What is lost to rounding is 2^-50 or 10^-40 of a bound, so that a sign or a term of it could be wrong and no value would
show it. Here units are near 1/500, and the formulas are those of docs/notes/star-1.md, evaluated another way.
"""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy.special import log_ndtr, ndtr, ndtri

from factorize.errors import CertificateError, InvalidParameter
from factorize.exact.arithmetic.enclosures import Enclosed
from factorize.exact.sampling import bets, shared_bets, star, thinned_bets
from factorize.exact.sampling.bets import Covariance
from factorize.exact.sampling.bins import Gram

U, SLACK, EXP = 1 / 512, 1 / 700, 1 / 300
NEARLY = 1e-11
KERNEL = np.array([[1.25, 0.5, 0.25], [0.5, 1.0, 0.125], [0.25, 0.125, 0.75]])
B = len(KERNEL)


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    units = {"UNIT": U, "_UNIT": U, "EXP_SLACK": EXP, "SLACK": Decimal(SLACK), "_LARGEST_SLACK": 1024.0}
    for module in (star, bets, shared_bets):
        for name, value in units.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)


def near(found: Any, wanted: Any, within: float = NEARLY) -> None:
    assert np.shape(found) == np.shape(wanted)
    assert np.asarray(found, dtype=float) == pytest.approx(np.asarray(wanted, dtype=float), rel=within, abs=0)


def enclosed(low: float, high: float) -> Enclosed:
    return Enclosed(Decimal(low), Decimal(high))


def factored(kernel: np.ndarray = KERNEL) -> Covariance:
    return Covariance(kernel, np.linalg.cholesky(kernel), float(kernel.diagonal().max()))


def rough(kernel: np.ndarray, order: int, epsilon: float) -> float:
    """log(c_m E*(m)) in doubles."""
    rows = (order - 1) * np.log(np.exp(order / 2 * kernel).mean(axis=1))
    moment = float(np.log(np.exp(rows - rows.max()).mean()) + rows.max())
    return moment - (order - 1) * (epsilon - math.log(order - 1)) - order * math.log(order)


class TestStar:
    def test_a_covariance_is_above_the_quotient_and_no_more_than_two_units(self) -> None:
        for sigma in (0.1, 0.3, 1.1, 1 / 3, 3.0):
            found = star.covariance(Gram(KERNEL, KERNEL, KERNEL.diagonal()), sigma)
            for value, above in zip(KERNEL.ravel(), found.ravel(), strict=True):
                true = Fraction(float(value)) / Fraction(sigma) ** 2
                assert true < Fraction(float(above)) < true * (1 + Fraction(1, 2**50))

    def test_which_covariances_are_none(self) -> None:
        for sigma in (0.0, -1.0, math.inf, math.nan):
            with pytest.raises(InvalidParameter, match="positive number"):
                star.covariance(Gram(KERNEL, KERNEL, KERNEL.diagonal()), sigma)
        unit = math.ulp(1e8)  # of which a quotient by 1 gains two: the square and the quotient are rounded
        one = np.array([[0.5, 0.5], [0.5, 1e8 - 3 * unit]])
        assert star.covariance(Gram(one, one, one.diagonal()), 1.0)[1, 1] == 1e8 - unit
        for entry in (1e8 - 2 * unit, 1e8, np.inf):
            one = np.array([[0.5, 0.5], [0.5, entry]])
            with pytest.raises(InvalidParameter, match="so small"):
                star.covariance(Gram(one, one, one.diagonal()), 1.0)

    @pytest.mark.parametrize("order", [2, 3, 7])
    def test_moments_of_rows(self, order: int) -> None:
        rows = np.log(np.exp(order / 2 * KERNEL).mean(axis=1) * (1 + EXP + (B + 8) * U)) + SLACK
        near([float(row) for row in star.log_row_means(KERNEL, order)], rows)
        moment = math.log(np.exp((order - 1) * rows).mean())
        near(float(star.log_moment(KERNEL, order)), moment)
        less = order - 1
        ceiling = moment + less * (math.log(less) - 0.75) - order * math.log(order) + SLACK
        near(float(star.log_ceiling(KERNEL, order, 0.75)), ceiling)
        assert star.log_ceiling(KERNEL, 1, 0.75) == 0

    def test_entries_far_below_the_largest_of_a_row(self) -> None:
        """e^-1000 is taken as e^-700."""
        kernel = np.array([[1000.0, 0.0], [0.0, 1.0]])
        first = 1000 + math.log((1 + math.exp(-700)) / 2 * (1 + EXP + 10 * U)) + SLACK
        near(float(star.log_row_means(kernel, 2)[0]), first)

    def test_exponents_are_rounded_up(self) -> None:
        """m / 2 times an entry is cut by a double where m is odd; so is the difference to the largest of the row."""
        kernel = np.array([[1 + 2.0**-52, 0.1], [0.1, 1 / 3]])
        found, unit = star.log_row_means(kernel, 3), 1 + EXP + 10 * U
        for row, one in zip(found, kernel, strict=True):
            tops = [Fraction(3, 2) * Fraction(float(entry)) for entry in one]
            least = Decimal(max(tops).numerator) / Decimal(max(tops).denominator)
            rest = math.log((1 + math.exp(float(min(tops) - max(tops)))) / 2 * unit) + SLACK
            assert Decimal(0) < row - least - Decimal(rest) < Decimal("1e-15")

    def test_the_best_order_is_that_of_all(self) -> None:
        """Within what the search leaves; where the bounds still fall at the largest order, near that."""
        for scale, epsilon in ((3.0, 1.0), (0.3, 0.5), (0.3, 1.0), (0.1, 0.5), (0.1, 0.7), (0.1, 1.0), (0.05, 0.9)):
            bounds = {m: rough(KERNEL * scale, m, epsilon) for m in range(2, 80)}
            assert star.best_order(KERNEL * scale, epsilon) == min(bounds, key=lambda m: bounds[m])
        assert 4000 < star.best_order(KERNEL * 1e-9, 3.0) <= star.MOST_ORDER

    def test_ends_of_the_other_direction(self) -> None:
        a, v, epsilon = enclosed(1.1, 1.3), enclosed(0.5, 0.8), 0.7
        for a, v, epsilon in (
            (enclosed(1.1, 1.3), enclosed(0.5, 0.8), 0.1),  # both ends of d above 0
            (enclosed(1.1, 1.3), enclosed(0.5, 0.8), 2.0),  # both below
            (enclosed(1.1, 1.3), enclosed(0.5, 0.8), 0.6),
        ):
            (a0, a1), (v0, v1) = map(float, a), map(float, v)
            r0, r1 = math.sqrt(v0) * (1 - SLACK), math.sqrt(v1) * (1 + SLACK)
            first, last = a0 / 2 - epsilon, a1 / 2 - epsilon
            d0, d1 = min(first / r0, first / r1), max(last / r0, last / r1)
            d0, d1 = d0 - SLACK * (1 + abs(d0)), d1 + SLACK * (1 + abs(d1))
            small = math.exp(epsilon - a1 / 2 + v0 / 2) * (1 - SLACK)
            large = math.exp(epsilon - a0 / 2 + v1 / 2) * (1 + SLACK)
            found = star.closed_form(a, v, Decimal(epsilon))
            near(float(found.low), max(ndtr(d0) - large * ndtr(d1 - r0) - SLACK, 0.0))
            near(float(found.high), ndtr(d1) - small * ndtr(d0 - r1))
        found = star.closed_form(enclosed(2.0, 2.001), enclosed(0.9, 0.901), Decimal("0.1"))
        assert found.low > 0

    def test_what_a_closed_form_far_out_is_above(self) -> None:
        """Where nothing is left of it, 10^-55 is."""
        found = star.closed_form(enclosed(0.01, 0.01), enclosed(0.01, 0.01), Decimal(30))
        assert found.low == 0 and Decimal("9e-56") < found.high < Decimal("1e-50")

    def test_means_and_their_ends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(star, "closed_form", lambda *given: given)
        sigma, grown, slack = 1.25, Fraction(1, 2**44), Fraction(Decimal(SLACK))
        gram = Gram(KERNEL, KERNEL * 0.999, KERNEL.diagonal())
        diagonal, whole, epsilon = star.addition(gram, sigma, 0.75)  # type: ignore[misc]
        assert epsilon == Decimal("0.75")
        for ends, means in (
            (diagonal, [Fraction(float(np.trace(part))) / B for part in (gram.near, gram.high)]),
            (whole, [Fraction(float(part.sum(axis=1).sum())) / B**2 for part in (gram.near, gram.high)]),
        ):
            for end, mean, sign in zip(ends, means, (-1, 1), strict=True):
                wanted = mean * (1 + sign * grown) / Fraction(sigma) ** 2 * (1 + sign * slack)
                assert abs(Fraction(end) / wanted - 1) < Fraction(1, 2**50)
        for nothing in (KERNEL * 0, -KERNEL):
            assert star.addition(Gram(KERNEL, nothing, KERNEL.diagonal()), sigma, 0.75) == (Decimal(0), Decimal(1))

    def test_ends_of_a_gaussian_mechanism(self) -> None:
        for e, norm in ((enclosed(0.5, 0.6), enclosed(1.5, 1.6)), (enclosed(0.0, 0.1), enclosed(0.2, 0.9))):
            (e0, e1), (n0, n1) = map(float, e), map(float, norm)
            low = ndtr(n0 / 2 - e1 / n0 - SLACK) - math.exp(e1) * (1 + SLACK) * ndtr(-n0 / 2 - e0 / n1 + SLACK)
            high = ndtr(n1 / 2 - e0 / n1 + SLACK) - math.exp(e0) * (1 - SLACK) * ndtr(-n1 / 2 - e1 / n0 - SLACK)
            found = star.gaussian_delta(e, norm)
            near(float(found.low), max(low, 0.0))
            near(float(found.high), high)

    @pytest.mark.parametrize("bins", [3, 50])
    def test_bins_one_at_a_time(self, bins: int) -> None:
        """Blocks of the ordered diagonal, each by its least entry; those that may be 0 count for nothing."""
        least = np.random.default_rng(4).permutation(np.linspace(0.0, 9.0, bins))
        wanted, shift = 0.0, 0.25 + math.log(bins)
        for block in np.array_split(np.sort(least)[::-1], min(24, bins)):
            if block[-1] > 0:
                norm = math.sqrt(block[-1]) / 1.5
                far = enclosed(shift - SLACK, shift + SLACK)
                ends = enclosed(norm * (1 - SLACK), norm * (1 + SLACK))
                wanted += len(block) * float(star.gaussian_delta(far, ends).low)
        found = star.least_delta(Gram(np.eye(bins), np.eye(bins), least), 1.5, 0.25)
        near(float(found), wanted / bins * (1 - SLACK), 1e-9)
        assert found > 0


class TestCovariance:
    def test_what_is_added_to_the_quotient(self) -> None:
        """K = G / s^2 (1 + 8 u) - t^2 + 64 u b max (1 1^T + I), by its Cholesky factor."""
        scale, shared = 1.25, 0.05
        least = KERNEL / scale**2 * (1 + 8 * U)
        tau = 64 * U * B * least.max()
        found = bets.covariance(KERNEL, scale, shared)
        near(found.kernel, least - shared + tau * (1 + np.eye(B)))
        near(found.factor, np.linalg.cholesky(least - shared + tau * (1 + np.eye(B))))
        assert found.largest == found.kernel.diagonal().max() and (found.kernel == found.kernel.T).all()

    def test_more_is_added_where_there_is_no_factor(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bets, "UNIT", 2.0**-30)
        apart = np.array([[1.0, 1.0 + 2.0**-18], [1.0 + 2.0**-18, 1.0]])
        least = apart * (1 + 8 * 2.0**-30)
        first, wanted = 64 * 2.0**-30 * 2 * least.max(), None
        for k in range(16):
            whole = least + 4.0**k * first * (1 + np.eye(2))
            if np.linalg.eigvalsh(whole)[0] > 0:
                wanted = whole
                break
        assert wanted is not None and k > 0
        near(bets.covariance(apart, 1.0).kernel, wanted)
        monkeypatch.setattr(bets, "_TRIES", k)
        with pytest.raises(InvalidParameter, match="Cholesky"):
            bets.covariance(apart, 1.0)
        monkeypatch.setattr(bets, "_TRIES", k + 1)
        near(bets.covariance(apart, 1.0).kernel, wanted)

    def test_a_product_that_lost_too_much_is_tried_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A factor whose product lacks more than half of what was added is not taken: the next is of four times that."""
        real, tried = np.linalg.cholesky, []
        least = KERNEL * (1 + 8 * U)
        tau = 64 * U * B * least.max()

        def lacking(matrix: np.ndarray) -> np.ndarray:
            """Of 2 tau on the diagonal, 1.51 are missing at the first time; of 8, 5.9 at the second."""
            tried.append(matrix)
            return np.asarray(real(matrix - (1.51, 5.9)[len(tried) - 1] * tau * np.diag([0.0, 0.0, 1.0])))

        monkeypatch.setattr(bets.np.linalg, "cholesky", lacking)
        found = bets.covariance(KERNEL, 1.0)
        near(tried, [least + tau * (1 + np.eye(B)), least + 4 * tau * (1 + np.eye(B))])
        near(found.kernel, tried[1] - 5.9 * tau * np.diag([0.0, 0.0, 1.0]))

    def test_what_is_too_large(self, monkeypatch: pytest.MonkeyPatch) -> None:
        below = np.array([[0.5, 0.25], [0.25, 0.99e8 / (1 + 8 * U)]])
        assert bets.covariance(below, 1.0).largest > 0.98e8
        monkeypatch.setattr(bets, "UNIT", 1 / 8)  # so that twice the quotient is taken
        assert bets.covariance(np.array([[0.5, 0.25], [0.25, math.nextafter(5e7, 0)]]), 1.0).largest > 1e8
        for entry in (5e7, np.inf, np.nan):
            above = np.array([[0.5, 0.25], [0.25, entry]])
            with pytest.raises(InvalidParameter, match="so small"):
                bets.covariance(above, 1.0)


class TestSlack:
    @pytest.mark.parametrize("order", [2, 5, 3.5])
    def test_what_doubles_lose_of_a_weight(self, order: float) -> None:
        most = 1.25
        drawn = math.sqrt(most) * (math.sqrt(B) + 15) + 2 * order * most + 1
        lost = 8 * U * (B + order + 16) * ((order + 1) * drawn + order**2 * most)
        near(bets._lost(factored(), order), lost)
        near(bets.slack(factored(), order), 2.0 ** math.ceil(math.log2(lost)))

    def test_it_is_the_least_power_of_two_between_two(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for lost, wanted in ((0.0, 2.0**-30), (2.0**-30, 2.0**-30), (2.0**-29, 2.0**-29), (0.1, 0.125), (0.125, 0.125)):
            monkeypatch.setattr(bets, "_lost", lambda *_, lost=lost: lost)
            assert bets.slack(factored(), 2) == wanted
        monkeypatch.setattr(bets, "_LARGEST_SLACK", 0.125)
        assert bets.slack(factored(), 2) == 0.125
        monkeypatch.setattr(bets, "_lost", lambda *_: 0.126)
        with pytest.raises(InvalidParameter, match="doubles lose 0.25"):
            bets.slack(factored(), 2)


def words_of(stream: bets.Stream, picks: int, bins: int) -> tuple[np.ndarray, np.ndarray]:
    words = np.random.Philox(key=np.array(stream.key, dtype=np.uint64), counter=[0, 0, stream.chunk, 0]).random_raw(
        4096 * (picks + bins)
    )
    return words[: 4096 * picks].reshape(4096, picks), words[4096 * picks :].reshape(4096, bins)


def samples(covariance: Covariance, order: int, stream: bets.Stream) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """log L, and A of every pick of each sample, one sample at a time as the page says."""
    picked, normal_words = words_of(stream, order, B)
    drawn = bets.normals(normal_words.ravel()).reshape(4096, B)
    rows = np.array([float(row) for row in star.log_row_means(covariance.kernel, order)])
    first = np.exp((order - 1) * rows)
    centres = np.cumsum(first / first.sum())
    others = np.exp(order / 2 * covariance.kernel)
    others = np.cumsum(others / others.sum(axis=1)[:, None], axis=1)
    ratios, exponents, picks = np.empty(4096), np.empty((4096, order)), np.empty((4096, order), dtype=int)
    for i in range(4096):
        u = [int(word >> np.uint64(11)) * 2.0**-53 for word in picked[i]]
        picks[i, 0] = min(int((centres <= u[0]).sum()), B - 1)
        for k in range(1, order):
            picks[i, k] = min(int((others[picks[i, 0]] <= u[k]).sum()), B - 1)
        x = covariance.factor @ (drawn[i] + covariance.factor[picks[i]].sum(axis=0))
        ratios[i] = math.log(np.exp(x - covariance.kernel.diagonal() / 2).mean())
        for k in range(order):
            others_of = [picks[i, h] for h in range(order) if h != k]
            exponents[i, k] = order / 2 * covariance.kernel[picks[i, k], others_of].sum()
    return ratios, exponents, picks


def chances(exponents: np.ndarray) -> np.ndarray:
    return np.asarray(exponents.mean(axis=1) - np.log(np.exp(exponents).mean(axis=1)))


STREAM = bets.Stream((3, 5), 2)
SMALL = KERNEL / 4


class TestWeights:
    @pytest.mark.parametrize("order", [2, 3])
    def test_of_what_is_taken_out(self, order: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bets, "slack", lambda *_: 0.01)
        covariance, epsilon, lost = factored(SMALL), 0.25, 0.01
        found = bets.removal(covariance, epsilon, order)
        moment = float(star.log_moment(SMALL, order))
        less = order - 1
        ceiling = moment + less * (math.log(less) - epsilon + lost) - order * math.log(order) + SLACK
        extra = math.exp(ceiling) * order * B * (B + 4 + order * covariance.largest) * 4 * U
        near(float(found.bound), math.exp(ceiling + 2 * lost) + extra * (1 + SLACK))
        ratios, exponents, _ = samples(covariance, order, STREAM)
        plain = np.maximum(np.exp(ratios) - math.exp(epsilon - lost), 0)
        wanted = plain * np.exp(-order * ratios + moment + chances(exponents) + 2 * lost) + extra
        near(found.draw(STREAM), wanted, 1e-9)
        assert found.chunk == 4096 and (plain > 0).any() and (plain == 0).any()

    @pytest.mark.parametrize("eta", [1.0, 2.5])
    def test_of_what_is_put_in(self, eta: float, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = []
        monkeypatch.setattr(bets, "slack", lambda _, order: asked.append(order) or 0.01)
        covariance, epsilon, lost = factored(SMALL), 0.25, 0.01
        found = bets.addition(covariance, epsilon, eta)
        assert asked == [2 + eta]
        diagonal, whole = np.trace(SMALL) / B, SMALL.mean() * (1 + 2.0**-44)
        least = eta * math.log(eta) - (1 + eta) * math.log(1 + eta) - eta * epsilon + eta * lost
        near(float(found.bound), math.exp(least + eta * diagonal / 2 + eta**2 * whole / 2 + 2 * lost + SLACK))
        drawn = bets.normals(words_of(STREAM, 0, B)[1].ravel()).reshape(4096, B)
        x = (drawn - eta / B * covariance.factor.sum(axis=0)) @ covariance.factor.T
        ratios = np.log(np.exp(x - SMALL.diagonal() / 2).mean(axis=1))
        below = np.minimum(epsilon - lost + ratios, 0)
        plain = 1 - np.exp(below)
        near(found.draw(STREAM), plain * np.exp(eta * x.mean(axis=1) + eta**2 * whole / 2 + 2 * lost), 1e-9)

    def test_means_of_a_kernel(self) -> None:
        diagonal, whole = bets.means_of(-KERNEL)
        assert diagonal == Fraction(-3) / 3
        wanted = Fraction(float(-KERNEL.sum())) / 9 + Fraction(float(KERNEL.mean())) / 2**44
        assert abs(whole / wanted - 1) < Fraction(1, 2**90)

    def test_tables_that_end_below_one(self) -> None:
        """A number above the last entry of a table is its last pick; at an entry the next begins."""
        tables = np.array([0.25, 0.5, 0.9]), np.array([[0.25, 0.5, 0.9], [0.1, 0.2, 0.3], [0.5, 0.5, 1.0]])
        drawn = np.array([[0.25, 0.5, 0.95], [0.95, 0.5, 0.25], [0.0, 0.25, 0.24], [0.6, 0.49, 1.0 - 2.0**-53]])
        picks = [[1, 2, 2], [2, 2, 0], [0, 1, 0], [2, 0, 2]]
        for rows in (range(4), (0, 1), (3, 0, 1, 0), (2, 2), (1, 0, 2)):
            assert bets._picks(drawn[list(rows)], *tables).tolist() == [picks[row] for row in rows]

    def test_tables_of_exponents_beyond_doubles(self) -> None:
        """Only the differences within a row are looked at, and between the rows."""
        kernel = np.array([[3000.0, 0.0], [0.0, 1.0]])
        centres, others = bets.tables_of(kernel, 2)
        near(centres, [1.0, 1.0])
        near(others, [[1.0, 1.0], [1 / (1 + math.e), 1.0]])
        centres, others = bets.tables_of(KERNEL, 3)
        moments = np.exp(1.5 * KERNEL).mean(axis=1) ** 2
        near(centres, np.cumsum(moments) / moments.sum())
        near(others, np.cumsum(np.exp(1.5 * KERNEL), axis=1) / np.exp(1.5 * KERNEL).sum(axis=1)[:, None])

    @pytest.mark.parametrize("most", [24, 3, 2])
    def test_exponents_of_picks(self, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bets, "_GATHERED", most)
        picks = np.array([[0, 1, 1], [2, 2, 2], [1, 0, 1]])
        wanted = [
            [1.5 * sum(KERNEL[row[k], row[h]] for h in range(3) if h != k) for k in range(3)] for row in picks.tolist()
        ]
        near(bets._exponents(KERNEL, picks), wanted)

    def test_of_an_order_that_is_looked_up_no_more(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = []
        monkeypatch.setattr(bets.np, "bincount", lambda *given, **more: asked.append(1) or np.zeros(6))
        bets._exponents(np.eye(2), np.zeros((3, bets._GATHERED), dtype=int))
        assert not asked
        bets._exponents(np.eye(2), np.zeros((3, bets._GATHERED + 1), dtype=int))
        assert asked


def drawing(*chunks: Any) -> bets.Weights:
    return bets.Weights(Decimal("0.5"), lambda stream: np.array(chunks[stream.chunk]), len(chunks[0]))


class TestBet:
    def test_wealth_is_a_sum_of_logarithms(self) -> None:
        outcome = bets.bet(drawing([0.0, 0.5], [0.25, 0.125]), 0.25, 2.0, (1, 2), 2)
        wanted = sum(math.log(1 + 2 * (0.25 - w)) for w in (0.0, 0.5, 0.25, 0.125))
        near(outcome.log_wealth, wanted)
        assert (outcome.accepted, outcome.samples, outcome.mean) == (False, 4, 0.21875)
        assert bets.bet(drawing([0.0]), 0.25, 2.0, (1, 2), 0) == (False, 0.0, 0, 0.0)

    def test_it_ends_where_it_is_decided(self, monkeypatch: pytest.MonkeyPatch) -> None:
        won, lost = math.log1p(2 * 0.25), math.log1p(-2 * 0.25)
        for needed, hopeless, weight, chunks, accepted in (
            (won, -40.0, 0.0, 1, True),
            (math.nextafter(won, 1), -40.0, 0.0, 2, True),
            (9.0, math.nextafter(lost, 0), 0.5, 1, False),
            (9.0, lost, 0.5, 2, False),
        ):
            monkeypatch.setattr(bets, "NEEDED", needed)
            monkeypatch.setattr(bets, "HOPELESS", hopeless)
            outcome = bets.bet(drawing([weight], [weight], [weight]), 0.25, 2.0, (1, 2), 3 if accepted else 2)
            assert (outcome.accepted, outcome.samples) == (accepted, chunks)

    def test_weights_beyond_their_bound_end_it(self) -> None:
        """A part in 10^9 above the bound is what doubles lose; nothing is below 0."""
        for fine in (0.0, 0.5, 0.5 * (1 + 0.9e-9), float(Decimal("0.5") * (1 + Decimal("1e-9")))):
            assert bets.bet(drawing([fine]), 0.25, 1.0, (1, 2), 1)[2:] == (1, fine)
        for wrong in (0.5 * (1 + 1.1e-9), -1e-300, math.nan, math.inf):
            with pytest.raises(CertificateError, match="proven bound"):
                bets.bet(drawing([0.25, wrong]), 0.25, 1.0, (1, 2), 1)


def log_call(y: np.ndarray, near_by: float, spread: float) -> np.ndarray:
    """log(e^y Phi(d) - e^near Phi(d - t)), for a d that is not far below 0."""
    d = (y - near_by) / spread + spread / 2
    return np.asarray(np.log(np.exp(y + log_ndtr(d)) - np.exp(near_by + log_ndtr(d - spread))))


class TestShared:
    @pytest.mark.parametrize(
        ("most", "left", "width"),
        [
            (-0.25, -2, 3),
            (1.4, 0, 2),
            (1.7, 1, 1.5),
            (-1.4, -2, 1.5),
            (-1.5, -2, 1.5),
            (0.5, -0.5, 1.5),
            (0, -2, 3),
            (-1, -2, 3),
        ],
    )
    def test_a_tangent_at_the_left_of_a_bracket(
        self, most: float, left: float, width: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of -(y - most)^2 / 2 with slopes known within 1/2, between -t (3/2 + t / 2) and 1 at first, t = 1.

        The bracket is halved until the slope in its middle may be 0; where it still rises at 1, it ends at 2.
        """

        def tangent(y: Decimal, near_by: Decimal, spread: Decimal, order: int) -> shared_bets.Tangent:
            assert (near_by, spread, order) == (Decimal(3), Decimal(1), 5)
            value, slope = -((float(y) - 3 - most) ** 2) / 2, most + 3 - float(y)
            return shared_bets.Tangent(enclosed(value - 0.25, value + 0.125), enclosed(slope - 0.5, slope + 0.5))

        monkeypatch.setattr(shared_bets, "DEEPEST", 1.5)
        monkeypatch.setattr(shared_bets, "_tangent", tangent)
        wanted = -((left - most) ** 2) / 2 + 0.125 + (most - left + 0.5) * width + SLACK
        near(float(shared_bets.log_most(Decimal(3), 1.0, 5)), wanted)

    def test_a_largest_call_below_the_bracket_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        flat = enclosed(0.0, 0.0)
        monkeypatch.setattr(shared_bets, "_tangent", lambda *_: shared_bets.Tangent(flat, enclosed(-1e-9, 1.0)))
        with pytest.raises(InvalidParameter, match="order 5 is too large"):
            shared_bets.log_most(Decimal(3), 1.0, 5)

    def test_a_bracket_is_halved_to_a_millionth(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """From 3 by 22 halves, with one look at each end before and one at the left end after."""
        asked = []

        def tangent(y: Decimal, *_: Any) -> shared_bets.Tangent:
            asked.append(y)
            return shared_bets.Tangent(Enclosed(y, y), Enclosed(Decimal(1) / 3 - y, Decimal(1) / 3 - y))

        monkeypatch.setattr(shared_bets, "DEEPEST", 1.5)
        monkeypatch.setattr(shared_bets, "_tangent", tangent)
        near(float(shared_bets.log_most(Decimal(0), 1.0, 5)), 1 / 3 + SLACK, 1e-5)
        assert len(asked) == 2 + 22 + 1

    def test_ends_of_a_tangent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for y, level, t, order in ((1.2, 1.0, 0.5, 3), (0.3, 1.0, 1.5, 2), (4.0, 1.0, 0.75, 4)):
            d = (y - level) / t + t / 2
            f0, f1, s0, s1 = (ndtr(at) for at in (d - SLACK, d + SLACK, d - t - SLACK, d - t + SLACK))
            grown = math.exp(level - y)
            c0, c1 = f0 - grown * (1 + SLACK) * s1, f1 - grown * (1 - SLACK) * s0
            found = shared_bets._tangent(Decimal(y), Decimal(level), Decimal(t), order)
            wanted = [y + math.log(c0) - order * y - SLACK, y + math.log(c1) - order * y + SLACK]
            wanted += [f0 / c1 - order - SLACK, f1 / c0 - order + SLACK]
            near([float(end) for end in (*found.value, *found.slope)], wanted)
        with pytest.raises(InvalidParameter, match="too small for decimals"):
            shared_bets._tangent(Decimal(-40), Decimal(1), Decimal("0.5"), 2)
        monkeypatch.setattr(shared_bets, "_around", lambda _: enclosed(0.0, 0.0))
        with pytest.raises(InvalidParameter, match="too small for decimals"):
            shared_bets._tangent(Decimal(1), Decimal(1), Decimal(1), 2)

    def test_limits(self) -> None:
        for spread, level in ((2.0**-5, 0.0), (30.0, 0.0), (1.0, 1000.0), (1.0, -1000.0)):
            shared_bets._check_limits(spread, level)
        for spread, level in ((0.03124, 0.0), (30.001, 0.0), (1.0, 1000.1), (1.0, -1000.1), (math.nan, 0.0)):
            with pytest.raises(InvalidParameter, match="beyond the limits"):
                shared_bets._check_limits(spread, level)
        for epsilon, shared in ((2000.0, 0.04), (0.5, 0.0009)):
            for weights in (shared_bets.removal_of, shared_bets.shared_addition):
                with pytest.raises(InvalidParameter, match="beyond the limits"):
                    weights(SMALL, 1.0, epsilon, 2, shared)  # type: ignore[operator]

    @pytest.mark.parametrize("order", [2, 3])
    def test_constants_of_what_is_taken_out(self, order: int, monkeypatch: pytest.MonkeyPatch) -> None:
        asked, mosts = [], []
        monkeypatch.setattr(shared_bets, "log_most", lambda *given: mosts.append(given) or Decimal("-0.3"))
        monkeypatch.setattr(shared_bets, "slack", lambda _, m: asked.append(m) or 0.005)
        shared, epsilon, lost = 0.04, 0.25, 0.01  # twice the slack
        found = shared_bets.removal_of(SMALL, 1.0, epsilon, order, shared)
        assert asked == [order] and mosts == [(pytest.approx(Decimal(epsilon) - Decimal(lost)), shared, order)]
        rest = bets.covariance(SMALL, 1.0, shared)
        near(found.rest.kernel, rest.kernel)
        moment = float(star.log_moment(rest.kernel, order))
        plain = moment - 0.3
        extra = math.exp(plain) * order * B * (B + 4 + order * rest.largest) * 4 * U
        near(float(found.bound), math.exp(plain + 2 * lost) + extra * (1 + SLACK))
        near([found.constant, found.added, found.near, found.spread], [moment + 2 * lost, extra, epsilon - lost, 0.2])
        ratios, exponents, _ = samples(rest, order, STREAM)
        y = np.maximum(ratios, 0.24 - 0.2 * (30 + 0.2 / 2))
        wanted = np.exp(log_call(y, 0.24, 0.2) - order * y + chances(exponents) + moment + 2 * lost) + extra
        near(shared_bets.shared_removal(SMALL, 1.0, epsilon, order, shared).draw(STREAM), wanted, 1e-7)
        low = 0.24 - 0.2 * (30 + 0.2 / 2)
        near(found.weights(np.array([low - 1.0]), 0.5, order), found.weights(np.array([low]), 0.5, order))
        far = float(found.weights(np.array([1.0]), 0.5, order)[0]) - extra
        near(far, math.exp(float(log_call(np.array([1.0]), 0.24, 0.2)[0]) - order + 0.5 + moment + 2 * lost))

    def test_weights_far_below_are_those_at_the_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """y is raised to near - t (deepest + t / 2), at which the weight is larger."""
        monkeypatch.setattr(shared_bets, "DEEPEST", 1.5)
        one = shared_bets.SharedRemoval(factored(), Decimal(1), 0.125, 0.0, 0.5, 0.4)
        low = 0.5 - 0.4 * (1.5 + 0.2)
        wanted = [math.exp(float(log_call(np.array([y]), 0.5, 0.4)[0]) - 2 * y + 0.125) for y in (low, low, 0.1)]
        near(one.weights(np.array([-3.0, low, 0.1]), 0.0, 2), wanted)

    @pytest.mark.parametrize("eta", [1.0, 2.5])
    def test_constants_of_what_is_put_in(self, eta: float, monkeypatch: pytest.MonkeyPatch) -> None:
        asked, mosts = [], []
        monkeypatch.setattr(shared_bets, "log_most", lambda *given: mosts.append(given) or Decimal("-0.3"))
        monkeypatch.setattr(shared_bets, "slack", lambda _, order: asked.append(order) or 0.005)
        monkeypatch.setattr(shared_bets, "DEEPEST", 2.0)
        shared, epsilon, lost, t = 0.04, 0.25, 0.01, 0.2
        found = shared_bets.shared_addition(SMALL, 1.0, epsilon, eta, shared)
        assert asked == [2 + eta] and mosts == [(0, shared, 1 + Decimal(eta))]
        rest = bets.covariance(SMALL, 1.0, shared)
        diagonal, whole = (float(part) for part in bets.means_of(rest.kernel))
        grown = eta * diagonal / 2 + eta**2 * whole / 2 - eta * (epsilon - lost)
        near(float(found.bound), math.exp(-0.3 + grown + 2 * lost + SLACK))
        drawn = bets.normals(words_of(STREAM, 0, B)[1].ravel()).reshape(4096, B)
        x = (drawn - eta / B * rest.factor.sum(axis=0)) @ rest.factor.T
        ratios = np.log(np.exp(x - rest.kernel.diagonal() / 2).mean(axis=1))
        level = epsilon - lost
        u = np.minimum(level + ratios, t * (2 + t / 2))
        assert (u < level + ratios).any() and (u == level + ratios).any()
        put = u + log_call(-u, 0.0, t)
        exponent = put + eta * (u - level - ratios) + eta * x.mean(axis=1) + eta**2 * whole / 2 + 2 * lost
        near(found.draw(STREAM), np.exp(exponent), 1e-8)

    def test_mills_ratio_near_and_far(self, monkeypatch: pytest.MonkeyPatch) -> None:
        z = np.array([0.0, 0.5, 3.0, 20.0, 30.9, 31.0, 31.1, 100.0, 1e4])
        wanted = np.exp(log_ndtr(-z) + z * z / 2) * math.sqrt(2 * math.pi)
        near(shared_bets._mills(z[:6]), wanted[:6], 1e-12)
        import mpmath

        with mpmath.workdps(30):
            far = [float(mpmath.erfc(x / mpmath.sqrt(2)) / 2 / mpmath.npdf(x)) for x in z.tolist()]
        near(shared_bets._mills(z), far, 2e-13)
        monkeypatch.setattr(shared_bets, "_SERIES", 8.0)
        y = 10.0
        terms = [1.0]
        for odd in (1, 3, 5, 7, 9, 11, 13):
            terms.append(-terms[-1] * odd / y**2)
        near(shared_bets._mills(np.array([y])), [math.fsum(terms) / y], 1e-15)

    def test_calls_on_both_sides(self) -> None:
        import mpmath

        y = np.array([-6.0, -1.0, 0.375, 0.4, 2.0, 12.0])
        with mpmath.workdps(40):
            t, level = mpmath.mpf("0.5"), mpmath.mpf("0.5")
            wanted = []
            for one in y.tolist():
                d = (one - level) / t + t / 2
                wanted.append(
                    float(mpmath.log(mpmath.exp(one) * mpmath.ncdf(d) - mpmath.exp(level) * mpmath.ncdf(d - t)))
                )
        near(shared_bets.log_call(y, 0.5, 0.5), wanted, 1e-10)


class TestNormals:
    def test_words_far_out(self) -> None:
        """Half a unit of 2^-64 above what is left of a word without its sign."""
        words = np.array([1, 0, 3, 2**64 - 1, 2**63 + 1, 2**63], dtype=np.uint64)
        tails = [2.0**-65, 2.0**-65, 1.5 * 2.0**-64, 0.5, 0.25, 0.25]
        signs = [1, -1, 1, 1, 1, -1]
        found = bets.normals(words)
        assert found == pytest.approx([-s * ndtri(q) for s, q in zip(signs, tails, strict=True)], rel=1e-13, abs=1e-15)


class TestThinned:
    def test_a_coin_that_is_its_chance_drops(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A coin is a multiple of 2^-53: as many of them are below a chance as it has of them."""
        monkeypatch.setattr(thinned_bets, "CANDIDATES", 3)
        monkeypatch.setattr(shared_bets, "slack", lambda *_: 0.005)
        monkeypatch.setattr(shared_bets, "log_most", lambda *_: Decimal("-0.3"))
        found = shared_bets.removal_of(KERNEL, 1.0, 0.25, 2, 0.04)
        weights = thinned_bets.thinned_removal(KERNEL, 1.0, 0.25, 2, 0.04)
        half = math.log(0.5)
        assert np.exp(np.array([half])) == 0.5
        monkeypatch.setattr(
            thinned_bets, "star_picks", lambda *_: (np.zeros((3, 2), dtype=int), np.array([half, half, 0.0]))
        )
        for coin, kept in ((0.5, 1), (math.nextafter(0.5, 0), 3)):
            monkeypatch.setattr(thinned_bets, "uniforms", lambda words, coin=coin: np.full(len(words), coin))
            assert (weights.draw(STREAM) > found.added).sum() == kept

    def test_kept_candidates_have_the_weights_of_all_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A candidate is kept if its coin is below exp(mean A) / mean exp A; the rest weigh V alone."""
        monkeypatch.setattr(thinned_bets, "CANDIDATES", 40)
        monkeypatch.setattr(thinned_bets, "CHUNK", 7)
        monkeypatch.setattr(shared_bets, "slack", lambda *_: 0.005)
        monkeypatch.setattr(shared_bets, "log_most", lambda *_: Decimal("-0.3"))
        order, bins = 3, B
        found = shared_bets.removal_of(KERNEL, 1.0, 0.25, order, 0.04)
        weights = thinned_bets.thinned_removal(KERNEL, 1.0, 0.25, order, 0.04)
        assert (weights.bound, weights.chunk) == (found.bound, 40)
        tables = bets.tables_of(found.rest.kernel, order)
        drawn = bets.uniforms(STREAM.words(40 * (order + 1)))
        words, taken = STREAM.words(40 * bins, lane=1), 0
        wanted = np.full(40, found.added)
        for i in range(40):
            picks, ratio = bets.star_picks(found.rest, tables, drawn[order * i : order * i + order][None])
            if drawn[40 * order + i] < math.exp(float(ratio[0])):
                own = words[bins * taken : bins * taken + bins]
                wanted[i] = found.weights(bets.star_ratios(found.rest, picks, own), 0.0, order)[0]
                taken += 1
        assert 7 < taken < 40
        near(weights.draw(STREAM), wanted)
