"""The published training algorithms on one problem, at one guarantee, each with the factorization made for it.

    python -m papers.compare_algorithms [--epsilon 4] [--runs 5]

One pass over the digits of scikit-learn in a fixed order, logistic regression, (epsilon, 1e-5)-differential privacy
with zero-out adjacency. Every method gets the same sweep of learning rates (chosen by the accuracy on the training data
with seeds that are not used again). Nothing is downloaded, and the factorizations are solved here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from threadpoolctl import threadpool_limits

from factorize.factors.factorization import Factorization
from factorize.noise.normals import MIN_SEED
from factorize.privacy import PrivacyTarget
from factorize.solvers import solve
from factorize.spec import parse_spec
from factorize.training import fixed_order
from papers.algorithms import Ball, Machine, accelerated_dp_srgd, dp_srg, mu2_workload, srg_workload, untrusted_mu2
from papers.training import FactorizationNoise, PrivateSums, Run, Sgd, SoftmaxRegression, dp_ftrl, method_spec, ones

BATCH = 30
EXAMPLES = 1440
STEPS = EXAMPLES // BATCH
MOMENTUM, DECAY = 0.9, 0.1
RATES = tuple(0.1 * 2.0**k for k in range(9))
TUNING_SEEDS = range(1000, 1002)

Train = Callable[[PrivateSums, float], Run]


def load_digits() -> tuple[SoftmaxRegression, SoftmaxRegression]:
    """Return training and test data, in one fixed random order."""
    from sklearn.datasets import load_digits as bundled

    x, y = bundled(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = x[order] / 16, y[order]
    return SoftmaxRegression(x[:EXAMPLES], y[:EXAMPLES], 10), SoftmaxRegression(x[EXAMPLES:], y[EXAMPLES:], 10)


def solved(method: str, workload: dict, **options: object) -> Factorization:
    return solve(parse_spec({**method_spec(method, workload, **options), "tolerance": 1e-4}))


def methods(model: SoftmaxRegression) -> dict[str, tuple[Factorization, Train]]:
    """Return each method's factorization, and how it trains with a door and a learning rate."""
    start, order = np.zeros(model.shape), fixed_order(EXAMPLES, BATCH)
    momentum = Sgd(learning_rate=1.0, momentum=MOMENTUM).workload(STEPS)

    def ftrl(mu: float, sums: PrivateSums, rate: float) -> Run:
        return dp_ftrl(model, start, order, sums, optimizer=Sgd(learning_rate=rate, momentum=mu))

    def srg(sums: PrivateSums, rate: float) -> Run:
        return dp_srg(model, start, order, sums, decay=DECAY, optimizer=Sgd(learning_rate=rate, momentum=MOMENTUM))

    def accelerated(sums: PrivateSums, rate: float) -> Run:
        return accelerated_dp_srgd(model, start, order, sums, beta=10 / rate, project=Ball(20.0))

    def mu2(sums: PrivateSums, rate: float) -> Run:
        machine = Machine(model, order, sums)
        return untrusted_mu2([machine], start, learning_rate=rate / STEPS, project=Ball(20.0))

    return {
        "DP-SGD": (solved("dp_sgd", ones(STEPS)), partial(ftrl, 0.0)),
        "DP-MF": (solved("dp_mf", ones(STEPS)), partial(ftrl, 0.0)),
        "DP-MF+, tau = 12": (solved("dp_mf_plus", ones(STEPS), tau=12), partial(ftrl, 0.0)),
        "nu-DP-FTRL": (solved("nu_dp_ftrl", ones(STEPS)), partial(ftrl, 0.0)),
        "DP-MF, momentum, ones": (
            solved("dp_mf", momentum, optimize_for=ones(STEPS)),
            partial(ftrl, MOMENTUM),
        ),
        "DP-MF, momentum, true": (solved("dp_mf", momentum), partial(ftrl, MOMENTUM)),
        "DP-SRG, true": (solved("dp_mf", srg_workload(STEPS, momentum=MOMENTUM, decay=DECAY)), srg),
        "Accelerated-DP-SRGD": (solved("dp_mf", ones(STEPS)), accelerated),
        "DP-mu^2, q": (solved("dp_mf", mu2_workload(STEPS, "q")), mu2),
        "DP-mu^2, x": (solved("dp_mf", mu2_workload(STEPS, "x")), mu2),
    }


def accuracies(
    model: SoftmaxRegression,
    judge: SoftmaxRegression,
    factors: Factorization,
    train: Train,
    target: PrivacyTarget,
    rate: float,
    seeds: Sequence[int],
) -> np.ndarray:
    """Train once per seed. Seeds are fixed so that the figures repeat; a real job draws secrets.randbits(128)."""
    found = []
    for seed in seeds:
        noise = FactorizationNoise(factors, target, model.shape, clip_norm=1.0, divisor=BATCH, seed=MIN_SEED + seed)
        found.append(judge.accuracy(train(PrivateSums(noise), rate).weights))
        noise.close()  # other algorithms are compared with the same draws
    return np.array(found)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The published training algorithms at one guarantee, on digits.")
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--runs", type=int, default=5, help="draws of the noise to average over, at least 2")
    args = parser.parse_args(argv)
    if args.runs < 2:
        raise SystemExit("need --runs of 2 or more, for a standard error")
    target = PrivacyTarget(epsilon=args.epsilon, delta=1e-5)
    model, test = load_digits()
    guarantee = f"({args.epsilon:g}, 1e-5)-DP (zero-out)"
    print(f"{STEPS} steps of {BATCH}, {guarantee}, noise multiplier {target.noise_multiplier:.3f}")
    print(f"{'method':<22} {'rate':>6}  test accuracy")
    with threadpool_limits(1):
        for name, (factors, train) in methods(model).items():
            score = partial(accuracies, model, model, factors, train, target)
            rate = max(RATES, key=lambda one, score=score: float(score(one, TUNING_SEEDS).mean()))
            found = accuracies(model, test, factors, train, target, rate, range(args.runs))
            error = found.std(ddof=1) / np.sqrt(len(found))
            print(f"{name:<22} {rate:>6.2f}  {found.mean():.3f} +- {error:.3f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
