"""The compiled trace of a resolvent. Imported on first use, since numba is heavy."""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(cache=True, nogil=True)
def resolvent_trace(p, q, weights, shift):
    """Return sum_i weights_i (K^-1)_ii and a bound on its relative error in units of 2^-53.

    K = G G^T + shift diag(weights), G bidiagonal with diagonal p and -q below it. Only positive numbers are added,
    multiplied and divided. Pivots from above, e_i = s_i + q_i^2 e_{i-1} / (p_{i-1}^2 + e_{i-1}), and from below,
    f_i = p_i^2 h_{i+1} / (q_{i+1}^2 + h_{i+1}) with h_i = s_i + f_i, s = shift * weights; (K^-1)_ii = 1 / (e_i + f_i).

    The error bound runs along: eight roundings a step, and the errors of the step before times the derivative
    d log e_i / d log e_{i-1}, which is below 1. The sum is compensated.
    """
    n = p.shape[0]
    below = np.empty(n)
    below_error = np.empty(n)
    below[n - 1] = p[n - 1] * p[n - 1]
    below_error[n - 1] = 1.0
    for i in range(n - 2, -1, -1):
        held = shift * weights[i + 1] + below[i + 1]
        coupling = q[i + 1] * q[i + 1]
        below[i] = p[i] * p[i] * (held / (coupling + held))
        passed = coupling / (coupling + held) * (below[i + 1] / held)
        below_error[i] = 8.0 + passed * below_error[i + 1] * (1.0 + 1e-15)
    total = 0.0
    compensation = 0.0
    worst = 0.0
    above = shift * weights[0]
    above_error = 1.0
    for i in range(n):
        if i > 0:
            square = p[i - 1] * p[i - 1]
            through = q[i] * q[i] * (above / (square + above))
            following = shift * weights[i] + through
            passed = square / (square + above) * (through / following) if following > 0.0 else 0.0
            above_error = 8.0 + passed * above_error * (1.0 + 1e-15)
            above = following
        term = weights[i] / (above + below[i])
        worst = max(worst, above_error, below_error[i])
        adjusted = term - compensation
        added = total + adjusted
        compensation = (added - total) - adjusted
        total = added
    return total, worst + 6.0
