"""Columns of the inverse of a recursion with redraws, and their products, as pairs of doubles with a proven bound."""

from __future__ import annotations

import numba
import numpy as np

from factorize.checker.losses.variance_kernels import _plus, _times

_ONE = 2.0**-100 * (1 + 2.0**-20)  # lost by a sum or a product, of its terms; the rest covers the sums of bounds
_LEAST = 1e-280  # lost by a product below the normal range, and far more than that


@numba.njit(cache=True, nogil=True)
def columns(decay, output, inputs, direct, reciprocals, lag, starts, high, low, defects):
    """Write the columns `starts` of the inverse of K, and bounds on the squared norms of what K makes of them, less I.

    Row by row, y_i = (e_i - output_i . s - sum_m direct[m, i] y_{i - m lag}) / direct[0, i]; the states s are those of
    K for these y but for `lost`, which moves on as they do. See exact/structures/redrawn.py.

    Args:
        decay: shape (n, buffers).
        output: shape (n, buffers).
        inputs: shape (redraws + 1, n, buffers).
        direct: shape (redraws + 1, n).
        reciprocals: of direct[0], pairs, shape (n, 2), within 2^-104.
        lag: steps.
        starts: ascending, shape (k,).
        high: zeros, shape (n, k).
        low: zeros, shape (n, k).
        defects: shape (k,).

    Returns:
        Whether every number stayed below 1e100.
    """
    n, buffers = decay.shape
    k, most = len(starts), len(direct)
    sh, sl, lost = np.zeros((buffers, k)), np.zeros((buffers, k)), np.zeros((buffers, k))
    defects[:] = 0.0
    for i in range(starts[0], n):
        for c in range(k):
            if starts[c] > i:
                break
            h, rest, size = (1.0 if starts[c] == i else 0.0), 0.0, 0.0
            behind = 0.0
            for a in range(buffers):
                th, tl = _times(sh[a, c], sl[a, c], -output[i, a], 0.0)
                h, rest = _plus(h, rest, th, tl)
                size += abs(th) + (_LEAST if sh[a, c] != 0.0 else 0.0)
                behind += abs(output[i, a]) * lost[a, c]
            for m in range(1, most):
                j = i - m * lag
                if j < starts[c]:
                    break
                th, tl = _times(high[j, c], low[j, c], -direct[m, i], 0.0)
                h, rest = _plus(h, rest, th, tl)
                size += abs(th) + (_LEAST if high[j, c] != 0.0 else 0.0)
            yh, yl = _times(h, rest, reciprocals[i, 0], reciprocals[i, 1])
            high[i, c], low[i, c] = yh, yl
            row = behind + _ONE * ((buffers + most + 1) * size + 2.0 * abs(h)) + _LEAST
            defects[c] += row * row + 1e-300
            for a in range(buffers):
                vh, vl = _times(sh[a, c], sl[a, c], decay[i, a], 0.0)
                size = abs(vh) + (_LEAST if sh[a, c] != 0.0 else 0.0)
                for m in range(most):
                    j = i - m * lag
                    if j < starts[c]:
                        break
                    th, tl = _times(high[j, c], low[j, c], inputs[m, i, a], 0.0)
                    vh, vl = _plus(vh, vl, th, tl)
                    size += abs(th) + (_LEAST if high[j, c] != 0.0 else 0.0)
                sh[a, c], sl[a, c] = vh, vl
                lost[a, c] = (abs(decay[i, a]) * lost[a, c] + _ONE * (most + 2) * size) * (1 + 2.0**-50)
                if not abs(vh) < 1e100:
                    return False
            if not abs(yh) < 1e100:
                return False
    for c in range(k):
        defects[c] *= 1 + 2.0**-20
    return True


@numba.njit(cache=True, nogil=True)
def variances(decay, output, inputs, direct, lag, states, targets, sources, counts, program, read, ends):
    """Write squared row norms of A K from below and above, shape (2, n), column by column; see losses/variances.py.

    Column j is what the workload's statements make of x = K e_j. Each of its numbers is a pair with a bound on what it
    has lost, which moves on by the magnitudes of the coefficients.
    """
    n, buffers = decay.shape
    sh, sl, lost = np.zeros(buffers), np.zeros(buffers), np.zeros(buffers)
    uh, ul, off = np.zeros(states + 1), np.zeros(states + 1), np.zeros(states + 1)  # the last one is x
    ends[:] = 0.0
    for j in range(n):
        sh[:], sl[:], lost[:] = 0.0, 0.0, 0.0
        uh[:], ul[:], off[:] = 0.0, 0.0, 0.0
        for i in range(j, n):
            m = (i - j) // lag
            drawn = m < len(direct) and m * lag == i - j
            h, rest = (direct[m, i] if drawn else 0.0), 0.0
            size, behind = abs(h), 0.0
            for a in range(buffers):
                th, tl = _times(sh[a], sl[a], output[i, a], 0.0)
                h, rest = _plus(h, rest, th, tl)
                size += abs(th) + _LEAST
                behind += abs(output[i, a]) * lost[a]
                vh, vl = _times(sh[a], sl[a], decay[i, a], 0.0)
                moved = abs(vh) + _LEAST
                if drawn:
                    vh, vl = _plus(vh, vl, inputs[m, i, a], 0.0)
                    moved += abs(inputs[m, i, a])
                sh[a], sl[a] = vh, vl
                lost[a] = (abs(decay[i, a]) * lost[a] + _ONE * 3.0 * moved) * (1 + 2.0**-50)
            uh[states], ul[states], off[states] = h, rest, (behind + _ONE * (buffers + 2) * size) * (1 + 2.0**-40)
            for k in range(len(targets)):
                h, rest, size, behind = 0.0, 0.0, 0.0, 0.0
                for s in range(counts[k]):
                    source = sources[k, s] if sources[k, s] >= 0 else states
                    ch, cl = program[i if len(program) > 1 else 0, k, s]
                    th, tl = _times(uh[source], ul[source], ch, cl)
                    h, rest = _plus(h, rest, th, tl)
                    size += abs(th) + _LEAST
                    behind += abs(ch) * off[source]
                t = targets[k]
                uh[t], ul[t], off[t] = h, rest, (behind + _ONE * (counts[k] + 4) * size) * (1 + 2.0**-50)
            o = read if read >= 0 else states
            near = abs(uh[o])
            loose = off[o] + near * 2.0**-52
            if not near < 1e100 or not loose < 1e100:
                return False
            ends[0, i] += max(near - loose, 0.0) ** 2
            ends[1, i] += (near + loose) ** 2
    ends[0] *= 1.0 - (n + 16) * 2.0**-52
    ends[1] *= 1.0 + (n + 16) * 2.0**-52
    return True
