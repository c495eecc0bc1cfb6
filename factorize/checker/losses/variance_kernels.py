"""Covariances carried through single statements of a recursion, as pairs of doubles with a proven bound; compiled.

A statement x_a <- sum_k c_k x_k + y replaces row and column a of the covariance P. What it rounds is a matrix between
-d I and d I, which moves on as P does: the same statements on R, with d I added each time, bound everything that was
lost, in the order of positive semidefinite matrices. R is in double precision; its own roundings must stay below a
quarter of the d I of their statement, so that twice R covers them.

The series of an inverse with few diagonals is compiled here, too. Imported on first use, since numba is heavy.
"""

from __future__ import annotations

from factorize.checker.arithmetic.compiled import kernel, part


@part()
def _plus(ah, al, bh, bl):
    """Add, within 2^-100 (|a| + |b|)."""
    total = ah + bh
    back = total - ah
    rest = ((ah - (total - back)) + (bh - back)) + (al + bl)
    high = total + rest
    return high, rest - (high - total)


@part()
def _times(ah, al, bh, bl):
    """Multiply, within 2^-100 |a b|: halves of 26 bits are multiplied without rounding."""
    first = ah * bh
    moved = 134217729.0 * ah
    a_high = moved - (moved - ah)
    moved = 134217729.0 * bh
    b_high = moved - (moved - bh)
    a_low, b_low = ah - a_high, bh - b_high
    rest = ((a_high * b_high - first) + a_high * b_low + a_low * b_high) + a_low * b_low
    rest += ah * bl + al * bh
    high = first + rest
    return high, rest - (high - first)


@part()
def _state(target, sources, coefficients, noise, high, low, bound, work):
    """Carry out one statement; coefficients are pairs, `noise` is the variance of y. Return whether it is enclosed."""
    m, count = len(high), len(sources)
    size, largest, widest = 1.0, 1e-250, 0.0
    for k in range(count):
        size += abs(coefficients[k, 0])
    for c in range(m):
        for row in range(3):
            work[row, c] = 0.0
        largest = max(largest, high[c, c])
        widest = max(widest, bound[c, c])
        for k in range(count):
            source = sources[k]
            th, tl = _times(coefficients[k, 0], coefficients[k, 1], high[source, c], low[source, c])
            work[0, c], work[1, c] = _plus(work[0, c], work[1, c], th, tl)
            work[2, c] += coefficients[k, 0] * bound[source, c]
    dh, dl, moved = noise, 0.0, 0.0
    for k in range(count):
        source = sources[k]
        th, tl = _times(coefficients[k, 0], coefficients[k, 1], work[0, source], work[1, source])
        dh, dl = _plus(dh, dl, th, tl)
        moved += coefficients[k, 0] * work[2, source]
    for c in range(m):
        high[target, c] = high[c, target] = work[0, c]
        low[target, c] = low[c, target] = work[1, c]
        bound[target, c] = bound[c, target] = work[2, c]
    high[target, target], low[target, target], bound[target, target] = dh, dl, moved
    # Entries of a covariance are at most its largest diagonal entry, and those here differ by at most 2 R.
    step = (m + 1) * (count + 8) * size * size
    lost = step * 2.0**-96 * (max(largest, dh) + 4.0 * widest)
    for c in range(m):
        bound[c, c] += lost
    return size < 1e100 and largest < 1e200 and step * 2.0**-51 * max(widest, moved) < 0.25 * lost


@kernel()
def carry(rings, targets, starts, terms, factors, steps, backwards, noisy, reading, state, ends, work, slots, row):
    """Write the variance of a state at each step from below and above, for white noise in one statement.

    The last values of state v stand in a ring of sizes[v] slots from bases[v] on. Statement s sets the state targets[s]
    to the sum over its terms t, from starts[s] to starts[s + 1]: the factor columns[t] times the state sources[t],
    lags[t] steps back. What is read of the same step is what stands there when the statement is run.

    Args:
        rings: bases and sizes, shape (2, states).
        targets: shape (statements,).
        starts: shape (statements + 1,).
        terms: sources, lags and columns, shape (3, terms).
        factors: pairs, shape (steps, columns, 2), or (1, columns, 2) if they are those of every step.
        steps: the first and the one past the last.
        backwards: whether the last step is run first.
        noisy: the statement that noise of variance 1 is added to.
        reading: the state whose variance is written.
        state: covariance as pairs and its bound, shape (slots, slots) each.
        ends: shape (2, n).
        work: scratch, shape (3, slots).
        slots: scratch, integers, shape (terms,).
        row: scratch, shape (terms, 2).

    Returns:
        Whether the variances are enclosed.
    """
    high, low, bound = state
    fine = True
    for step in range(steps[1] - steps[0]):
        i = steps[1] - 1 - step if backwards else steps[0] + step
        given = factors[i - steps[0] if len(factors) > 1 else 0]
        for s in range(len(targets)):
            target, count = rings[0, targets[s]] + i % rings[1, targets[s]], 0
            for t in range(starts[s], starts[s + 1]):
                v, factor = terms[0, t], given[terms[2, t]]
                if factor[0] != 0.0:
                    slots[count] = rings[0, v] + (i - terms[1, t]) % rings[1, v]
                    row[count, 0], row[count, 1] = factor[0], factor[1]
                    count += 1
            itself = count == 1 and slots[0] == target and row[0, 0] == 1.0 and row[0, 1] == 0.0
            if s == noisy or not itself:
                noise = 1.0 if s == noisy else 0.0
                fine &= _state(target, slots[:count], row[:count], noise, high, low, bound, work)
        o = rings[0, reading] + i % rings[1, reading]
        ends[0, i] = high[o, o] - 2.0 * bound[o, o]
        ends[1, i] = high[o, o] + 2.0 * bound[o, o]
        if not fine:
            return False
    return True


@kernel()
def renewal(weights, column):
    """Write c_0 = 1, c_t = sum_d weights[d] c_{t-d}, the furthest first: a term of d steps meets d + 1 roundings."""
    column[0] = 1.0
    for t in range(1, len(column)):
        total = 0.0
        for d in range(min(t, len(weights) - 1), 0, -1):
            total += weights[d] * column[t - d]
        column[t] = total
