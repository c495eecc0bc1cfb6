"""Private logistic regression, with the noise of each step streamed from a running service.

Trains the same model at the same (epsilon, delta) in four ways: DP-SGD (C = I, independent noise in each step) and
correlated noise, each with batches in one public order and with batches that are drawn at random and kept secret, whose
privacy amplification both may count on. Start a service first:

    factorize serve &
    python examples/train_digits.py --service http://127.0.0.1:8000

Data: the digits of scikit-learn, or with `--mnist FOLDER` the four IDX files of MNIST (plain or .gz).
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from factorize.client import Event, Factors, load
from factorize.errors import FactorizeError
from factorize.privacy import Calibration, PrivacyTarget
from factorize.training import schedule_rates
from factorize.training.learning_rate import rate_for
from factorize.training.orders import balls_in_bins, fixed_order

CURVE_POINTS = 40
COSINE = {"kind": "cosine"}
"""The schedule: from the largest learning rate to zero along half a cosine."""


@dataclass(frozen=True)
class Data:
    """Examples with a constant feature appended; labels are 0..9."""

    name: str
    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray


@dataclass(frozen=True)
class Setting:
    """The setting that all ways share. `batch_size` is the public divisor of every mean, even of random batches."""

    batches: int
    batch_size: int
    epochs: int
    clip_norm: float
    target: PrivacyTarget

    @property
    def steps(self) -> int:
        """The n of the factorization."""
        return self.batches * self.epochs

    @property
    def examples(self) -> int:
        """Return how many examples train: what fills no batch is left out."""
        return self.batches * self.batch_size


@dataclass(frozen=True)
class Way:
    """One way to train: a mechanism, the law by which examples get into batches, and the batches of one run."""

    name: str
    mechanism: dict[str, Any]
    sampling: str
    order: Callable[[Setting, int], Iterable[np.ndarray]]

    def spec(self, setting: Setting) -> dict[str, Any]:
        """Return what the service is asked for; under balls in bins, the C that is best with their amplification."""
        spec = {
            "workload": {"kind": "schedule", "n": setting.steps, "learning_rates": COSINE},
            "participation": {"kind": "fixed_epochs", "epochs": setting.epochs},
            "mechanism": self.mechanism,
            "tolerance": 1e-2,
        }
        if self.sampling == "balls_in_bins":
            target = setting.target
            spec["sampling"] = {"kind": "balls_in_bins", "epsilon": target.epsilon, "delta": target.delta}
        return spec

    def calibrate(self, setting: Setting, factors: Factors) -> Calibration:
        """Return the noise, which is for sums; Poisson sampling also counts on how many of the examples a batch has."""
        sizes = {"dataset_size": setting.examples, "batch_size": setting.batch_size}
        return factors.calibrate(
            setting.target,
            clip_norm=setting.clip_norm,
            divisor=setting.batch_size,
            sampling=self.sampling,
            **(sizes if self.sampling == "poisson" else {}),
        )


def public_order(setting: Setting, seed: int) -> Iterable[np.ndarray]:
    """Batch j of every epoch holds the same examples, as the sensitivity assumes; nothing is secret."""
    return fixed_order(setting.examples, setting.batch_size, epochs=setting.epochs)


def poisson_order(setting: Setting, seed: int) -> Iterable[np.ndarray]:
    """Every example is in every batch with probability 1 / batches. Here too a real job draws a secret seed."""
    rng = np.random.default_rng((1, seed))
    return (np.flatnonzero(rng.random(setting.examples) < 1 / setting.batches) for _ in range(setting.steps))


def bins_order(setting: Setting, seed: int) -> Iterable[np.ndarray]:
    """Every example draws its batch of the epoch once. Without a key `balls_in_bins` draws a secret one."""
    key = hashlib.sha256(b"train_digits %d" % seed).digest()
    return balls_in_bins(setting.examples, setting.batches, setting.epochs, key)


_BLT = {"kind": "blt", "buffers": 2, "normalization": "fitted"}
WAYS = (
    Way("DP-SGD, public order", {"kind": "identity"}, "fixed", public_order),
    Way("buffered, public order", {"kind": "buffered_linear", "buffers": 4}, "fixed", public_order),
    Way("DP-SGD, secret Poisson", {"kind": "identity"}, "poisson", poisson_order),
    Way("recommended, secret bins", _BLT, "balls_in_bins", bins_order),
)
"""The ways; the last is what `factorize recommend sgd --learning-rates cosine` answers for these numbers."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one way: `curves` holds the test accuracy of each run at the steps `at`."""

    name: str
    factors: Factors
    calibration: Calibration
    rate: float
    at: np.ndarray
    curves: np.ndarray

    @property
    def accuracy(self) -> float:
        """Return the mean over the runs, after the last step."""
        return float(self.curves[:, -1].mean())

    @property
    def standard_error(self) -> float:
        """Return the standard error of that mean, from the spread of the runs."""
        return float(self.curves[:, -1].std(ddof=1) / np.sqrt(len(self.curves)))


