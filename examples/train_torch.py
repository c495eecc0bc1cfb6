"""A private torch job in one call: the digits of scikit-learn, Opacus's clipping, correlated noise.

Trains the same network twice at the same (epsilon, delta): with independent noise (DP-SGD, C = I) and with the
factorization that is optimal for the optimizer's own workload. Solved here, or by a running service with `--service`.

    python examples/train_torch.py --epsilon 2 --epochs 10
    python examples/train_torch.py --sampling balls_in_bins
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from factorize.adapters.private import make_private, workload_of
from factorize.errors import FactorizeError

DELTA = 1e-5


def digits() -> tuple[TensorDataset, torch.Tensor, torch.Tensor]:
    """Return 1797 images of 8 x 8 in one fixed random order: 1440 to train on, 357 for the test."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    images, labels = torch.tensor(x[order] / 16, dtype=torch.float32), torch.tensor(y[order])
    return TensorDataset(images[:1440], labels[:1440]), images[1440:], labels[1440:]


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 10))


def train(args: argparse.Namespace, mechanism: str, seed: int | None) -> tuple[float, str]:
    """Return the test accuracy after the last epoch, and the statement of what it guarantees."""
    data, test_x, test_y = digits()
    model = network()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=args.rate, momentum=0.9)
    steps = args.epochs * (len(data) // args.batch_size)
    participation = {"kind": "fixed_epochs", "epochs": args.epochs}
    spec = {
        "workload": workload_of(optimizer, steps),
        "participation": participation,
        "mechanism": {"kind": mechanism},
        "tolerance": 1e-6,
    }
    settings: dict[str, Any] = {"url": args.service}
    if args.service is None:
        from factorize.solvers import solve

        settings = {"solve": solve}
    private, optimizer, loader, statement = make_private(
        model,
        optimizer,
        DataLoader(data, batch_size=args.batch_size),
        spec,
        epsilon=args.epsilon,
        delta=DELTA,
        epochs=args.epochs,
        sampling=args.sampling,
        seed=seed,
        **settings,
    )
    for _ in range(args.epochs):
        for x, y in loader:
            torch.nn.functional.cross_entropy(private(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    with torch.no_grad():
        accuracy = (private(test_x).argmax(dim=1) == test_y).float().mean()
    return float(accuracy), str(statement)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="torch and Opacus on digits, with independent and correlated noise.")
    parser.add_argument("--service", help="of a running `factorize serve`; without it the factors are solved here")
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--rate", type=float, default=0.1, help="learning rate, for means of gradients")
    parser.add_argument("--sampling", choices=("fixed", "balls_in_bins"), default="fixed", help="how batches are made")
    parser.add_argument("--seed", type=int, help="of the noise, for figures that repeat; a real job leaves it out")
    args = parser.parse_args(argv)
    began = time.monotonic()
    try:
        seed = args.seed
        if seed is not None:  # seeds that can be guessed are refused
            seed = int.from_bytes(hashlib.sha256(b"%d" % seed).digest()[:16], "little")
        results = {name: train(args, kind, seed) for name, kind in (("DP-SGD", "identity"), ("optimal", "auto"))}
    except FactorizeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    for name, (accuracy, statement) in results.items():
        print(f"{name:<8} test accuracy {accuracy:.3f}\n         {statement}")
    print(f"{time.monotonic() - began:.1f} s in all; one draw of the noise each.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
