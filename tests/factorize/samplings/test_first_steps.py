"""The first steps of a run: the block that they release, who can be in them, and what they are worth."""

from fractions import Fraction

import numpy as np
import pytest
from structure_cases import NAMES, strategies

from factorize import Spec, solvers
from factorize.accounting.loss_laws import PoissonLaw
from factorize.errors import InvalidParameter, UnsupportedProblem
from factorize.factors.factorization import Factorization
from factorize.numbers.gaussian import compose_mu, gaussian_epsilon
from factorize.privacy.question import GivenNoise
from factorize.samplings.calibrating import calibrate_sampling
from factorize.samplings.first_steps import first_steps
from factorize.training.stopped_run import epsilon_of_first_steps

EPOCHS, BINS = 3, 6
N = EPOCHS * BINS


def run_of(strategy, **participation):
    return Factorization.from_strategy(Spec.of("prefix", n=N, **participation), strategy)


@pytest.fixture(scope="module")
def run():
    return solvers.solve(Spec.of("prefix", n=N, epochs=EPOCHS, mechanism="blt", buffers=2))


@pytest.mark.parametrize("name", NAMES)
def test_they_have_the_leading_block_and_its_sensitivity(name):
    strategy = strategies(N)[name]
    whole = run_of(strategy, participation="fixed_epochs", epochs=EPOCHS)
    for steps in (1, 5, 6, 7, 12, 17):
        block = first_steps(whole, steps)
        rows, made = block.matrix.dense(), strategy.dense()[:steps, :steps]
        np.testing.assert_allclose(rows[:steps, :steps], made, rtol=1e-12, atol=1e-14)
        patterns = [np.arange(start, steps, BINS) for start in range(min(BINS, steps))]
        released = max(np.linalg.norm(made[:, chosen].sum(axis=1)) for chosen in patterns)
        assert released * (1 - 1e-9) <= block.sensitivity.value <= whole.sensitivity.value * (1 + 1e-9)
        if (made >= 0).all():  # an epoch that is not whole counts as far as it went
            assert block.sensitivity.value <= released * (1 + 1e-6)


@pytest.mark.parametrize("most", [None, 2])
def test_who_may_come_back_later_is_only_in_the_first_steps(most):
    asked = {"participation": "min_sep", "min_sep": 5} | ({} if most is None else {"max_participations": most})
    whole = run_of(strategies(N)["toeplitz"], **asked)
    kinds = [first_steps(whole, steps).spec.participation.document() for steps in (4, 5, 6, N)]
    assert kinds[:2] == [{"kind": "single"}] * 2
    assert kinds[2] == {"kind": "min_sep", "min_sep": 5, "max_participations": 2}
    assert kinds[3] == whole.spec.participation.document()


@pytest.mark.parametrize("sampling", ["fixed", "balls_in_bins"])
def test_epsilon_grows_with_the_steps_to_that_of_the_run(run, sampling):
    def epsilon(**more):
        asked = {"sampling": sampling, "method": "deterministic", **more}
        return calibrate_sampling(run, GivenNoise(sigma=2.0, delta=1e-5), **asked).epsilon

    far = [epsilon(steps=steps) for steps in (1, 6, 7, 12, N)]
    assert far == sorted(far) and far[-1] == pytest.approx(epsilon(), rel=1e-9)
    assert far[1] < 0.8 * far[-1]


def test_the_claim_of_the_first_steps_is_one_of_their_own_file(run):
    found = run.calibrate(sigma=2.0, delta=1e-5, sampling="balls_in_bins", steps=8)
    block = first_steps(run, 8, least=BINS)
    assert found.claim.factors == f"sha256:{block.digest}" and found.claim.tested(block).supported
    assert found.epsilon < run.calibrate(sigma=2.0, delta=1e-5, sampling="balls_in_bins").epsilon


def test_no_other_steps_are_of_the_run(run):
    for steps in (0, N + 1, -1, 2.5, True):
        for sampling in ("fixed", "balls_in_bins"):
            with pytest.raises(InvalidParameter, match=f"steps={steps} is not an integer from 1 to {N}"):
                run.calibrate(sigma=2.0, delta=1e-5, steps=steps, sampling=sampling)


@pytest.mark.parametrize("spent", [0.0, 1e-9, 0.1, 0.3, 0.49])
def test_what_is_left_of_a_budget_composes_with_what_was_spent_to_no_more(run, spent):
    whole = run.calibrate(epsilon=2.0, delta=1e-5)
    rest = run.calibrate(epsilon=2.0, delta=1e-5, spent_mu=spent)
    together = Fraction(spent) ** 2 + Fraction(rest.mu) ** 2
    assert together <= Fraction(whole.mu) ** 2
    assert together >= Fraction(whole.mu) ** 2 * (1 - Fraction(1, 10**11))
    assert gaussian_epsilon(1e-5, compose_mu([spent, rest.mu] if spent else [rest.mu])) <= 2.0 * (1 + 1e-12)


