"""The noise that reaches R24's outputs: per release, and in x_T with and without curvature.

Correlated noise makes each release q~_t far better. It need not make the output better: independent noise averages out
over the rounds and correlated noise does not. These numbers are exact for quadratic losses without projection, and say
which it is before anything is trained.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from factorize.errors import InvalidParameter


@dataclass(frozen=True)
class Mu2Noise:
    """Variances per coordinate at unit clip and noise multiplier (times sens(C)^2), with the steps' scale left out.

    Attributes:
        release: mean over rounds of the variance of q~_t.
        flat: variance of x_T / eta where the loss is linear.
        curved: variance of x_T / eta where the loss has the given curvature.
        release_root: sens(C) times the mean over rounds of the standard deviation of q~_t (gbar of the utility bound).
    """

    release: float
    flat: float
    curved: float
    release_root: float


def mu2_noise(
    noising: np.ndarray, sensitivity: float, *, curvature: float = 1.0, learning_rate: float | None = None
) -> Mu2Noise:
    """Return the exact noise of DP-mu^2 with the noising matrix C^-1, for one machine.

    On f = curvature x^2 / 2 the estimate is q_t = t curvature x_t plus row t of S C^-1 Z; the coefficients of x_T on Z
    follow the algorithm's recursion.

    Args:
        noising: C^-1, shape (T, T); the identity's first differences (C = S) are the independent noise of the paper.
        sensitivity: sens(C), certified.
        curvature: curvature of `curved`, relative to the smoothness L = 1.
        learning_rate: eta, relative to L = 1; 1/(4T) by default.

    Raises:
        InvalidParameter: C^-1 is not square, or T < 2.

    Reference:
        Mathematics L.4 (papers/pages/algorithms.md): T = 64, 600, 6000 for C = S^(1/2).
    """
    rounds = len(noising)
    if noising.shape != (rounds, rounds) or rounds < 2:
        raise InvalidParameter(f"C^-1 is square with at least 2 rounds; got shape {noising.shape}", field="noising")
    eta = 1 / (4 * rounds) if learning_rate is None else learning_rate
    released = np.cumsum(noising, axis=0)
    squares = np.einsum("ij,ij->i", released, released)
    scale = sensitivity**2
    return Mu2Noise(
        release=scale * float(squares.mean()),
        flat=scale * _output(released, 0.0, eta),
        curved=scale * _output(released, curvature, eta),
        release_root=sensitivity * float(np.sqrt(squares).mean()),
    )


def _output(released: np.ndarray, curvature: float, eta: float) -> float:
    """Return |coefficients of x_T / eta on Z|^2: w_{t+1} = w_t - eta q~_t, x_{t+1} = (t x_t + 2 w_{t+1})/(t+2)."""
    w, x = np.zeros((2, released.shape[1]))
    for t in range(1, len(released)):  # the last round's release does not reach x_T
        w = w - released[t - 1] - eta * t * curvature * x
        x = (t * x + 2 * w) / (t + 2)
    return float(x @ x)
