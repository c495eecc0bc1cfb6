"""The comparison under sampling: every number is one that calibrations give, and what is recommended was verified."""

from __future__ import annotations

import json
import shlex
from types import SimpleNamespace

import pytest
from specs import spec_of

from factorize import parse_spec, solvers
from factorize.accounting import calibrate_sampling
from factorize.errors import InvalidParameter
from factorize.numbers import processor_time
from factorize.privacy import PrivacyTarget, calibrate
from factorize.privacy.question import SamplingOptions
from factorize.samplings import SAMPLINGS
from factorize.solvers.comparing.compare import compare
from factorize.solvers.comparing.comparison_table import Comparison, Row
from factorize.solvers.comparing.deadline import CLAIMS, LATE_CLAIMS, Deadline
from factorize.solvers.comparing.table_rows import TableRows

N, EPOCHS, EXAMPLES, BATCH = 20, 4, 500, 100
EPSILON, DELTA = 4.0, 1e-4
TARGET = PrivacyTarget(epsilon=EPSILON, delta=DELTA)
SPEC = {"workload": {"kind": "prefix", "n": N}, "participation": {"kind": "fixed_epochs", "epochs": EPOCHS}}


@pytest.fixture(scope="module")
def table() -> Comparison:
    return compare(
        parse_spec(SPEC), buffers=3, privacy=TARGET, sampling=SamplingOptions(dataset_size=EXAMPLES, batch_size=BATCH)
    )


@pytest.fixture
def formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three formulas in place of all mechanisms, where a test is not about them."""
    kinds = ("identity", "square_root", "toeplitz")
    monkeypatch.setattr("factorize.solvers.comparing.plan.mechanisms", lambda *_: [{"kind": kind} for kind in kinds])
    for name in ("optimised", "leads"):
        monkeypatch.setattr(f"factorize.solvers.comparing.plan.{name}", lambda *_: [])


def row_of(table: Comparison, mechanism: str, sampling: str | None) -> Row:
    plain = [row for row in table.rows if row.mechanism == mechanism and not row.optimized_under]
    return next(row for row in plain if row.sampling == sampling and row.normalization in (None, "none"))


def test_every_scheme_has_rows_and_says_what_the_loader_does(table: Comparison) -> None:
    assert {row.sampling or "fixed" for row in table.rows} == set(SAMPLINGS)
    for one in table.samplings:
        assert one["loader"] == SAMPLINGS[one["sampling"]].loader and one["misfit"] is None and one["rows"] > 0


@pytest.mark.parametrize(
    ("mechanism", "sampling"),
    [("identity", "poisson"), ("banded_toeplitz", "cyclic_poisson"), ("dense", "balls_in_bins"), ("dense", None)],
)
def test_a_row_states_the_noise_of_its_own_command(table: Comparison, mechanism: str, sampling: str | None) -> None:
    """Solve the row's spec anew, and calibrate by the public function with the options that the command names."""
    row = row_of(table, mechanism, sampling)
    solving, calibrating = (shlex.split(part) for part in row.next_command.split(" && "))
    assert solving[:2] == ["factorize", "solve"] and json.loads(solving[2]) == dict(row.spec)
    found = solvers.solve(parse_spec(solving[2]))
    assert found.spec_digest == row.spec_digest
    bounds = calibrating[-1] == "--deterministic"
    calibrating = calibrating[: len(calibrating) - bounds]
    options = dict(zip(calibrating[3::2], calibrating[4::2], strict=True))
    sizes = {
        name: int(options[f"--{name.replace('_', '-')}"])
        for name in ("dataset_size", "batch_size")
        if sampling and "poisson" in sampling
    }
    assert (float(options["--epsilon"]), float(options["--delta"])) == (EPSILON, DELTA)
    again = calibrate_sampling(
        found,
        TARGET,
        sampling=options.get("--sampling", "fixed"),
        **sizes,
        method="deterministic" if bounds else "verified",
    )
    sigma = again.sigma_of_sums
    assert row.sigma_of_sums == pytest.approx(sigma, rel=1e-12)
    sensitivity, loss = found.certificate.sensitivity, found.certificate.loss
    assert row.rmse_at_privacy == pytest.approx(sigma * loss.rmse / sensitivity.value, rel=1e-12)
    assert again.rmse(found) == pytest.approx(row.rmse_at_privacy, rel=1e-12)
    assert again.epsilon == EPSILON


