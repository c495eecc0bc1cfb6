"""The compiled loop behind every recursion (structures/recursion.py). Imported on first use, since numba is heavy.

The last values of state v stand in a ring of slots; from step to step every place moves on by one slot and returns
from the end of its ring to the beginning. Statement s sets one of the states to the sum over its terms t, from
starts[s] to starts[s + 1]: factors[step, columns[t]] times another. Its target's place is that of term number
len(columns) + s; after those stand the places of what enters a step and of what leaves it.
"""

from __future__ import annotations

from factorize.numbers.compiling import kernel


@kernel()
def sweep(starts, columns, factors, places, first, turn, count, backwards, square, block, out, state, sums):
    """Run steps over rows of inputs, or the transposed steps from the last to the first; or carry a covariance along.

    Args:
        starts: shape (statements + 1,).
        columns: shape (terms,).
        factors: shape (steps, columns), in the order in which they are run, or (1, columns) if they are those of all.
        places: slots of the first step, and of each its ring's first slot and the one after it, moved on in place.
        first: column of block and out of the first step.
        turn: what leads to the next one, 1 or -1.
        count: steps.
        backwards: whether the steps are transposed: statements run from the last to the first, and each adds to what
            it reads. For a covariance, the statements are those transposed: what enters is added, what leaves is lost.
        square: whether the state is a covariance, for white noise as input.
        block: shape (r, columns of the matrix); not read for a covariance.
        out: the same shape, written: rows of outputs, or one of their variances.
        state: the rings, shape (slots, r); a covariance is (slots, slots).
        sums: scratch, as long as a row of the state.
    """
    terms, statements, width = len(columns), len(starts) - 1, state.shape[1]
    spreads = backwards and not square
    for step in range(count):
        row, c = step if len(factors) > 1 else 0, first + turn * step
        entry, leaving = places[0, terms + statements], places[0, terms + statements + 1]
        for k in range(width):
            if not square:
                state[entry, k] = block[k, c] + (state[entry, k] if backwards else 0.0)
            elif not backwards:
                state[entry, k] = state[k, entry] = 0.0
        if square:
            state[entry, entry] += 1.0
        for number in range(statements):
            s = statements - 1 - number if spreads else number
            target, used, itself = places[0, terms + s], 0, False
            for t in range(starts[s], starts[s + 1]):
                factor = factors[row, columns[t]]
                if factor != 0.0:
                    used += 1
                    itself = places[0, t] == target and factor == 1.0
            if used == 1 and itself:
                continue
            for k in range(width):
                sums[k] = state[target, k] if spreads else 0.0
                state[target, k] = 0.0 if spreads else state[target, k]
            for t in range(starts[s], starts[s + 1]):
                factor, source = factors[row, columns[t]], places[0, t]
                if factor != 0.0:
                    for k in range(width):
                        if spreads:
                            state[source, k] += factor * sums[k]
                        else:
                            sums[k] += factor * state[source, k]
            if square:
                total = 0.0
                for t in range(starts[s], starts[s + 1]):
                    total += factors[row, columns[t]] * sums[places[0, t]]
                for k in range(width):
                    state[k, target] = sums[k]
                sums[target] = total
            if not spreads:
                for k in range(width):
                    state[target, k] = sums[k]
        if square:
            out[0, c] = state[leaving, leaving]
        for k in range(width):
            if not square:
                out[k, c] = state[leaving, k]
            if backwards:
                state[leaving, k] = 0.0
                if square:
                    state[k, leaving] = 0.0
        for t in range(places.shape[1]):
            places[0, t] += 1
            if places[0, t] == places[2, t]:
                places[0, t] = places[1, t]
