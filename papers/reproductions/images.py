"""Images for logistic regression: MNIST from IDX files, or scikit-learn's digits where none are given."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from papers.training import OuterProducts, SoftmaxRegression

CLASSES = 10
DIGITS_FOR_TRAINING = 1440


@dataclass(frozen=True)
class Images:
    """Training and test images with pixels in [0, 1], float32, shape (examples, pixels), and their labels."""

    train: np.ndarray
    train_labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray

    def model(self) -> SoftmaxRegression:
        """Return logistic regression on the training images."""
        return SingleSoftmax(self.train, self.train_labels, CLASSES)

    def judge(self) -> SoftmaxRegression:
        """Return the same on the test images."""
        return SingleSoftmax(self.test, self.test_labels, CLASSES)


class SingleSoftmax(SoftmaxRegression):
    """Logistic regression whose products are in single precision: half the memory and twice the speed."""

    def __call__(self, weights: np.ndarray, batch: np.ndarray) -> SingleProducts:
        """Return the gradients of the batch's examples."""
        found = super().__call__(weights.astype(np.float32), batch)
        return SingleProducts(found.features, found.residuals)


class SingleProducts(OuterProducts):
    """Outer products whose weighted sums stay in single precision."""

    def weighted_sum(self, weights: np.ndarray) -> np.ndarray:
        """Return one matrix product."""
        return super().weighted_sum(weights.astype(np.float32))


def load_images(mnist: Path | None, *, constant: bool = False) -> Images:
    """Return MNIST in the order of its files, or the digits in a fixed random order.

    Args:
        mnist: folder of the four IDX files, compressed or not; None for the digits.
        constant: append a feature that is 1, for a bias.
    """
    if mnist is None:
        train, train_labels, test, test_labels = _digits()
    else:
        train, test = (read_idx(mnist, f"{part}-images-idx3-ubyte") / np.float32(255) for part in ("train", "t10k"))
        train_labels, test_labels = (read_idx(mnist, f"{part}-labels-idx1-ubyte") for part in ("train", "t10k"))
    train, test = (x.reshape(len(x), -1).astype(np.float32, copy=False) for x in (train, test))
    if constant:
        train, test = (np.hstack([x, np.ones((len(x), 1), dtype=np.float32)]) for x in (train, test))
    return Images(train, train_labels.astype(np.intp), test, test_labels.astype(np.intp))


def read_idx(folder: Path, name: str) -> np.ndarray:
    """Read one IDX file of unsigned bytes, compressed or not.

    Raises:
        SystemExit: the folder has no such file, or it is none of unsigned bytes.
    """
    plain, packed = folder / name, folder / f"{name}.gz"
    if not plain.exists() and not packed.exists():
        raise SystemExit(
            f"{folder} has neither {name} nor {name}.gz; papers/pages/reproductions.md says how to get them"
        )
    content = plain.read_bytes() if plain.exists() else gzip.decompress(packed.read_bytes())
    if content[:3] != b"\x00\x00\x08":
        raise SystemExit(f"{name} is not an IDX file of unsigned bytes")
    sides = np.frombuffer(content, ">u4", count=content[3], offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape([int(side) for side in sides])


def _digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = x[order] / 16, y[order]
    return x[:DIGITS_FOR_TRAINING], y[:DIGITS_FOR_TRAINING], x[DIGITS_FOR_TRAINING:], y[DIGITS_FOR_TRAINING:]