def test_a_spent_budget_has_no_noise(run):
    with pytest.raises(InvalidParameter, match="nothing is left"):
        run.calibrate(mu=0.5, spent_mu=0.5)
    with pytest.raises(InvalidParameter, match="sigma does not name"):
        run.calibrate(sigma=1.0, delta=1e-5, spent_mu=0.5)


@pytest.mark.parametrize(
    ("mechanism", "sampling", "options"),
    [
        ({"kind": "blt", "buffers": 2}, "fixed", {"clip_norm": 0.5, "divisor": 7, "adjacency": "replace_one"}),
        ({"kind": "banded", "bands": 2}, "cyclic_poisson", {"dataset_size": 600, "batch_size": 30}),
        ({"kind": "identity"}, "random_allocation", {"clip_norm": 3.0}),
    ],
)
def test_a_job_that_stops_has_the_epsilon_of_its_steps(mechanism, sampling, options):
    whole = solvers.solve(Spec.of("prefix", n=N, epochs=EPOCHS, mechanism=mechanism["kind"], **_numbers(mechanism)))
    noise = whole.calibrate(epsilon=3.0, delta=1e-6, sampling=sampling, **options)
    stated = [epsilon_of_first_steps(whole, noise.document(), steps) for steps in (0, BINS, 2 * BINS, N)]
    assert stated[0] == 0.0 < stated[1] < stated[2] < stated[3] <= 3.0
    asked = {**options, "divisor": None, "sampling": sampling, "steps": BINS}
    assert stated[1] == whole.calibrate(sigma=noise.sigma_of_sums, delta=1e-6, **asked).epsilon
    assert epsilon_of_first_steps(whole, noise.document(), N, 1e-9) > 3.0


@pytest.mark.parametrize(("bands", "mechanism"), [(1, "identity"), (4, "banded")])
def test_the_groups_of_a_cyclic_run_stay_in_its_first_steps(bands, mechanism):
    own = {} if bands == 1 else {"bands": bands}
    whole = solvers.solve(Spec.of("prefix", n=N, epochs=EPOCHS, mechanism=mechanism, **own))
    asked = {"sigma": 4.0, "delta": 1e-6, "sampling": "cyclic_poisson", "dataset_size": 1000, "batch_size": 50}
    run = whole.calibrate(**asked)
    found = [whole.calibrate(**asked, steps=steps) for steps in range(1, N + 1)]
    assert [(one.groups, one.sampling_probability) for one in found] == [(bands, bands * 50 / 1000)] * N
    assert [one.compositions for one in found] == [-(-steps // bands) for steps in range(1, N + 1)]
    far = [one.epsilon for one in found]
    assert far == sorted(far) and far[-1] == run.epsilon
    one_step = PoissonLaw(1, bands, float(np.linalg.norm(whole.strategy.dense()[0])), bands * 50 / 1000)
    assert far[0] == pytest.approx(one_step.epsilon(4.0, 1e-6), rel=1e-3)
    with pytest.raises(InvalidParameter, match=f"groups={bands - 1} is not an integer >= {bands}; .* its own noise"):
        PoissonLaw.of(whole.strategy, 1000, 50, bands - 1)


@pytest.mark.parametrize("epochs", [1, 2])
def test_random_allocation_covers_whole_epochs_of_its_own_draws(epochs):
    whole = solvers.solve(Spec.of("prefix", n=12, epochs=epochs, mechanism="identity"))
    asked = {"sigma": 2.0, "delta": 1e-5, "sampling": "random_allocation", "bins": 4}
    found = [whole.calibrate(**asked, steps=steps).epsilon for steps in range(1, 13)]
    assert found[::4] == found[1::4] == found[2::4] == found[3::4] and found[-1] == whole.calibrate(**asked).epsilon
    assert found[0] < found[4] < found[8]


def test_the_capacity_of_batches_takes_its_part_of_any_delta(run):
    noise = run.calibrate(epsilon=2.0, delta=1e-5).document()
    assert epsilon_of_first_steps(run, noise, 7, overflow_delta=1e-8) == epsilon_of_first_steps(run, noise, 7)
    given = epsilon_of_first_steps(run, noise, 7, 2e-8, overflow_delta=1e-8)
    assert given == pytest.approx(epsilon_of_first_steps(run, noise, 7, 1e-8), rel=1e-9)
    with pytest.raises(InvalidParameter, match="not above 1e-08, the part that batches of limited capacity take"):
        epsilon_of_first_steps(run, noise, 7, 1e-8, overflow_delta=1e-8)


def test_where_no_epsilon_of_the_first_steps_is_known(run):
    noise = run.calibrate(mu=1.0).document()
    with pytest.raises(InvalidParameter, match="give delta"):
        epsilon_of_first_steps(run, noise, 3)
    assert epsilon_of_first_steps(run, noise, 3, 1e-6) > 0
    with pytest.raises(UnsupportedProblem, match="use the calibration's epsilon"):
        epsilon_of_first_steps(run, {**noise, "second_sigma_of_sums": 1.0}, 3, 1e-6)


def _numbers(mechanism):
    return {name: value for name, value in mechanism.items() if name != "kind"}
