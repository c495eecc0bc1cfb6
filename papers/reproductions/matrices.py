"""K23, Figure 6: the decoders B of DP-MF and of DP-MF+, and what "block-like structure" means in numbers.

The paper states neither n nor tau of the pictures. tau divides n here, as it must for whole blocks.
"""

from __future__ import annotations

import numpy as np

from factorize.api.pictures.views import picture
from factorize.factors.factorization import Factorization
from papers.reproductions.comparison import Comparison
from papers.reproductions.kept_results import prefix_sums

TITLE = "Koloskova et al. 2023, Figure 6: B_MF and B_MF+ as heatmaps"

STEPS, TAU = 256, 32


def factorized(steps: int, tau: int | None) -> Factorization:
    """Return the optimum for plain sums, or for Lambda_tau."""
    objective = {"kind": "mean"} if tau is None else {"kind": "lambda_tau", "tau": tau}
    return prefix_sums(steps, {"kind": "dense"}, objective=objective, tolerance=1e-9)


def run(comparison: Comparison) -> None:
    """Check the structure and draw both decoders."""
    steps, tau = (64, 16) if comparison.quick else (STEPS, TAU)
    plain, plus = factorized(steps, None), factorized(steps, tau)
    comparison.remark(f"n = {steps}, tau = {tau}; no noise multiplier: sens(C) = 1 for both")
    comparison.heading("largest entries of C^-1 and distances of B, 0 where the structure is exact")
    found = {}
    for name, factors in (("B_MF", plain), ("B_MF+", plus)):
        found[name] = structure(factors, tau)
        for what, value in found[name].items():
            comparison.row(f"{name}: {what}", None, value)
    outside, constant, repeated = found["B_MF+"].values()
    comparison.claim(
        "tau enforces blocks: C^-1 of DP-MF+ has nothing outside them, a restart each tau steps", outside == 0
    )
    comparison.claim("a block's noise stays in all later sums unchanged: B is constant below it", constant < 1e-12)
    comparison.claim("the bands recur at intervals of tau: B shifted by tau is B", repeated < 1e-12)
    comparison.claim("none of this is so for B_MF", min(found["B_MF"].values()) > 0.01)
    short = factorized(tau, None).rows("B", 0, tau)
    first = plus.rows("B", 0, tau)[:, :tau]
    comparison.claim(
        "a block is not the optimum for tau plain sums: its last sum, kept for ever, counts for more",
        bool(np.linalg.norm(first[-1]) < 0.99 * np.linalg.norm(short[-1])),
    )
    figure = picture("matrices", [plain, plus], ["B"])
    figure.savefig(comparison.path(".png"), dpi=110)
    comparison.remark(f"picture: {comparison.path('.png')}")


def structure(factors: Factorization, tau: int) -> dict[str, float]:
    """Return how far C^-1 and B are from blocks of length tau."""
    n = factors.spec.workload.n
    noising, decoder = factors.rows("C_inv", 0, n), factors.rows("B", 0, n)
    block = np.arange(n) // tau
    ends = decoder[tau - 1 :: tau]  # one row per block, its last; columns of earlier blocks are compared
    below = [np.abs(np.diff(ends[index:, block == index], axis=0)).max() for index in range(n // tau - 1)]
    return {
        "largest entry of C^-1 outside blocks": float(np.abs(noising[block[:, None] != block]).max()),
        "largest change of B below a block": float(max(below)),
        "largest change of B under a shift by tau": float(np.abs(decoder[tau:, tau:] - decoder[:-tau, :-tau]).max()),
    }
