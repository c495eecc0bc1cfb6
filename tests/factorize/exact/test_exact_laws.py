"""What a calibration rests on by its law of sampling, and how its parts are compared, at the limits of each."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from factorize.errors import TooLarge
from factorize.exact.arithmetic.enclosures import Enclosed
from factorize.exact.sampling import allocation, bets, calibrations, epoch_chain, law_bounds, star
from factorize.exact.sampling.bins import gram
from factorize.exact.sampling.calibrations import CalibrationReport
from factorize.exact.sampling.law_bounds import AllocationBounds, BinBounds, Bounds, RedrawnBounds
from factorize.exact.sampling.star_claim import Claim, ClaimRefused
from factorize.exact.strategy import Strategy

N, B = 6, 3
SCALE, EPSILON, DELTA = 2.0, 1.5, 0.0625
BANDS = Strategy("banded_toeplitz", {"coefficients": np.array([1.0, 0.5])}, N)
DIAGONAL = Strategy("banded", {"bands": np.array([[1.0, 2.0, 1.0, 1.5, 1.0, 1.0]])}, N)


def claim(bins: int = B, **document: Any) -> Claim:
    whole = {"sampling": "balls_in_bins", "protocol": "star-1"} | document
    return Claim(whole, EPSILON, DELTA, SCALE, SCALE, N, bins, 3.0)


def at(number: float) -> str:
    return float(number).hex()


class TestBins:
    def test_bounds(self) -> None:
        found, products = BinBounds(claim(), BANDS), gram(BANDS, B)
        assert found.norm() == Fraction(float(products.high.diagonal().max()))
        assert products.high.diagonal().argmax() != products.high.diagonal().argmin()
        closed = found.shown("qp", {"rule": "closed_form"})
        assert closed == (star.addition(products, SCALE, EPSILON).high, "the closed form of theorem 7")
        kernel = star.covariance(products, SCALE)
        for order in (2, 5, star.MOST_ORDER):
            delta, rule = found.shown("pq", {"rule": "star_bound", "m": order})
            assert abs(delta.ln() - star.log_ceiling(kernel, order, EPSILON)) < Decimal("1e-20")
            assert rule == f"the star bound with m={order}"
        for order in (1, star.MOST_ORDER + 1):
            with pytest.raises(ClaimRefused, match="from 2 to 4096"):
                found.shown("pq", {"rule": "star_bound", "m": order})
            for rule in ("bet", "shared_bet", "thinned_bet"):
                with pytest.raises(ClaimRefused, match="from 2 to 4096"):
                    found.weights("pq", {"rule": rule, "m": order, "shared": at(0.1)})
        assert found.least() == star.least_delta(products, SCALE, EPSILON)
        best = star.star(kernel, EPSILON)
        assert found.told() == {"star_bound": {"m": best.order, "delta": float(min(best.logarithm.exp(), Decimal(1)))}}

    def test_a_star_bound_above_one_is_told_as_one(self) -> None:
        small = claim()._replace(scale=0.125)
        assert BinBounds(small, BANDS).told()["star_bound"]["delta"] == 1.0

    def test_weights_by_rule(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for place, name in (
            (bets, "addition"),
            (bets, "removal"),
            (law_bounds, "shared_addition"),
            (law_bounds, "shared_removal"),
            (law_bounds, "thinned_removal"),
        ):
            monkeypatch.setattr(place, name, lambda *given, name=name: (name, *given[1:]))
        monkeypatch.setattr(bets, "covariance", lambda *given: given)
        found = BinBounds(claim(), BANDS)
        for direction, rule, wanted in (
            ("qp", "bet", ("addition", EPSILON, 64.0)),
            ("qp", "shared_bet", ("shared_addition", SCALE, EPSILON, 64.0, 0.25)),
            ("pq", "bet", ("removal", EPSILON, 2)),
            ("pq", "shared_bet", ("shared_removal", SCALE, EPSILON, 2, 0.25)),
            ("pq", "thinned_bet", ("thinned_removal", SCALE, EPSILON, 2, 0.25)),
        ):
            part = {"rule": rule, "m": 2, "eta": at(64.0), "shared": at(0.25)}
            assert found.weights(direction, part) == wanted
        assert found.weights("qp", {"rule": "bet", "eta": at(star.MOST_ORDER)}) == ("addition", EPSILON, 4096.0)
        with pytest.raises(ClaimRefused, match=r"is above 4096"):
            found.weights("qp", {"rule": "bet", "eta": at(4096.5)})


class TestRedrawn:
    def test_bounds(self) -> None:
        found, products = RedrawnBounds(claim(sampling="redrawn_bins", protocol="redrawn-1"), BANDS), gram(BANDS, N)
        epochs = epoch_chain.Epochs(star.covariance(products, SCALE), B)
        assert found.norm() == epoch_chain.Epochs(products.high, B).norm()
        closed = epoch_chain.addition(products, B, SCALE, EPSILON).high
        assert found.shown("qp", {"rule": "closed_form"}) == (closed, "the closed form of theorem 7")
        for order in (2, 4):
            delta, rule = found.shown("pq", {"rule": "star_bound", "m": order})
            assert abs(delta.ln() - epoch_chain.log_ceiling(epochs, order, EPSILON)) < Decimal("1e-25")
            assert rule == f"the star bound with m={order}"
        for order in (1, star.MOST_ORDER + 1):
            with pytest.raises(ClaimRefused, match="from 2 to 4096"):
                found.shown("pq", {"rule": "star_bound", "m": order})

    def test_a_bound_of_the_largest_order(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(epoch_chain, "log_ceiling", lambda _, order, __: Decimal(-order))
        found = RedrawnBounds(claim(), BANDS).shown("pq", {"rule": "star_bound", "m": 4096})
        assert abs(found.delta.ln() + 4096) < Decimal("1e-40")

    def test_no_bets_and_no_lower_bound(self) -> None:
        found: Bounds = RedrawnBounds(claim(protocol="redrawn-1"), BANDS)
        with pytest.raises(ClaimRefused, match="redrawn-1 has bounds alone, and no bets"):
            found.weights("pq", {"rule": "bet"})
        assert found.least() == 0 and found.told() == {}


class TestAllocation:
    def test_bounds(self) -> None:
        found = AllocationBounds(claim(sampling="random_allocation"), DIAGONAL)
        square = allocation.largest_square(DIAGONAL)
        assert found.norm() == square * (N // B) and square == 4
        blocks = allocation.Blocks(square, SCALE, B, N // B)
        order = {"rule": "moment", "m": 2}
        assert found.shown("pq", order) == (blocks.removal(2, EPSILON), "the moment of order m=2")
        for eta in (1, 2):
            shown = found.shown("qp", {"rule": "moment", "eta": at(eta)})
            assert shown == (blocks.addition(eta, EPSILON), f"the inverse moment with eta={eta}")
        for m in (1, allocation.MOST_ORDER + 1):
            with pytest.raises(ClaimRefused, match="m is"):
                found.shown("pq", {"rule": "moment", "m": m})
        for eta in (1.5, 65.0, 64.5):
            with pytest.raises(ClaimRefused, match="no.* a whole number up to 64"):
                found.shown("qp", {"rule": "moment", "eta": at(eta)})

    def test_the_largest_orders(self, monkeypatch: pytest.MonkeyPatch) -> None:
        blocks = SimpleNamespace(removal=lambda m, e: Decimal(m), addition=lambda eta, e: Decimal(eta))
        monkeypatch.setattr(allocation, "Blocks", lambda *_: blocks)
        found = AllocationBounds(claim(), DIAGONAL)
        assert found.shown("pq", {"m": allocation.MOST_ORDER}).delta == allocation.MOST_ORDER
        assert found.shown("qp", {"eta": at(64.0)}) == (Decimal(64), "the inverse moment with eta=64")

    def test_bins_that_are_no_blocks(self) -> None:
        with pytest.raises(ClaimRefused, match="4 bins do not divide n=6 steps"):
            AllocationBounds(claim(bins=4), DIAGONAL)


class Known(Bounds):
    """Bounds with stated numbers."""

    proved = "what is known"

    def __init__(self, *, bound: float = 0.5, chunk: int = 4, outcome: Any = None, least: Any = "0") -> None:
        self.bound, self.chunk, self.floor = Decimal(bound), chunk, Decimal(least)

    def norm(self) -> Fraction:
        return Fraction(9)

    def shown(self, direction: str, part: Any) -> law_bounds.Shown:
        return law_bounds.Shown(Decimal(part["delta"]), "what is stated")

    def least(self) -> Decimal:
        return self.floor

    def told(self) -> dict[str, Any]:
        return {"told": 5}

    def weights(self, direction: str, part: Any) -> bets.Weights:
        return bets.Weights(self.bound, lambda _: np.zeros(self.chunk), self.chunk)


def reported(sampling: str = "balls_in_bins") -> CalibrationReport:
    report = CalibrationReport()
    report.calibration |= {"sampling": sampling, "bins": B, "seed": "claim"}
    return report


class TestUnamplified:
    def test_norm_and_epsilon_are_rounded_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(calibrations, "SLACK", Decimal("0.125"))
        monkeypatch.setattr(star, "gaussian_delta", lambda *given: Enclosed(Decimal(0), given))
        epsilon, norm = calibrations._gaussian(claim(), Known(), Decimal(7))  # type: ignore[misc]
        assert epsilon == (7, 7)
        wanted = Decimal(3) / 2 * Decimal("1.125")
        assert all(abs(end - wanted) < Decimal("1e-50") for end in norm)

    @pytest.mark.parametrize(("found", "holds"), [("0.0703125", True), ("0.0703126", False), ("0.05", True)])
    def test_both_are_compared_with_a_tolerance(self, found: str, holds: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """delta at 3 (1 + 1/8) + 1/8 is at most 1/16 (1 + 1/8)."""
        asked = []
        monkeypatch.setattr(calibrations, "_TOLERANCE", Decimal("0.125"))
        monkeypatch.setattr(calibrations, "_gaussian", lambda *given: asked.append(given[2]) or Decimal(found))
        report = reported()
        calibrations._check_unamplified(report, claim(), Known())
        assert asked == [Decimal("3.5")]
        assert report.supported is holds and set(report.findings) == {"calibration.unamplified"}


class TestDirections:
    @pytest.mark.parametrize(("delta", "holds"), [(0.0625, True), (0.062500001, False)])
    def test_what_is_shown_is_compared_with_the_claim(self, delta: float, holds: bool) -> None:
        for direction in ("pq", "qp"):
            report, part = reported(), {"rule": "star_bound", "delta": delta}
            given = claim(**{direction: part})
            assert calibrations._check_direction(report, given, Known(), direction, False) is False
            assert report.supported is holds and set(report.findings) == {f"calibration.{direction}"}
            assert report.calibration[direction] == {"rule": "star_bound", "delta": delta}
            told = (report.checked or report.failed)[0]
            assert "what is stated" in told and calibrations._NAMES[direction] in told

    def test_gaussian_is_that_of_the_claim(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = []
        monkeypatch.setattr(calibrations, "_gaussian", lambda *given: asked.append(given[2]) or Decimal("0.01"))
        report = reported()
        given = claim(pq={"rule": "gaussian"})
        assert not calibrations._check_direction(report, given, Known(), "pq", False)
        assert asked == [Decimal(EPSILON)] and report.calibration["pq"]["delta"] == 0.01

    def test_numbers_as_words(self) -> None:
        for value, words in (
            ("0.0625", "0.0625"),
            ("5000", "5000"),
            ("1e299", "1e+299"),
            ("9.99e299", "9.99e+299"),
            ("1e300", "10^300"),
            ("1e400", "10^400"),
        ):
            assert calibrations._shown(Decimal(value)) == words


def betting(rate: float = 1.0, samples: int = 8192, direction: str = "pq") -> Claim:
    return claim(**{direction: {"rule": "bet", "lambda": at(rate), "samples": samples}})


def outcome(accepted: bool) -> bets.BetOutcome:
    return bets.BetOutcome(accepted, 90.0, 12, 0.03)


class TestBets:
    @pytest.mark.parametrize("accepted", [True, False])
    @pytest.mark.parametrize("fresh", [True, False])
    def test_how_a_bet_is_made_and_told(self, accepted: bool, fresh: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """With the seed of the claim as many chunks as it says; with another one four times as many."""
        made = []
        monkeypatch.setattr(bets, "bet", lambda *given: made.append(given) or outcome(accepted))
        monkeypatch.setattr(calibrations, "_fresh_key", lambda: (5, 6))
        report, given = reported(), betting()
        assert calibrations._check_direction(report, given, Known(), "pq", fresh)
        ((weights, *numbers),) = made
        assert weights.bound == Decimal("0.5")
        assert numbers == [DELTA, 1.0, (5, 6) if fresh else given.key("pq"), 8192 // 4 * (4 if fresh else 1)]
        assert report.supported is accepted and set(report.findings) == {"calibration.pq"}
        assert report.calibration["pq"] == {
            "rule": "bet",
            "samples": 12,
            "log_wealth": 90.0,
            "needed": bets.NEEDED,
            "estimate": 0.03,
            "weight_bound_over_delta": 8.0,
        }

    def test_a_stake_that_could_lose_more_than_there_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """lambda (W - delta) is below 1: W is 1/2 and delta 1/16."""
        monkeypatch.setattr(bets, "bet", lambda *_: outcome(True))
        most = 1 / (0.5 - DELTA)
        assert calibrations._check_bet(reported(), betting(math.nextafter(most, 0)), Known(), "pq", False)
        exact = Known(bound=DELTA + 0.25)
        for rate, found in ((most * 1.000001, Known()), (4.0, exact)):
            with pytest.raises(ClaimRefused, match="could lose more"):
                calibrations._check_bet(reported(), betting(rate), found, "pq", False)
        assert calibrations._check_bet(reported(), betting(math.nextafter(4.0, 0)), exact, "pq", False)

    def test_a_bound_that_is_not_above_delta_needs_no_bet(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bets, "bet", lambda *_: pytest.fail("no bet is needed"))
        for bound in (DELTA, DELTA / 2):
            report = reported()
            assert calibrations._check_bet(report, betting(1e9), Known(bound=bound), "pq", False) is False
            assert report.supported and report.checked[0].endswith("no bet is needed")
            assert set(report.findings) == {"calibration.pq"}

    def test_how_many_samples(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bets, "bet", lambda *_: outcome(True))
        for samples in (4096, 1 << 30):
            assert calibrations._check_bet(reported(), betting(samples=samples), Known(), "pq", False)
        for samples in (4095, (1 << 30) + 1):
            with pytest.raises(ClaimRefused, match=f"samples is {samples}; it is an integer from 4096 to {1 << 30}$"):
                calibrations._check_bet(reported(), betting(samples=samples), Known(), "pq", False)
        with pytest.raises(ClaimRefused, match="no multiple of 5"):
            calibrations._check_bet(reported(), betting(), Known(chunk=5), "pq", False)
        monkeypatch.setattr(calibrations, "MOST_NORMALS", 8192 * B)
        assert calibrations._check_bet(reported(), betting(), Known(), "pq", False)
        monkeypatch.setattr(calibrations, "MOST_NORMALS", 8192 * B - 1)
        with pytest.raises(TooLarge, match="8192 samples over 3 bins"):
            calibrations._check_bet(reported(), betting(), Known(), "pq", False)

    def test_fresh_keys_are_of_128_bits(self) -> None:
        keys = [calibrations._fresh_key() for _ in range(64)]
        assert len(set(keys)) == 64
        for side in zip(*keys, strict=True):
            assert max(side) >= 1 << 62 and max(side) < 1 << 64


class TestWhole:
    def check(self, found: Known, monkeypatch: pytest.MonkeyPatch, *, fresh: bool = False) -> CalibrationReport:
        monkeypatch.setitem(law_bounds.BOUNDS, "balls_in_bins", lambda *_: found)
        monkeypatch.setattr(calibrations, "_gaussian", lambda *_: Decimal("0.01"))
        monkeypatch.setattr(bets, "bet", lambda *_: outcome(True))
        report = CalibrationReport()
        shown = {"rule": "star_bound", "delta": 0.05}
        given = claim(pq={"rule": "bet", "lambda": at(1.0), "samples": 4096}, qp=shown)
        calibrations._check(report, given, BANDS, fresh)
        return report

    def test_what_is_told_of_an_accepted_claim(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for fresh in (False, True):
            report = self.check(Known(), monkeypatch, fresh=fresh)
            assert report.supported and report.calibration["seed"] == ("fresh" if fresh else "claim")
            assert report.calibration["accepted"].startswith("accepted: false with probability")
            assert report.calibration["accepted"] in report.checked and "what is known" in report.checked
            assert report.calibration["least_delta"] == 0.0 and report.calibration["told"] == 5
            assert report.document()["calibration"] == report.calibration and report.document()["checked"]
            assert re.fullmatch("sha256:[0-9a-f]{64}", report.calibration["claim_digest"])
            assert report.findings["calibration.unamplified"]
            assert sum("SHA-256" in text for text in report.not_checked) == (not fresh)
            assert sum("Philox" in text for text in report.not_checked) == 1
            assert any("in secret" in text for text in report.not_checked)

    def test_a_lower_bound_refutes_where_it_is_above_delta(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.check(Known(least="0.0625"), monkeypatch).supported
        report = self.check(Known(least="0.0626"), monkeypatch)
        assert report.failed and "(theorem 8)" in report.failed[0] and "accepted" not in report.calibration
        assert report.findings["calibration.pq"][0][0] == "false"
        assert not report.not_checked

    def test_closed_forms_assume_nothing_of_seeds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        report = self.check(Known(bound=0.01), monkeypatch)
        assert report.calibration["accepted"] == "accepted: both directions are proved by closed forms, without samples"
        assert not any("Philox" in text or "SHA-256" in text for text in report.not_checked)
        assert len(report.not_checked) == 3


class TestFile:
    """What a claim says of the file that it is about."""

    MANIFEST = {"digest": "ab" * 32, "matrices": {"C": {"shape": [N, N]}}}

    def given(self, **values: Any) -> Claim:
        mechanism = {"factors": "sha256:" + "ab" * 32, "gram": "sha256:" + "0" * 64, "epochs": 2} | values
        return claim(mechanism=mechanism)

    def test_a_claim_of_this_file(self) -> None:
        calibrations._check_file(self.given(), self.MANIFEST)
        calibrations._check_file(self.given(), self.MANIFEST | {"digest": "sha256:" + "ab" * 32})
        calibrations._check_file(self.given(epochs=2)._replace(bins=5), self.MANIFEST)

    @pytest.mark.parametrize(
        ("values", "words"),
        [
            ({"factors": "ab" * 32}, "mechanism.factors is"),
            ({"factors": "sha256:" + "cd" * 32}, "the claim is about sha256:cdcd"),
            ({"gram": "sha256:" + "0" * 63}, "mechanism.gram is"),
            ({"gram": "sha256:" + "0" * 65}, "mechanism.gram is"),
            ({"gram": "sha256:" + "G" * 64}, "mechanism.gram is"),
            ({"epochs": 3}, "make 2 epochs; the claim says 3"),
            ({"epochs": 1}, "make 2 epochs; the claim says 1"),
        ],
    )
    def test_claims_of_another(self, values: dict[str, Any], words: str) -> None:
        with pytest.raises(ClaimRefused, match=words):
            calibrations._check_file(self.given(**values), self.MANIFEST)

    def test_another_length(self) -> None:
        with pytest.raises(ClaimRefused, match="about n=7 steps, and C has 6"):
            calibrations._check_file(self.given()._replace(n=7), self.MANIFEST)
