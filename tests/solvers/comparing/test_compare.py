"""The comparison of all mechanisms: its rows are the solver's own results, and its costs are those of the client."""

from dataclasses import replace

import numpy as np
import pytest
from specs import solved, spec_of

from factorize import solvers
from factorize.errors import Cancelled, InvalidParameter, SolveFailed, TooLarge
from factorize.factors.solution import Progress
from factorize.noise.source import Streamable, noise_source
from factorize.privacy import PrivacyTarget
from factorize.privacy.question import SamplingOptions
from factorize.solvers.comparing.candidates import fewer_bands, mechanisms
from factorize.solvers.comparing.compare import compare
from factorize.solvers.comparing.comparison_schedule import certificate_seconds
from factorize.solvers.comparing.comparison_table import recommend
from factorize.solvers.comparing.deadline import SOLVES, Deadline
from factorize.solvers.comparing.plan import ComparisonPlan
from factorize.solvers.comparing.table_rows import TableRows
from factorize.solvers.register import choose
from factorize.spec import parse_spec
from factorize.structures.scaled import ColumnScaled
from factorize.structures.toeplitz import BltMatrix

N = 24


@pytest.fixture(scope="module")
def table():
    return compare(spec_of(N))


@pytest.fixture
def quick(monkeypatch):
    """Leaves out what takes most of the time, where a test is not about it."""

    def chosen(*arguments):
        return [one for one in mechanisms(*arguments) if one["kind"] not in ("blt", "semidefinite")]

    monkeypatch.setattr("factorize.solvers.comparing.plan.mechanisms", chosen)


def rows_of(table, mechanism):
    return [row for row in table.rows if row.mechanism == mechanism]


def test_every_mechanism_has_a_row_or_a_reason(table):
    named = {row.mechanism for row in table.rows} | {refused.mechanism for refused in table.refused}
    assert named == set(solvers.SOLVERS)
    assert all(len(refused.reason) > 20 for refused in table.refused)


def test_rows_are_sorted_and_repeat_what_the_solvers_say(table):
    losses = [row.loss.objective for row in table.rows]
    assert losses == sorted(losses)
    for row in (*rows_of(table, "square_root"), *rows_of(table, "banded"), *rows_of(table, "blt")):
        option = {} if row.normalization is None else {"normalization": row.normalization}
        mechanism = {"kind": row.mechanism, **row.parameters, **option}
        found = solved(N, mechanism, tolerance=row.tolerance)
        assert row.spec_digest == found.spec_digest
        assert row.loss == found.certificate.loss
        assert row.sensitivity == found.certificate.sensitivity


def test_several_epochs_have_a_row_with_redraws(quick):
    table = compare(spec_of(N, participation=3), buffers=2)
    (row,) = rows_of(table, "buffered_linear")
    assert row.parameters == {"buffers": 2} and row.noise_vectors == 2
    assert row.redraws == 1.0  # none in the first epoch, two in the third


def test_the_bound_is_one_for_all_and_the_optimum_leads(table):
    assert table.rows[0].mechanism == "dense" and table.rows[0].relative_gap < 1e-8
    for row in table.rows:
        assert row.relative_gap == pytest.approx(row.loss.objective / table.lower_bound.objective - 1, abs=1e-12)
        assert row.relative_gap > -1e-12


def test_normalised_columns_have_rows_of_their_own(table):
    for kind in ("square_root", "toeplitz", "banded_toeplitz", "blt"):
        assert sorted(row.normalization for row in rows_of(table, kind)) == ["columns", "none"]
    tuned, scaled = sorted(rows_of(table, "nu_toeplitz"), key=lambda row: row.normalization, reverse=True)
    assert tuned.parameters == {"nu": "tune"}
    assert scaled.normalization == "columns" and 0 < scaled.parameters["nu"] < 0.5


