"""The compiled loop behind every recursion (structures/recursion.py).

The last values of state v are in a ring of slots; from step to step every place moves on by one slot and returns from
the end of its ring to the beginning. Statement s sets one of the states to the sum over its terms t, from starts[s] to
starts[s + 1], of factors[step, columns[t]] times another state. Its target has the place number len(columns) + s. After
the targets come the places to which a step adds its input, and from which it takes its output.
"""

from factorize.numbers.compiling import kernel


@kernel()
def sweep(starts, columns, factors, places, first, turn, count, backwards, block, out, state):
    """Run steps over rows of inputs, or the transposed steps from the last to the first.

    Args:
        starts: shape (statements + 1,).
        columns: shape (terms,).
        factors: shape (steps, columns), in the order in which steps run, or (1, columns) if they are constant.
        places: the slot of each place at the first step, its ring's first slot and the slot after its ring; moved on
            in place.
        first: column of block and out of the first step.
        turn: the difference to the next column, 1 or -1.
        count: number of steps.
        backwards: whether statements run from the last to the first, and each adds to the states that it reads.
        block: rows of inputs, shape (r, steps or more).
        out: rows of outputs, the same shape, written.
        state: the rings, shape (slots + 1, r); the last row is scratch.
    """
    terms, statements, width, held = len(columns), len(starts) - 1, state.shape[1], len(state) - 1
    for step in range(count):
        row, c = step if len(factors) > 1 else 0, first + turn * step
        for k in range(width):
            state[places[0, terms + statements], k] += block[k, c]
        for number in range(statements):
            s = statements - 1 - number if backwards else number
            target = places[0, terms + s]
            for k in range(width):
                state[held, k] = state[target, k]
                state[target, k] = 0.0
            for t in range(starts[s], starts[s + 1]):
                source, factor = places[0, t], factors[row, columns[t]]
                to = source if backwards else target
                read = held if backwards or source == target else source
                for k in range(width):
                    state[to, k] += factor * state[read, k]
        for k in range(width):
            out[k, c] = state[places[0, terms + statements + 1], k]
        for t in range(places.shape[1]):
            places[0, t] += 1
            if places[0, t] == places[2, t]:
                places[0, t] = places[1, t]
