"""C24, Figure 4, on the user's data: nu-DP-FTRL against DP-SGD, trees, stamped mechanisms and the optimum ("ME").

The protocol is appendix G's: 20 passes of 100 batches, clip norm 1, momentum 0.95 (none for DP-SGD), rates that cool
down linearly to 0.05 over the last quarter, a grid of rates chosen on training data, 12 seeds. The model is logistic
regression on the raw features, not the paper's networks: accuracies are not comparable with the printed ones, and none
is compared. A module of torch takes its place with `papers.training.torch_gradients`. "x S" is a mechanism that is
begun anew S times.
"""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path

import numpy as np

from factorize.factors.factorization import Factorization
from factorize.noise.normals import MIN_SEED
from factorize.privacy import PrivacyTarget
from factorize.solvers import solve
from factorize.spec import parse_spec
from factorize.training import Order, fixed_order
from papers.algorithms import StampedNoise
from papers.reproductions.comparison import Comparison, mean_and_error
from papers.reproductions.images import Images, load_images
from papers.reproductions.kept_results import KeptResults
from papers.reproductions.user_data import load_npz
from papers.training import PrivateSums, Sgd, cool_down_rates, dp_ftrl, method_spec, ones
from papers.training.specs import Method

TITLE = "Choquette-Choo et al. 2024, Figure 4 (CIFAR-10, StackOverflow): its protocol on the user's data"

EPSILONS, DELTA = (1.0, 4.0, 10.0), 1e-6
EPOCHS, PER_EPOCH, SEEDS, MOMENTUM, FINAL = 20, 100, 12, 0.95, 0.05
RATES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
METHODS: dict[str, tuple[Method, int]] = {
    "DP-SGD": ("dp_sgd", 1),
    "tree (Honaker)": ("tree", 1),
    "tree (Honaker) x 5": ("tree", 5),
    "nu-DP-FTRL": ("nu_dp_ftrl", 1),
    "nu-DP-FTRL x 5": ("nu_dp_ftrl", 5),
    "ME (optimum)": ("dp_mf", 1),
}
"""The method and the stamps of each name."""


def run(comparison: Comparison, npz: Path | None) -> None:
    """Choose rates on training data, then print test accuracies over fresh seeds."""
    quick = comparison.quick
    data: Images = load_npz(npz) if npz else load_images(None)
    epochs, per_epoch = (5, 4) if quick else (EPOCHS, PER_EPOCH)
    batch = len(data.train) // per_epoch
    if batch < 1:
        raise SystemExit(f"{len(data.train)} training examples are too few for {per_epoch} batches; give more")
    seeds = range(100, 102 if quick else 100 + SEEDS)
    rates, epsilons = (RATES[3:6:2], EPSILONS[-1:]) if quick else (RATES, EPSILONS)
    comparison.remark(
        f"{len(data.train)} examples, {epochs} x {per_epoch} steps of {batch}, delta {DELTA:g}, zero-out, noise "
        f"multiplier by exact calibration; logistic regression; rates chosen on training accuracy of one other seed; "
        f"{len(seeds)} seeds"
    )
    digest = hashlib.sha256(data.train.tobytes() + data.train_labels.tobytes()).hexdigest()
    settings = {"data": digest, "epochs": epochs, "steps": per_epoch}
    kept = KeptResults(comparison.path(".trials.json"), {**settings, "rates": rates, "epsilons": epsilons})
    order = fixed_order(len(data.train), batch, epochs=epochs, batches=per_epoch)
    for epsilon in epsilons:
        comparison.heading(f"epsilon {epsilon:g}: test accuracy, %")
        found = {}
        for name, (method, stamps) in METHODS.items():
            factors = factorization(method, epochs, per_epoch, stamps)
            target = PrivacyTarget(epsilon=epsilon, delta=DELTA)
            momentum = 0.0 if method == "dp_sgd" else MOMENTUM
            label, once = f"{epsilon} {name}", partial(trial, data, order, factors, stamps, target, momentum)
            swept = {rate: kept.once(f"{label} {rate}", partial(once, rate, seed=1))[0] for rate in rates}
            best = max(swept, key=swept.__getitem__)
            tests = [kept.once(f"{label} {best} {seed}", partial(once, best, seed=seed))[1] for seed in seeds]
            found[name] = mean_and_error([float(value) for value in tests])
            comparison.row(f"{name}, rate {best:g}", None, found[name][0], error=found[name][1])
        for other in ("DP-SGD", "tree (Honaker) x 5"):
            gain = found["nu-DP-FTRL"][0] - found[other][0]
            error = float(np.hypot(found["nu-DP-FTRL"][1], found[other][1]))
            text = f"eps {epsilon:g}: nu-DP-FTRL is above {other}, by {gain:+.2f} +- {error:.2f}"
            comparison.claim(text, gain > 2 * error, tied=abs(gain) <= 2 * error)


def factorization(method: Method, epochs: int, per_epoch: int, stamps: int) -> Factorization:
    """Return C of one copy: the epochs of one stamp."""
    each = epochs // stamps
    spec = method_spec(method, ones(each * per_epoch), epochs=each)
    return solve(parse_spec({**spec, "tolerance": 1e-4}), evidence=False)


def trial(
    data: Images,
    order: Order,
    factors: Factorization,
    stamps: int,
    target: PrivacyTarget,
    momentum: float,
    rate: float,
    *,
    seed: int,
) -> np.ndarray:
    """Train once and return training and test accuracy in percent."""
    model, steps, divisor = data.model(), len(order), len(order[0])
    noise = StampedNoise(factors, target, model.shape, stamps=stamps, divisor=divisor, seed=MIN_SEED + seed)
    schedule = cool_down_rates(steps, last=steps // 4, final=FINAL)
    optimizer = Sgd(learning_rate=rate, momentum=momentum, schedule=schedule)
    done = dp_ftrl(model, np.zeros(model.shape), order, PrivateSums(noise), optimizer=optimizer)
    return 100 * np.array([model.accuracy(done.weights), data.judge().accuracy(done.weights)])