def load_digits() -> Data:
    """Return 1797 images of 8 x 8 in one fixed random order: 1440 to train on, 357 for the test."""
    from sklearn.datasets import load_digits as bundled

    x, y = bundled(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = with_constant(x[order] / 16), y[order]
    return Data("digits", x[:1440], y[:1440], x[1440:], y[1440:])


def load_mnist(folder: Path) -> Data:
    """60,000 training and 10,000 test images of 28 x 28, as published; the training images in a fixed random order."""
    parts = [
        read_idx(folder, f"{part}-{kind}") for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
    ]
    train_x, test_x = (with_constant(images.reshape(len(images), -1) / 255) for images in parts[::2])
    order = np.random.default_rng(0).permutation(len(train_x))
    return Data("MNIST", train_x[order], parts[1][order].astype(int), test_x, parts[3].astype(int))


def read_idx(folder: Path, name: str) -> np.ndarray:
    """Read one IDX file of bytes: two zeros, type 8, the number of sides, the sides in big-endian, the data."""
    found = next((p for p in (folder / f"{name}-ubyte", folder / f"{name}-ubyte.gz") if p.exists()), None)
    if found is None:
        raise SystemExit(f"{folder} has no {name}-ubyte or {name}-ubyte.gz; unpack the four MNIST files there")
    raw = gzip.decompress(found.read_bytes()) if found.suffix == ".gz" else found.read_bytes()
    sides = np.frombuffer(raw, ">u4", count=raw[3], offset=4).astype(int)
    if raw[:3] != b"\0\0\x08" or len(raw) != 4 + 4 * len(sides) + sides.prod():
        raise SystemExit(f"{found} is no IDX file of bytes, or it is cut; download it again")
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * len(sides)).reshape(sides)


def with_constant(x: np.ndarray) -> np.ndarray:
    return np.hstack([x, np.ones((len(x), 1))])


def clipped_gradient_sum(weights: np.ndarray, x: np.ndarray, y: np.ndarray, clip_norm: float) -> np.ndarray:
    """Return the sum over the batch of each example's gradient, scaled to norm clip_norm at most.

    The gradient of one example is the outer product of x and (softmax(x W) - onehot(y)), so its norm is the product of
    their norms and no gradient per example is ever stored.
    """
    scores = x @ weights
    scores -= scores.max(axis=1, keepdims=True)
    residual = np.exp(scores)
    residual /= residual.sum(axis=1, keepdims=True)
    residual[np.arange(len(y)), y] -= 1.0
    norms = np.linalg.norm(x, axis=1) * np.linalg.norm(residual, axis=1)
    scale = clip_norm / np.maximum(norms, clip_norm)
    return (x * scale[:, None]).T @ residual


