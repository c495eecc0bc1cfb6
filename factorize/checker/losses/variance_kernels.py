"""Covariances carried through single statements of a recursion, as pairs of doubles with a proven bound; compiled.

A statement x_a <- sum_k c_k x_k + y replaces row and column a of the covariance P. What it rounds is a matrix between
-d I and d I, which moves on as P does: the same statements on R, with d I added each time, bound all that was lost, in
the order of positive semidefinite matrices. R is in doubles; its own roundings stay below a quarter of the d I of their
statement, so that twice R covers them.
"""

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


@kernel()
def carry(starts, columns, factors, places, first, turn, steps, noisy, covariance, ends, work):
    """Write the variance of a state at each step from below and above, for white noise in one statement.

    The last values of a state stand in a ring of slots; from step to step every place moves on by one slot and returns
    from the end of its ring to the beginning. Statement s sets the state at place number len(columns) + s to the sum
    over its terms t, from starts[s] to starts[s + 1]: the factor columns[t] times the state at place number t. What is
    read of the same step is what stands there when the statement is run. The last place is of the state whose variance
    is written.

    Args:
        starts: shape (statements + 1,).
        columns: shape (terms,).
        factors: pairs, shape (steps, columns, 2), in the order in which they are run, or (1, columns, 2) if they are
            those of every step.
        places: slots of the first step, and of each its ring's first slot and the one after it, moved on in place.
        first: column of `ends` of the first step.
        turn: what leads to the next one, 1 or -1.
        steps: how many.
        noisy: the statement that noise of variance 1 is added to.
        covariance: P as pairs, and R, shape (3, slots, slots).
        ends: shape (2, n).
        work: scratch, shape (3, slots).

    Returns:
        Whether the variances are enclosed.
    """
    terms, m = len(columns), covariance.shape[2]
    for number in range(steps):
        row, i = number if len(factors) > 1 else 0, first + turn * number
        for s in range(len(starts) - 1):
            target, size, largest, widest = places[0, terms + s], 1.0, 1e-250, 0.0
            for c in range(m):
                work[0, c] = work[1, c] = work[2, c] = 0.0
                largest = covariance[0, c, c] if covariance[0, c, c] > largest else largest
                widest = covariance[2, c, c] if covariance[2, c, c] > widest else widest
            for t in range(starts[s], starts[s + 1]):
                factor, rest, source = factors[row, columns[t], 0], factors[row, columns[t], 1], places[0, t]
                size += abs(factor)
                for c in range(m):
                    th, tl = _times(factor, rest, covariance[0, source, c], covariance[1, source, c])
                    work[0, c], work[1, c] = _plus(work[0, c], work[1, c], th, tl)
                    work[2, c] += factor * covariance[2, source, c]
            dh, dl, moved = 1.0 if s == noisy else 0.0, 0.0, 0.0
            for t in range(starts[s], starts[s + 1]):
                factor, rest, source = factors[row, columns[t], 0], factors[row, columns[t], 1], places[0, t]
                th, tl = _times(factor, rest, work[0, source], work[1, source])
                dh, dl = _plus(dh, dl, th, tl)
                moved += factor * work[2, source]
            work[0, target], work[1, target], work[2, target] = dh, dl, moved
            # Entries of a covariance are at most its largest diagonal entry, and those here differ by at most 2 R.
            step = (m + 1) * (starts[s + 1] - starts[s] + 8) * size * size
            lost = step * 2.0**-96 * ((dh if dh > largest else largest) + 4.0 * widest)
            for plane in range(3):
                for c in range(m):
                    covariance[plane, target, c] = covariance[plane, c, target] = work[plane, c]
            for c in range(m):
                covariance[2, c, c] += lost
            quarter = step * 2.0**-51 * (moved if moved > widest else widest) < 0.25 * lost
            if not (size < 1e100 and largest < 1e200 and quarter):
                return False
        o = places[0, terms + len(starts) - 1]
        ends[0, i] = covariance[0, o, o] - 2.0 * covariance[2, o, o]
        ends[1, i] = covariance[0, o, o] + 2.0 * covariance[2, o, o]
        for t in range(places.shape[1]):
            places[0, t] += 1
            if places[0, t] == places[2, t]:
                places[0, t] = places[1, t]
    return True
