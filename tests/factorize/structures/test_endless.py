"""Strategies without end: sensitivities that are limits, rows in ranges, losses that are infinite, and refusals."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from checker_files import parts, sealed
from specs import solved, spec_of

from factorize.api.results import Results
from factorize.checker.check import check_factor_file
from factorize.checker.report import Report
from factorize.checker.sensitivity import bracket_limit
from factorize.client import load as client_load
from factorize.errors import (
    CertificateError,
    CorruptObject,
    FactorizeError,
    InvalidParameter,
    InvalidSpec,
    TooLarge,
    UnsupportedProblem,
)
from factorize.factors.factor_file import load
from factorize.factors.factorization import Factorization
from factorize.factors.sensitivity import sensitivity_of
from factorize.format.manifest import ENDLESS_STEPS, manifest_digest
from factorize.participation import MinSep, Single
from factorize.solvers import choose, estimate
from factorize.solvers import compare as compare_mechanisms
from factorize.spec import parse_spec
from factorize.storage.store import open_store
from factorize.structures.endless import MAX_ROWS, EndlessBlt, EndlessNuToeplitz

BLT = {"kind": "blt", "buffers": 3}
SEVERAL = {"kind": "min_sep", "min_sep": 50, "max_participations": 4}


UNBOUNDED = {"kind": "prefix", "n": "unbounded"}
ONCE, TWICE = {"kind": "single"}, {"kind": "min_sep", "min_sep": 1, "max_participations": 2}


def min_sep(separation: int, most: int) -> MinSep:
    return MinSep(kind="min_sep", min_sep=separation, max_participations=most)


class TestLimits:
    @pytest.mark.parametrize(("separation", "most"), [(1, 2), (1, 9), (3, 4), (50, 4), (1000, 3), (5, 1)])
    def test_long_finite_strategies_approach_it_from_below(self, separation, most):
        endless = EndlessBlt(np.array([0.9, 0.997]), np.array([0.3, 0.05]))
        participation = min_sep(separation, most) if most > 1 else Single()
        limit, long = (sensitivity_of(matrix, participation) for matrix in (endless, endless.until(20_000)))
        short = sensitivity_of(endless.until(max(2 * separation, 64)), participation)
        assert short.value < limit.value
        assert limit.value == pytest.approx(long.value, rel=5e-11)
        assert limit.kind == long.kind == "exact"

    def test_decays_of_zero_end_the_column(self):
        found = EndlessBlt(np.array([0.0]), np.array([0.75]))
        assert found.squared_limit(1, 1) == 1 + 9 / 16
        assert found.squared_limit(1, 3) == pytest.approx(1 + 2 * 1.75**2 + 0.75**2, rel=1e-15)

    def test_coefficients_that_rise_first_give_an_upper_bound(self):
        endless = EndlessBlt(np.array([0.9]), np.array([1.2]))
        found = sensitivity_of(endless, min_sep(2, 3))
        assert found.kind == "upper_bound"
        assert found.value == pytest.approx(sensitivity_of(endless.until(2000), min_sep(2, 3)).value, rel=1e-12)
        assert sensitivity_of(endless, Single()).kind == "exact"

    def test_columns_of_nu_toeplitz_approach_it(self):
        endless = EndlessNuToeplitz(np.array([0.01]))
        limit, long = (sensitivity_of(matrix, Single()) for matrix in (endless, endless.until(5000)))
        assert limit.value >= long.value * (1 - 1e-11)
        assert limit.value == pytest.approx(long.value, rel=1e-11)
        assert limit.kind == "exact"

    def test_patterns_of_nu_toeplitz_are_refused(self):
        with pytest.raises(TooLarge, match="4 participations .* use blt"):
            sensitivity_of(EndlessNuToeplitz(np.array([0.1])), min_sep(50, 4))

    def test_limits_by_hand(self):
        """1, 1/2, 1/4, ...: squares that sum to 4/3; and twice the leading pattern, one step apart, 1 and 3/2 times it."""
        halves = {"theta": np.array([0.5]), "omega": np.array([0.5])}
        once, twice = bracket_limit("blt", halves, ONCE), bracket_limit("blt", halves, TWICE)
        assert once.lower <= once.upper and float(once.lower) == float(once.upper) == 4 / 3
        assert float(twice.upper) == pytest.approx(1 + (9 / 4) * 4 / 3, rel=1e-15) and twice.pattern == (0, 1)

    def test_one_damped_column_without_end(self):
        """The squares of binomial(2 t, t) / 8^t, which fall by a factor of 4 and more: 640 of them tell 1280 places."""
        found = bracket_limit("nu_toeplitz", {"nu": np.array([0.5])}, ONCE)
        coefficient = total = Fraction(1)
        for t in range(1, 641):
            coefficient *= Fraction(2 * t - 1, 4 * t)
            total += coefficient**2
        assert found.lower < total < total + Fraction(1, 2**1270) < found.upper
        assert found.upper - found.lower < Fraction(1, 2**1000)
        assert (found.pattern, found.signs) == ((0,), (1,))


class TestSolving:
    @pytest.mark.parametrize(
        ("mechanism", "participation"),
        [
            *itertools.product([BLT, {"kind": "blt", "buffers": 1}], [{"kind": "single"}, SEVERAL]),
            *(({"kind": "nu_toeplitz", "nu": nu}, {"kind": "single"}) for nu in (1e-12, 0.01, 0.3)),
        ],
        ids=str,
    )
    def test_it_is_certified_stored_and_read_back(self, mechanism, participation, tmp_path):
        found = solved(UNBOUNDED, mechanism, participation=participation)
        certificate = found.manifest["certificate"]
        assert set(certificate["loss"].values()) == {None}
        assert certificate["lower_bound"] is certificate["relative_gap"] is None
        assert certificate["converged"]
        assert any("infinite and stated as null" in warning for warning in certificate["warnings"])
        assert found.manifest["matrices"]["C"]["shape"] == [None, None]
        assert found.manifest["spec"]["workload"] == {"kind": "prefix", "n": "unbounded"}
        report = checked(found, tmp_path)
        assert report.supported, report.failed
        *of_its_class, residual, provenance = report.not_checked
        assert len(of_its_class) == (mechanism["kind"] == "blt")
        assert "no last row" in residual and "provenance" in provenance
        read = load(tmp_path / "file.safetensors")
        assert read.digest == found.digest
        assert read.certificate.loss.rmse == math.inf
        assert read.verify().sensitivity == found.certificate.sensitivity

    @pytest.mark.parametrize("mechanism", [BLT, {"kind": "nu_toeplitz", "nu": 0.01}], ids=str)
    def test_rows_come_in_ranges_and_agree_with_each_other(self, mechanism):
        found = solved(UNBOUNDED, mechanism)
        c, inverse, decoder = (found.rows(name, 0, 40) for name in ("C", "C_inv", "B"))
        assert c.shape == (40, 40)
        assert inverse @ c == pytest.approx(np.eye(40), abs=1e-13)
        assert decoder == pytest.approx(np.tril(np.ones((40, 40))) @ inverse, abs=1e-13)
        assert found.rows("C_inv", 38, 40) == pytest.approx(inverse[38:], abs=1e-15)
        assert [found.rows(name, 0, 0).shape for name in ("C", "C_inv", "B")] == [(0, 0)] * 3
        with pytest.raises(FactorizeError, match=f"0:{MAX_ROWS}"):
            found.rows("C", 0, MAX_ROWS + 1)

    def test_the_stated_growth_is_that_of_long_finite_decoders(self):
        found = solved(UNBOUNDED, {"kind": "nu_toeplitz", "nu": 0.05})
        sums = np.cumsum(found.rows("C_inv", 2999, 3000)[0][::-1])
        growth = found.certificate.sensitivity.value**2 * sums[-1] ** 2
        assert any(f"grows by {growth:.6g} a step" in warning for warning in found.certificate.warnings)

    def test_the_horizon_is_what_optimize_for_says(self):
        horizon = {"kind": "prefix", "n": 500}
        endless = solved(UNBOUNDED, BLT, optimize_for=horizon)
        finite = solved(horizon, BLT)
        assert endless.strategy.theta.tolist() == finite.strategy.theta.tolist()
        assert endless.manifest["solver"]["optimized_for"] == horizon
        assert endless.certificate.sensitivity.value > finite.certificate.sensitivity.value
        assert solved(UNBOUNDED, BLT).manifest["solver"]["optimized_for"] == {"kind": "prefix", "n": 1 << 20}

    def test_its_digest_is_its_own(self):
        finite = parse_spec({"workload": {"kind": "prefix", "n": 64}, "mechanism": BLT})
        assert spec_of(UNBOUNDED, BLT).digest != finite.digest
        assert (
            spec_of(UNBOUNDED, BLT).digest
            == spec_of(UNBOUNDED, BLT, participation={**SEVERAL, "max_participations": 1}).digest
        )

    def test_an_estimate_needs_no_number_of_steps(self):
        assert estimate(spec_of(UNBOUNDED, BLT)).seconds < 60


class TestRefusals:
    @pytest.mark.parametrize(
        ("more", "message"),
        [
            ({"participation": {"kind": "fixed_epochs", "epochs": 4}}, "/participation/kind: epochs=4"),
            ({"participation": {"kind": "min_sep", "min_sep": 9}}, "/participation/max_participations"),
            ({"objective": {"kind": "lambda_tau", "tau": 2}}, "/objective/kind: this objective needs a last step"),
            ({"objective": {"kind": "weighted", "weights": [1.0]}}, "/objective/kind"),
            ({"optimize_for": {"kind": "prefix", "n": "unbounded"}}, "/optimize_for/n"),
            ({"workload": {"kind": "decay", "rate": 0.5, "n": "unbounded"}}, "/workload/n: .*got 'unbounded'"),
            ({"workload": {"kind": "prefix", "n": "endless"}}, "/workload/n"),
            (
                {"workload": {"kind": "prefix", "n": 9}, "optimize_for": UNBOUNDED},
                "n='unbounded', but workload has n=9",
            ),
        ],
    )
    def test_specs_without_an_answer_are_refused(self, more, message):
        with pytest.raises(InvalidSpec, match=message):
            parse_spec({"workload": {"kind": "prefix", "n": "unbounded"}, "mechanism": BLT, **more})

    @pytest.mark.parametrize(
        ("mechanism", "message"),
        [
            ({"kind": "auto"}, "no optimum exists without end; use blt"),
            ({"kind": "dense"}, "dense needs a number of steps"),
            ({"kind": "buffered_linear", "buffers": 4}, "needs a number of steps, but n is 'unbounded'; use blt"),
            ({"kind": "nu_toeplitz", "nu": 0.0}, "no finite sensitivity"),
            ({"kind": "nu_toeplitz", "nu": "tune"}, "tune it for a finite n"),
            ({"kind": "blt", "buffers": 2, "normalization": "columns"}, "nothing to normalise"),
            ({"kind": "blt", "buffers": 16}, "buffers=16 exceeds 15"),
        ],
    )
    def test_mechanisms_without_an_answer_are_refused(self, mechanism, message):
        with pytest.raises(UnsupportedProblem, match=message):
            choose(spec_of(UNBOUNDED, mechanism))
        with pytest.raises(UnsupportedProblem, match="no closed limit if n is 'unbounded'; use blt"):
            choose(spec_of(UNBOUNDED, {"kind": "nu_toeplitz", "nu": 0.1}, participation=SEVERAL))

    def test_what_needs_a_last_step_says_so(self):
        found = solved(UNBOUNDED, BLT)
        with pytest.raises(UnsupportedProblem, match="no last row"):
            found.shape("C")
        with pytest.raises(UnsupportedProblem, match="read their rows in ranges"):
            found.with_matrices(["C_inv"])
        with pytest.raises(UnsupportedProblem, match="n is 'unbounded'"):
            compare_mechanisms(spec_of(UNBOUNDED, BLT))


class TestExactly:
    @pytest.mark.parametrize("place", ["sensitivity", "loss", "lower_bound"])
    def test_claims_that_are_too_good_fail(self, place, tmp_path):
        found = solved(UNBOUNDED, BLT)
        claims = found.manifest["certificate"]
        if place == "sensitivity":
            value = math.nextafter(claims["sensitivity"]["value"], 0)
            claims["sensitivity"] |= {"value": value, "hex": value.hex()}
        elif place == "loss":
            claims["loss"]["rmse"] = 2.0
        else:
            claims["lower_bound"] = {"objective": 1.0, "rule": "trust me"}
        found.manifest["digest"] = manifest_digest(found.manifest)
        report = checked(found, tmp_path)
        assert len(report.failed) == 1
        with pytest.raises(CertificateError):
            found.verify()

    def test_a_strategy_with_a_last_row_is_no_answer(self):
        manifest, tensors = parts(solved(UNBOUNDED, BLT))
        manifest["matrices"]["C"]["shape"] = [8, 8]
        with pytest.raises(CorruptObject, match="asks for .None, None."):
            check_factor_file(sealed(manifest, tensors))


def checked(found: Factorization, folder: Path) -> Report:
    path = folder / "file.safetensors"
    found.save(path)
    return check_factor_file(path.read_bytes())


class TestConsumers:
    def test_noise_goes_on_and_is_that_of_the_rows(self, tmp_path):
        found = solved(UNBOUNDED, {"kind": "blt", "buffers": 2})
        found.save(tmp_path / "file.safetensors")
        factors = client_load(tmp_path / "file.safetensors")
        assert factors.steps == ENDLESS_STEPS
        noise = factors.noise(factors.calibrate(mu=1.0), 500, seed=1 << 64, precision="float64")
        made = np.array([noise.next() for _ in range(30)])
        plain = factors.noise(factors.calibrate(mu=1.0), 500, seed=1 << 64, precision="float64")
        z = found.rows("C", 0, 30) @ made  # whitened: what was drawn
        assert z[0] == pytest.approx(plain.next(), rel=1e-6)
        assert abs(np.corrcoef(z[3], z[4])[0, 1]) < 0.2
        assert noise.state_dict()["steps"] == ENDLESS_STEPS
        plain.load_state_dict(noise.state_dict())
        assert (plain.next() == noise.next()).all()

    def test_noise_of_nu_toeplitz_names_the_way_out(self, tmp_path):
        solved(UNBOUNDED, {"kind": "nu_toeplitz", "nu": 0.1}).save(tmp_path / "file.safetensors")
        factors = client_load(tmp_path / "file.safetensors")
        with pytest.raises(UnsupportedProblem, match="use blt"):
            factors.noise(factors.calibrate(mu=1.0), 5, seed=1 << 64)
        with pytest.raises(UnsupportedProblem, match="no last row"):
            factors.rows("C")

    def test_a_store_serves_rows_in_ranges(self, tmp_path):
        store = open_store(str(tmp_path / "store"))
        found = solved(UNBOUNDED, BLT)
        store.put(found)
        results = Results(store, cache_bytes=1 << 24)
        result = results.answer(found.spec)
        rows = results.rows(result, "C_inv", 2, 40)
        assert rows.shape == (38, 40)
        sent = np.concatenate([np.frombuffer(block, dtype="<f8") for block in rows.blocks()]).reshape(rows.shape)
        assert (sent == found.rows("C_inv", 2, 40)).all()
        pieces = replace(rows, stop=200_000, start=199_996)
        assert pieces.per_block < 4
        sent = np.concatenate([np.frombuffer(block, dtype="<f8") for block in pieces.blocks()]).reshape(pieces.shape)
        assert (np.count_nonzero(sent, axis=1) == np.arange(199_997, 200_001)).all()
        for matrix in ("C", "C_inv", "B"):
            nothing = results.block(results.rows(result, matrix, 0, 0))
            assert nothing is not None and not nothing.data.nbytes
        with pytest.raises(InvalidParameter, match="give the last one too"):
            results.rows(result, "C", 0, None)