def test_a_matrix_of_the_user_keeps_its_numbers(quick):
    lower = np.tril(np.ones((6, 6))).tolist()
    own = compare(spec_of({"kind": "matrix", "rows": lower}))
    prefix = {(row.mechanism, row.normalization): row.loss.objective for row in compare(spec_of(6)).rows}
    assert {"dense", "identity", "tree", "toeplitz"} <= {row.mechanism for row in own.rows}
    assert own.lower_bound.objective == pytest.approx(own.rows[0].loss.objective, rel=1e-8)
    for row in rows_of(own, "square_root") + rows_of(own, "dense") + rows_of(own, "identity"):
        assert row.loss.objective == pytest.approx(prefix[row.mechanism, row.normalization], rel=1e-8)


@pytest.mark.parametrize("participation", [{"kind": "fixed_epochs", "epochs": 4}, {"kind": "min_sep", "min_sep": 6}])
def test_repeated_participation(participation, quick):
    table = compare(spec_of(N, participation=participation), buffers=2)
    assert table.lower_bound is not None and table.budget == 2
    assert {"tree", "banded", "toeplitz"} <= {row.mechanism for row in table.rows}
    assert {row.parameters.get("restart_every") for row in rows_of(table, "tree")} == {None, 6}
    for row in table.rows:
        assert row.sensitivity.participation["kind"] == participation["kind"]
        assert (row.sensitivity.kind == "upper_bound") == any("upper bound" in text for text in row.warnings)


def test_a_budget_is_kept_by_the_recommendation(quick):
    for buffers in (0, 1, 3):
        table = compare(spec_of(N), buffers=buffers)
        chosen = table.rows[table.recommendation.row]
        assert chosen.noise_vectors <= buffers
        fitting = [row for row in table.rows if row.noise_vectors <= buffers]
        assert chosen.loss.objective <= fitting[0].loss.objective * 1.001
        assert chosen.mechanism in table.recommendation.reason
    in_bytes = compare(spec_of(N), bytes_per_parameter=13.9)
    assert in_bytes.budget == 3
    assert [row.spec_digest for row in in_bytes.rows] == [row.spec_digest for row in table.rows]


def test_ties_go_to_the_smaller_memory(quick):
    """With 6 buffers the streaming optimum is within 1e-3 of the dense one, which keeps n vectors."""
    table = compare(spec_of(N), buffers=6)
    open_ended = recommend(table.rows, None)
    assert table.rows[0].mechanism == "dense"
    assert table.rows[open_ended.row].mechanism == "buffered_linear"
    assert "fewest vectors within 0.1 %" in open_ended.reason
    assert recommend(table.rows[:1], 3) is None


def test_a_mechanism_that_was_asked_for_is_among_the_rows(quick):
    spec = spec_of(N, {"kind": "nu_toeplitz", "nu": 0.2})
    assert {"nu": 0.2} in [row.parameters for row in rows_of(compare(spec), "nu_toeplitz")]


def test_what_takes_too_long_is_refused_with_its_estimate(quick):
    table = compare(spec_of(4096), max_seconds=0.1)
    reasons = {refused.mechanism: refused.reason for refused in table.refused}
    assert "above max_seconds=0.1" in reasons["fft"] and "above max_seconds" in reasons["dense"]
    assert "square_root" in {row.mechanism for row in table.rows}


@pytest.fixture
def endless(monkeypatch) -> None:
    """A search for the square root that never ends."""
    from factorize.solvers.formulas import closed_form

    def late(problem, progress):
        while True:
            progress(Progress(iteration=1, relative_gap=None, class_gap=None, seconds=0.0))

    entry = solvers.Entry(late, closed_form.supports, closed_form.estimate)
    monkeypatch.setitem(solvers.SOLVERS, "square_root", (entry,))