def accuracy(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    return float((np.argmax(x @ weights, axis=1) == y).mean())


def train(
    data: Data,
    setting: Setting,
    way: Way,
    factors: Factors,
    noise: Calibration,
    *,
    rate: float,
    seed: int,
    at: Sequence[int],
) -> tuple[np.ndarray, np.ndarray]:
    """Train once; return the weights, and the test accuracy after each step that `at` names.

    The seeds are fixed here so that the figures repeat. A real job draws secrets.randbits(128) and hides it.
    """
    weights = np.zeros((data.train_x.shape[1], 10))
    rates, curve = rate * np.array(schedule_rates(COSINE, setting.steps)), []
    drawn = factors.noise(noise, weights.shape, seed=(1 << 64) + seed, auditor="not_looked_at")  # `way` has the order
    for step, batch in enumerate(way.order(setting, seed)):
        total = clipped_gradient_sum(weights, data.train_x[batch], data.train_y[batch], setting.clip_norm)
        weights -= rates[step] * drawn.add_to_sum(total) / setting.batch_size
        if step + 1 in at:
            curve.append(accuracy(weights, data.test_x, data.test_y))
    drawn.close()  # two ways have one strategy; a real job never makes its noise again
    return weights, np.array(curve)


def compete(way: Way, data: Data, setting: Setting, url: str, runs: int) -> Outcome:
    """Get one way's factors from the service, and train `runs` times at the rate that its noise asks for."""
    factors = load(way.spec(setting), url=url, progress=lambda event: report(way.name, event))
    noise = way.calibrate(setting, factors)
    rate = rate_for("sgd", 0.0, data.train_x.shape[1] * 10, factors, noise)
    assert rate is not None
    at = np.unique(np.linspace(1, setting.steps, CURVE_POINTS).astype(int))
    curves = [
        train(data, setting, way, factors, noise, rate=rate, seed=seed, at=at.tolist())[1] for seed in range(runs)
    ]
    return Outcome(way.name, factors, noise, rate, at, np.array(curves))


def report(name: str, event: Event) -> None:
    gap = event.data.get("relative_gap")
    if gap is not None:
        print(f"  solving {name}: certified gap {gap:.1e}", file=sys.stderr)


def describe(data: Data, setting: Setting) -> None:
    target = setting.target
    print(
        f"{data.name}: {setting.examples} of {len(data.train_y)} training examples used, "
        f"{len(data.test_y)} test examples, {data.train_x.shape[1] - 1} features\n"
        f"({target.epsilon:g}, {target.delta:g})-differential privacy, adjacency zero_out, clip norm "
        f"{setting.clip_norm:g}\n{setting.epochs} epochs of {setting.batches} batches of {setting.batch_size}, on "
        f"average where they are random: n = {setting.steps} steps\n"
    )


def table(outcomes: Sequence[Outcome], setting: Setting, runs: int, seconds: float) -> None:
    print("how                       sensitivity           sigma of a mean  learning rate  test accuracy")
    for out in outcomes:
        stated = f"{out.factors.sensitivity.value:.4f} ({out.factors.sensitivity.kind})"
        print(
            f"{out.name:<24}  {stated:<20}  {out.calibration.sigma_of_means:<15.4f}  {out.rate:<13.4g}  "
            f"{out.accuracy:.4f} +- {out.standard_error:.4f}"
        )
    print(
        f"\nMeasured: accuracy on the test data after the last step, mean and standard error over {runs} draws of the "
        f"noise on one split of the data.\nEach way takes the learning rate that its noise asks for (docs/choose.md), "
        f"which falls to zero along a cosine; no look at the data chose it.\n"
        f"{verdict(outcomes)}\n{seconds:.1f} s in all."
    )


def verdict(outcomes: Sequence[Outcome]) -> str:
    """Say where correlated noise pays: in a public order, and with secret bins, each beside DP-SGD."""
    plain, public, poisson, recommended = (outcome.accuracy for outcome in outcomes)
    gain, beside, secret = (100 * one for one in (public - plain, public - poisson, recommended - poisson))
    return (
        f"Correlated noise in a public order, which needs no secret, brings {gain:+.1f} points of accuracy, and is "
        f"{beside:+.1f} points from DP-SGD with Poisson\nbatches, which a loader has to hide for ever. With bins as "
        f"secret, what `factorize recommend` names is {secret:+.1f} points from it."
    )


def plot(outcomes: Sequence[Outcome], setting: Setting, name: str, path: str) -> None:
    """Draw mean accuracy over steps, with a band of two standard errors."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for out in outcomes:
        mean, error = out.curves.mean(axis=0), out.curves.std(axis=0, ddof=1) / np.sqrt(len(out.curves))
        axes.plot(out.at, mean, label=f"{out.name}: {out.accuracy:.3f} at the end")
        axes.fill_between(out.at, mean - 2 * error, mean + 2 * error, alpha=0.25)
    for epoch in range(1, setting.epochs):
        axes.axvline(epoch * setting.batches, color="0.9", linewidth=0.8, zorder=0)
    least = min(out.accuracy for out in outcomes) - 0.1  # the ends are told apart there
    axes.set(xlabel="step", ylabel="test accuracy", xlim=(0, setting.steps), ylim=(least, 1))
    target = setting.target
    axes.set_title(f"{name}, logistic regression, ({target.epsilon:g}, {target.delta:g})-DP", fontsize=11)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="DP-SGD beside correlated noise, with public and with secret batches, on real data."
    )
    parser.add_argument("--service", default="http://127.0.0.1:8000", help="of a running `factorize serve`")
    parser.add_argument(
        "--mnist", type=Path, metavar="FOLDER", help="train on the IDX files of MNIST instead of digits"
    )
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--epochs", type=int, help="default 10, for MNIST 2")
    parser.add_argument("--batch-size", type=int, help="default 30, for MNIST 600")
    parser.add_argument("--clip-norm", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=20, help="draws of the noise to average over, at least 2")
    parser.add_argument("--plot", metavar="FILE.png", help="draw the accuracy over the steps")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    began = time.monotonic()
    data = load_mnist(args.mnist) if args.mnist else load_digits()
    batch_size = args.batch_size or (600 if args.mnist else 30)
    batches = len(data.train_y) // batch_size  # the last, smaller batch is dropped: n = epochs x batches exactly
    if batches < 1 or args.runs < 2:
        raise SystemExit(f"need --runs of 2 or more and a --batch-size of at most {len(data.train_y)}")
    try:
        target = PrivacyTarget(epsilon=args.epsilon, delta=args.delta)
        setting = Setting(batches, batch_size, args.epochs or (2 if args.mnist else 10), args.clip_norm, target)
        describe(data, setting)
        with threadpool_limits(1):  # the products are so small that threads would mostly wait for each other
            outcomes = [compete(way, data, setting, args.service, args.runs) for way in WAYS]
    except FactorizeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 5 if error.slug == "service-unreachable" else 3
    table(outcomes, setting, args.runs, time.monotonic() - began)
    if args.plot:
        plot(outcomes, setting, data.name, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
