"""K23, Figure 4: PGD converges, Chess-PGD diverges, though their decoders have the same Frobenius norm."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from factorize.predict import ask
from papers.reproductions.comparison import Comparison
from papers.reproductions.correlated_quadratic import VARIANCES

TITLE = "Koloskova et al. 2023, Figure 4 (example A.1): PGD and Chess-PGD, learning rate 0.02, L = 10"


def chess_rows(n: int) -> Iterator[np.ndarray]:
    """Yield the rows of the chess-board decoder: sqrt(2) where i - j is even and j <= i (K23, example A.1)."""
    for i in range(n):
        row = np.zeros(n)
        row[i % 2 : i + 1 : 2] = math.sqrt(2)
        yield row


class Noising:
    """C^-1 = S^-1 B of a decoder, in memory."""

    def __init__(self, decoder: np.ndarray) -> None:
        self._rows = np.diff(decoder, axis=0, prepend=np.zeros((1, len(decoder))))

    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """Return rows of C^-1."""
        return self._rows[start:stop]

    def shape(self, name: str) -> tuple[int, int]:
        """Return (n, n)."""
        return self._rows.shape


def run(comparison: Comparison) -> None:
    """Print both runs' gradients and draw them, for both readings of the noise (see `correlated_quadratic`)."""
    for reading, variance in VARIANCES.items():
        one_reading(comparison, reading, variance)


def one_reading(comparison: Comparison, reading: str, variance: float) -> None:
    """Print, judge and draw one reading of the noise."""
    steps = 200 if comparison.quick else 2000
    chess = np.array(list(chess_rows(steps)))
    singular = np.linspace(0, math.sqrt(10.0), 100)
    start = np.divide(1.0, singular, out=np.zeros(100), where=singular > 0)
    question = {
        "kind": "quadratic",
        "eigenvalues": (singular**2).tolist(),
        "learning_rate": 0.02,
        "sigma": math.sqrt(variance / 100),
        "initial": start.tolist(),
    }
    paths = {}
    comparison.heading(f"{reading}: squared Frobenius norms, and squared gradients at n/2 and n")
    for name, decoder in (("PGD", np.tri(steps)), ("Chess-PGD", chess)):
        series = ask(question, Noising(decoder)).series
        paths[name] = series["step"], series["squared_gradient"]
        norm = float((decoder**2).sum()) / steps**2
        comparison.row(f"{name}: |B|_F^2 / n^2", None, norm, check=0.5, tolerance=2 / steps)
        comparison.row(f"{name}: gradient at n/2", None, paths[name][1][len(paths[name][1]) // 2])
        comparison.row(f"{name}: gradient at n", None, paths[name][1][-1])
    growth = {name: values[-1] / values[len(values) // 2] for name, (_, values) in paths.items()}
    comparison.claim(f"{reading}: PGD settles at a constant noise level", growth["PGD"] < 1.1)
    comparison.claim(
        f"{reading}: Chess-PGD diverges linearly with n (doubles from n/2 to n)", 1.8 < growth["Chess-PGD"] < 2.2
    )
    suffix = ".png" if reading == next(iter(VARIANCES)) else "-sigma.png"
    with comparison.picture((9, 3.4), 2, suffix=suffix) as figure:
        for panel, scale in zip(figure.axes, ("log", "linear"), strict=True):
            for name, (at, values) in paths.items():
                panel.plot(at, values, "--" if name == "PGD" else "-", label=name)
            panel.set(xlabel="step", ylabel="squared gradient norm", yscale=scale)
            panel.legend(frameon=False)
        figure.suptitle(reading, fontsize=9)