def test_what_takes_longer_than_its_estimate_or_fails_is_refused(quick, endless, monkeypatch):
    def fail(problem, progress):
        raise SolveFailed("it has no optimum")

    monkeypatch.setitem(solvers.SOLVERS, "tree", (replace(solvers.SOLVERS["tree"][0], solve=fail),))
    table = compare(spec_of(6), max_seconds=0.1)
    reasons = {refused.mechanism: refused.reason for refused in table.refused}
    assert "was stopped after" in reasons["square_root"] and "it has no optimum" in reasons["tree"]
    assert "identity" in {row.mechanism for row in table.rows}


def test_a_search_that_still_runs_when_the_time_for_solves_is_over_is_stopped(monkeypatch, quick, endless):
    """Nothing is expected to take time, so that all begin; once begun, all have run out of it."""
    monkeypatch.setattr(Deadline, "over", lambda _self, share, needed=0.0: share == SOLVES and needed == 0.0)
    monkeypatch.setattr("factorize.solvers.comparing.plan.leads", lambda *_: [])
    table = compare(spec_of(6), seconds=60)
    late = {refused.mechanism: refused for refused in table.refused if refused.out_of_time}
    assert "was stopped after" in late["square_root"].reason and "--seconds 360" in late["square_root"].reason
    assert "identity" in {row.mechanism for row in table.rows}


def test_progress_counts_and_may_cancel(quick):
    seen = []
    compare(spec_of(6), progress=seen.append)
    assert [step.done for step in seen] == sorted(step.done for step in seen)
    assert {step.done for step in seen} == set(range(seen[0].total))

    def stop(step):
        if step.done == 3:
            raise Cancelled("enough")

    with pytest.raises(Cancelled):
        compare(spec_of(6), progress=stop)


@pytest.mark.parametrize("budget", [{"buffers": -1}, {"bytes_per_parameter": -0.5}, {"bytes_per_parameter": np.nan}])
def test_budgets_are_checked(budget):
    with pytest.raises(InvalidParameter, match="memory for noise state"):
        compare(spec_of(N), **budget)


def test_vectors_are_those_that_the_client_keeps():
    """Every structure that streams."""
    checked = set()
    for mechanism in mechanisms(
        spec_of(N, participation={"kind": "min_sep", "min_sep": 6, "max_participations": 2}), 3
    ):
        if mechanism["kind"] == "semidefinite":
            continue
        spec = spec_of(N, mechanism)
        found = solvers.solve(spec)
        parts = found.strategy.tensors()
        source = noise_source(found.strategy.structure, parts, N, found.digest)
        if isinstance(source, Streamable):
            assert source.cost.vectors == source.recurrence().vectors, mechanism
            checked.add(found.strategy.structure)
        else:
            assert source.cost.vectors == N
    assert {"tree", "banded", "banded_toeplitz", "buffered", "blt", "scaled", "inverse_banded_toeplitz"} <= checked


def test_sampling_adds_rows_for_few_bands_and_sorts_by_the_loss_at_the_privacy(quick, monkeypatch):
    monkeypatch.setattr("factorize.solvers.comparing.plan.optimised", lambda *_: [])
    target = PrivacyTarget(epsilon=4.0, delta=1e-4)
    sampling = SamplingOptions(dataset_size=800, batch_size=100)
    table = compare(spec_of(8), buffers=3, privacy=target, sampling=sampling, samplings=["poisson", "cyclic_poisson"])
    banded = [row for row in table.rows if row.sampling == "cyclic_poisson"]
    assert "banded" in {row.mechanism for row in banded}
    assert all(row.noise_vectors < 8 - 1 for row in banded)
    sampled = [row for row in table.rows if row.sampling == "poisson"]
    assert {row.mechanism for row in sampled} == {"identity"}
    ranks = [row.objective_at_privacy for row in table.rows]
    assert ranks == sorted(ranks)
    plain = {row.mechanism: row for row in rows_of(table, "identity") if not row.sampling}["identity"]
    amplified = next(row for row in sampled if row.mechanism == "identity")
    assert amplified.rmse_at_privacy < plain.rmse_at_privacy
    sigma = amplified.calibration.sigma_of_sums
    assert amplified.rmse_at_privacy == pytest.approx(sigma * plain.loss.rmse / plain.sensitivity.value)