def test_without_secrecy_the_noise_is_that_of_the_participation_without_sampling(table: Comparison) -> None:
    for row in table.rows:
        assert row.rmse_without_secrecy is not None and row.rmse_at_privacy is not None
        if row.sampling == "balls_in_bins":
            plain = calibrate(row.sensitivity, TARGET).noise_multiplier * row.loss.rmse
            assert row.rmse_without_secrecy == pytest.approx(plain)
        if not getattr(row.calibration, "signed", False):  # |C| stands in for those
            assert row.rmse_at_privacy <= row.rmse_without_secrecy * 1.001  # a grid of losses
    every_step = row_of(table, "identity", "poisson")  # nothing keeps an example out of any step
    assert every_step.sensitivity.value == pytest.approx(N**0.5)


def test_the_recommended_number_is_verified_and_the_smallest_within_the_memory(table: Comparison) -> None:
    assert table.recommendation is not None
    chosen = table.rows[table.recommendation.row]
    fitting = [row for row in table.rows if row.noise_vectors <= 3]
    assert chosen in fitting and chosen.sampling == "balls_in_bins" and chosen.method == "verified"
    assert chosen.rmse_at_privacy == pytest.approx(min(row.rmse_at_privacy or 0 for row in fitting), rel=1e-3)
    assert sum(row.method == "verified" for row in table.rows) >= 2
    assert "without secrecy" in table.recommendation.reason and "verified" in table.recommendation.reason


def test_with_no_time_left_each_way_to_take_part_has_an_answer_that_was_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leads come to their end, and the claim of the recommended row does; its sigma is that of its own command."""
    monkeypatch.setattr(Deadline, "over", lambda _self, share, _needed=0.0: share < LATE_CLAIMS)
    sizes = SamplingOptions(dataset_size=EXAMPLES, batch_size=BATCH)
    found = compare(SPEC, privacy=TARGET, sampling=sizes, buffers=3, seconds=1e-3, max_seconds=60)
    correlated = {(row.mechanism, row.sampling) for row in found.rows if row.mechanism != "identity"}
    assert {("buffered_linear", None), ("blt", "balls_in_bins")} <= correlated
    assert found.recommendation is not None and found.solved is not None
    chosen = found.rows[found.recommendation.row]
    assert chosen.sampling == "balls_in_bins" and chosen.method == "verified"
    work = Deadline(1e-3).work
    again = calibrate_sampling(found.solved, TARGET, sampling="balls_in_bins", work=work)
    assert f"--work {work}" in chosen.next_command
    assert again.sigma_of_sums == chosen.sigma_of_sums
    leads = [row for row in found.rows if row.sampling == "balls_in_bins" and row.mechanism != "identity"]
    assert all(row.method == "verified" or row.rmse_at_privacy > 1.2 * chosen.rmse_at_privacy for row in leads)
    assert "of what was tried" in found.recommendation.reason
    assert "best without sampling of what was tried is buffered_linear" in found.recommendation.reason
    assert all(
        ("--deterministic" in row.next_command) == (row.method == "deterministic")
        for row in found.rows
        if row.sampling == "balls_in_bins"
    )


def test_no_best_is_named_of_what_was_not_tried(formulas: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Deadline, "over", lambda *_, **__: True)
    sizes = SamplingOptions(dataset_size=EXAMPLES, batch_size=BATCH)
    found = compare(parse_spec(SPEC), privacy=TARGET, sampling=sizes, buffers=3, seconds=60)
    assert {row.mechanism for row in found.rows} == {"identity"} and found.recommendation is not None
    assert "no time to try correlated noise without sampling" in found.recommendation.reason
    assert "best without" not in found.recommendation.reason


def test_the_deadline_counts_processor_seconds_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the clock runs on a busy machine."""
    clock = {"processor": 0.0, "wall": 0.0}
    times = SimpleNamespace(process_time=lambda: clock["processor"], monotonic=lambda: clock["wall"])
    monkeypatch.setattr(processor_time, "time", times)
    deadline = Deadline(10.0)
    clock["wall"] = 1e6
    assert not deadline.over(CLAIMS) and not deadline.over(CLAIMS, 9.9) and deadline.over(CLAIMS, 10.1)
    clock["processor"] = 10.1
    assert deadline.over(CLAIMS) and not Deadline(None).over(CLAIMS, 1e9) and Deadline(1e308).work is None


@pytest.mark.usefixtures("formulas")
def test_a_row_whose_claim_is_not_found_states_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Row:
        raise InvalidParameter("no order fits")

    monkeypatch.setattr(TableRows, "verified", refuse)
    sizes = SamplingOptions(dataset_size=EXAMPLES, batch_size=BATCH)
    found = compare(parse_spec(SPEC), buffers=3, privacy=TARGET, sampling=sizes, samplings=["balls_in_bins"])
    assert {row.method for row in found.rows if row.sampling == "balls_in_bins"} == {"deterministic"}
    told = [refused for refused in found.refused if "no claim was found: no order fits" in refused.reason]
    assert told and not any(refused.out_of_time for refused in told)


def test_what_is_optimised_for_the_sampling_joins_and_leads(table: Comparison) -> None:
    tuned = [row for row in table.rows if row.optimized_under == "balls_in_bins" and row.sampling == "balls_in_bins"]
    assert {row.mechanism for row in tuned} == {"toeplitz", "blt", "banded_inverse_toeplitz"}
    assert next(row for row in tuned if row.mechanism == "banded_inverse_toeplitz").parameters == {"bands": 4}
    best = min(row.rmse_at_privacy or 0 for row in tuned)
    others = [row for row in table.rows if not row.optimized_under]
    assert best <= min(row.rmse_at_privacy or 0 for row in others) * 1.05  # `buffered_linear` is no Toeplitz matrix


def test_no_row_is_below_the_bound_of_its_sampling(table: Comparison) -> None:
    bound = table.sampled_bounds["balls_in_bins"]["objective"]
    for row in table.rows:
        if row.sampling == "balls_in_bins":
            assert row.objective_at_privacy == pytest.approx(bound * (1 + (row.relative_gap or 0.0)))
            assert row.relative_gap is not None and row.relative_gap > 0


def test_without_sizes_nothing_counts_on_sampling_unless_it_is_named(formulas: None) -> None:
    spec = parse_spec(
        {**SPEC, "workload": {"kind": "prefix", "n": 8}, "participation": {"kind": "fixed_epochs", "epochs": 2}}
    )
    plain = compare(spec, privacy=TARGET)
    assert {row.sampling for row in plain.rows} == {None} and plain.samplings == ()
    named = compare(spec, privacy=TARGET, samplings=["balls_in_bins"])
    assert {row.sampling for row in named.rows} == {None, "balls_in_bins"}


def test_a_spec_with_a_sampling_brings_its_privacy_and_its_own_mechanism(formulas: None) -> None:
    sampling = {"kind": "balls_in_bins", "epsilon": EPSILON, "delta": DELTA}
    spec = {"workload": {"kind": "prefix", "n": 8}, "participation": {"kind": "fixed_epochs", "epochs": 2}}
    asked = parse_spec({**spec, "mechanism": {"kind": "blt", "buffers": 1}, "sampling": sampling})
    found = compare(asked)
    own = [row for row in found.rows if row.optimized_under and row.parameters == {"buffers": 1}]
    assert {row.sampling for row in own} == {None, "balls_in_bins"}
    assert own[0].spec_digest == asked.digest


def test_a_scheme_that_fits_nothing_says_why(formulas: None) -> None:
    spec = spec_of(8, participation={"kind": "min_sep", "min_sep": 4})
    found = compare(spec, privacy=TARGET, samplings=["balls_in_bins"])
    assert "fixed_epochs" in next(one["misfit"] for one in found.samplings if one["sampling"] == "balls_in_bins")
    one_epoch = compare(spec_of(8), privacy=TARGET, samplings=["balls_in_bins"])
    assert "random allocation" in one_epoch.samplings[1]["title"] and one_epoch.samplings[1]["rows"] > 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"samplings": ["shuffle"], "privacy": TARGET}, "gives away"),
        ({"samplings": ["poisson"], "privacy": TARGET}, "dataset_size and batch_size"),
        ({"samplings": ["balls_in_bins"]}, "give both"),
        ({"samplings": ["balls_in_bins"], "privacy": PrivacyTarget(mu=1.0)}, "give both"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidParameter, match=words):
        compare(parse_spec(SPEC), **options)  # type: ignore[arg-type]


def test_a_noise_that_one_scheme_has_no_law_for_refuses_its_rows_alone() -> None:
    sizes = SamplingOptions(dataset_size=600, batch_size=100)
    privacy = PrivacyTarget(epsilon=700.0, delta=1e-6)
    banded = spec_of(6, {"kind": "banded", "bands": 3})
    found = compare(banded, privacy=privacy, sampling=sizes, samplings=["b_min_sep"], buffers=2)
    assert any("b-min-sep" in refused.reason and "too little noise" in refused.reason for refused in found.refused)
    assert found.recommendation is not None and found.rows[found.recommendation.row].sampling is None