@pytest.mark.parametrize("other", [{"adjacency": "replace_one"}, {"clip_norm": 2.0}, {"divisor": 100}])
def test_rows_are_for_one_adjacency_and_one_clip_norm(other):
    asked = SamplingOptions(dataset_size=2400, batch_size=100, **other)
    with pytest.raises(InvalidParameter, match="rows are for sums, clip norm 1 and zero_out alone") as refusal:
        compare(spec_of(N), privacy=PrivacyTarget(epsilon=4.0, delta=1e-4), sampling=asked)
    assert refusal.value.field == "sampling"


def test_sampling_needs_an_epsilon_and_groups_as_large_as_a_batch(quick):
    with pytest.raises(InvalidParameter, match="epsilon"):
        compare(spec_of(N), sampling=SamplingOptions(dataset_size=2400, batch_size=100))
    with pytest.raises(InvalidParameter, match="epsilon"):
        compare(spec_of(N), privacy=PrivacyTarget(rho=0.1), sampling=SamplingOptions(dataset_size=2400, batch_size=100))
    target = PrivacyTarget(epsilon=4.0, delta=1e-4)
    table = compare(
        spec_of(6),
        buffers=1,
        privacy=target,
        sampling=SamplingOptions(dataset_size=150, batch_size=100),
        samplings=["poisson", "cyclic_poisson"],
    )
    assert [row.mechanism for row in table.rows if row.sampling in ("poisson", "cyclic_poisson")] == ["identity"]
    assert any(refused.reason.startswith("sampled: ") for refused in table.refused)


def test_momentum_has_the_streaming_optimum_of_its_rates_alone(quick) -> None:
    asked = {"kind": "momentum", "n": 24, "momentum": 0.9, "learning_rates": {"kind": "cosine_to_last"}}
    spec = parse_spec({"workload": asked, "participation": {"kind": "fixed_epochs", "epochs": 3}})
    rows = {(row.mechanism, row.optimized_for): row for row in compare(spec, buffers=2).rows}
    assert ("buffered_linear", "schedule") in rows
    assert parse_spec(dict(rows["buffered_linear", "schedule"].spec)).digest


def test_a_memory_beyond_the_steps_of_an_epoch_keeps_the_streaming_optimum() -> None:
    spec = parse_spec({"workload": {"kind": "prefix", "n": 16}, "participation": {"kind": "fixed_epochs", "epochs": 4}})
    found = [one for one in mechanisms(spec.canonical(), 8) if one["kind"] == "buffered_linear"]
    assert found == [{"kind": "buffered_linear", "buffers": 3}]
    bands = [one["bands"] for one in fewer_bands(spec.canonical(), 8) if one["kind"] == "banded"]
    assert bands == [2, 3, 4, 6]
    [largest] = fewer_bands(spec.canonical(), 1)
    assert largest == {"kind": "banded_toeplitz", "bands": 2, "normalization": "columns"}


def test_no_sampling_is_said_to_be_worse_that_was_not_tried():
    best, *others = compare(spec_of(4), buffers=0, privacy=PrivacyTarget(epsilon=2, delta=1e-5), fitting=True).rows
    rows = [best, *(replace(row, sampling="poisson") for row in others)]
    assert recommend(rows, None).reason.endswith("and no sampling does better")
    assert recommend(rows, None, late=True).reason.endswith("not all under sampling was tried in time")


@pytest.mark.parametrize(
    ("samplings", "epochs", "names"),
    [
        ((), 10, [("buffered_linear", None)]),
        (("balls_in_bins",), 4, [("blt", "columns"), ("blt", None)]),
    ],
)
def test_leads_of_long_runs_are_had_in_three_seconds(samplings, epochs, names):
    spec = spec_of(4000, participation=epochs)
    rows = TableRows(PrivacyTarget(epsilon=8.0, delta=1e-6), samplings=samplings)
    plan = ComparisonPlan(spec, (4,), rows, max_seconds=None, seconds=3.0, fitting=True, look=None)
    leads = [one.mechanism for one in plan.attempts(hurried=True) if one.lead]
    assert [(one["kind"], one.get("normalization")) for one in leads] == names


@pytest.mark.parametrize("epochs", [1, 8])
def test_correlated_noise_leads_runs_of_many_steps(epochs: int) -> None:
    spec = parse_spec(
        {
            "workload": {"kind": "prefix", "n": 40_000},
            "participation": {"kind": "fixed_epochs", "epochs": epochs} if epochs > 1 else {"kind": "single"},
            "objective": {"kind": "lambda_tau", "tau": 40_000},
        }
    )
    table = compare(spec, budgets=(4,), seconds=1e-3, fitting=True)
    losses = {row.mechanism: row.loss.objective for row in table.rows}
    first = {1: "buffered_linear", 8: "blt"}[epochs]
    assert set(losses) == {first, "identity"} and losses[first] < 1e-3 * losses["identity"]
    assert table.recommendation is not None and table.rows[table.recommendation.row].mechanism == first
    assert table.solved is not None and table.solved.spec_digest == table.rows[0].spec_digest
    assert {refused.out_of_time for refused in table.refused if "--seconds" in refused.reason} == {True}


def test_more_is_tried_beside_a_lead_near_the_bound_only_in_a_part_of_the_time(monkeypatch) -> None:
    asked = []

    def over(_deadline, share, needed=0.0):
        asked.append(share)
        return share < SOLVES

    monkeypatch.setattr(Deadline, "over", over)
    spec = parse_spec({"workload": {"kind": "prefix", "n": 40_000}, "objective": {"kind": "lambda_tau", "tau": 40_000}})
    table = compare(spec, budgets=(4,), seconds=1000.0, fitting=True)
    assert {row.mechanism for row in table.rows} == {"buffered_linear", "identity"}
    reasons = [refused.reason for refused in table.refused if refused.mechanism == "blt"]
    assert reasons and all(
        "above the certified lower bound" in reason and "--seconds 6000" in reason for reason in reasons
    )


def test_a_certificate_of_columns_that_overlap_and_differ_takes_seconds() -> None:
    """The proof of a bound beside such a result takes as long again, 8 s at n = 10,000, which no limit saw."""
    n = 10_000
    once, epochs = spec_of(n), spec_of(n, None, {"kind": "fixed_epochs", "epochs": 10})
    plain = BltMatrix(np.array([0.5]), np.array([0.9]), n)
    differing = ColumnScaled(plain, np.linspace(1.0, 2.0, n))
    assert certificate_seconds(epochs, differing) > 1 > certificate_seconds(epochs, plain)
    assert certificate_seconds(once, differing) < 1


def test_a_run_too_long_for_advice_is_refused_before_anything_is_solved(monkeypatch) -> None:
    monkeypatch.setattr("factorize.solvers.comparing.compare.solve", None)
    spec = spec_of(10_000_000)
    with pytest.raises(TooLarge, match=r"n=10000000 .* about \d+.* s, above 30 s.*--seconds \d+.*larger batches"):
        compare(spec, budgets=(4,), seconds=10.0, fitting=True)


def test_a_long_schedule_over_epochs_has_a_lead_for_running_sums() -> None:
    workload = {"kind": "schedule", "n": 20_000, "learning_rates": {"kind": "cosine"}}
    spec = parse_spec({"workload": workload, "participation": {"kind": "fixed_epochs", "epochs": 4}})
    plan = ComparisonPlan(spec, (4,), TableRows(None), max_seconds=None, seconds=10.0, fitting=True, look=None)
    leads = [choose(one.spec) for one in plan.attempts(hurried=True) if one.lead and one.spec is not None]
    assert [(one.mechanism.kind, one.optimize_for and one.optimize_for.kind) for one in leads] == [("blt", "prefix")]
