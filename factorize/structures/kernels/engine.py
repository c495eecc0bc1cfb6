"""The compiled loops behind every recursion (structures/recursion.py). Imported on first use, since numba is heavy.

The last values of state v stand in a ring of sizes[v] slots from bases[v] on: that of `lag` steps before step i is in
slot (i - lag) mod sizes[v] of it. The last ring is the input's. Statement s sets the state targets[s], behind[s] steps
back, to the sum over its terms t, from starts[s] to starts[s + 1]: factors[i, columns[t]] times the state sources[t],
lags[t] steps back.
"""

from __future__ import annotations

from factorize.numbers.compiling import kernel, part


@part()
def _enter(rings, i, phases):
    """Note where in each ring step i stands."""
    for v in range(len(phases)):
        phases[v] = i % rings[1, v] if rings[1, v] > 1 else 0


@part()
def _slot(rings, phases, state, lag):
    """Return where the value of a state some steps back stands."""
    place = phases[state] - lag
    return rings[0, state] + (place if place >= 0 else place + rings[1, state])


@part()
def _find(rings, phases, terms, row, start, stop, target, slots):
    """Write the slots of a statement's terms; return whether it leaves its target as it is."""
    used, itself = 0, False
    for t in range(start, stop):
        slots[t] = _slot(rings, phases, terms[0, t], terms[1, t])
        if row[terms[2, t]] != 0.0:
            used += 1
            itself = slots[t] == target and row[terms[2, t]] == 1.0
    return used == 1 and itself


@kernel()
def sweep(
    rings, targets, starts, terms, factors, steps, output, origin, backwards, block, out, held, live, places, sums
):
    """Run steps over rows of inputs, or the transposed steps from the last to the first over rows of outputs.

    Args:
        rings: bases and sizes, shape (2, states + 1).
        targets: states and steps back, shape (2, statements).
        starts: shape (statements + 1,).
        terms: sources, lags and columns, shape (3, terms).
        factors: shape (steps, columns), or (1, columns) if they are those of every step.
        steps: the first and the one past the last.
        output: a state.
        origin: step of the first column of block and out.
        backwards: whether the steps are transposed.
        block: shape (r, columns).
        out: the same shape, written.
        held: the rings, shape (groups, slots, lanes): lane k of group g serves row g lanes + k.
        live: which groups have met a number that is not 0, shape (groups,).
        places: scratch, integers, two rows as long as there are terms or rings.
        sums: scratch, shape (lanes,).
    """
    first, last = steps
    count, entrance = len(starts) - 1, rings.shape[1] - 1
    slots, phases = places[0], places[1, : entrance + 1]
    for g in range(len(live)):
        state, above = held[g], g * held.shape[2]
        width = min(held.shape[2], len(block) - above)
        for step in range(last - first):
            i = last - 1 - step if backwards else first + step
            c = i - origin
            if not live[g]:
                for k in range(width):
                    live[g] |= block[above + k, c] != 0.0
                    out[above + k, c] = 0.0
                if not live[g]:
                    continue
            row = factors[i - first if len(factors) > 1 else 0]
            _enter(rings, i, phases)
            entry, leaving = _slot(rings, phases, entrance, 0), _slot(rings, phases, output, 0)
            for k in range(width):
                if backwards:
                    state[leaving, k] += block[above + k, c]
                else:
                    state[entry, k] = block[above + k, c]
            for turn in range(count):
                s = count - 1 - turn if backwards else turn
                target = _slot(rings, phases, targets[0, s], targets[1, s])
                if _find(rings, phases, terms, row, starts[s], starts[s + 1], target, slots):
                    continue
                for k in range(width):
                    sums[k] = state[target, k] if backwards else 0.0
                if backwards:
                    for k in range(width):
                        state[target, k] = 0.0
                for t in range(starts[s], starts[s + 1]):
                    factor, source = row[terms[2, t]], slots[t]
                    if factor != 0.0 and backwards:
                        for k in range(width):
                            state[source, k] += factor * sums[k]
                    elif factor != 0.0:
                        for k in range(width):
                            sums[k] += factor * state[source, k]
                if not backwards:
                    for k in range(width):
                        state[target, k] = sums[k]
            for k in range(width):
                out[above + k, c] = state[entry if backwards else leaving, k]
            if backwards:
                for k in range(width):
                    state[entry, k] = 0.0


@kernel()
def variances(
    rings, targets, starts, terms, factors, steps, backwards, noise, reading, covariance, found, places, sums
):
    """Carry the covariance of the rings along, with white noise in the state `noise`, and write that of `reading`.

    Forwards noise is the input itself; backwards it is added to the state, and the statements are those transposed.

    `noise` and `reading` are states, `covariance` is (slots, slots), `found` is (n,), `sums` (slots,); the others are
    those of `sweep`.
    """
    first, last = steps
    slots, phases = places[0], places[1, : rings.shape[1]]
    for step in range(last - first):
        i = last - 1 - step if backwards else first + step
        row = factors[i - first if len(factors) > 1 else 0]
        _enter(rings, i, phases)
        source = _slot(rings, phases, noise, 0)
        if not backwards:
            covariance[source] = 0.0
            covariance[:, source] = 0.0
        covariance[source, source] += 1.0
        for s in range(len(starts) - 1):
            target = _slot(rings, phases, targets[0, s], targets[1, s])
            if _find(rings, phases, terms, row, starts[s], starts[s + 1], target, slots):
                continue
            sums[:] = 0.0
            total = 0.0
            for t in range(starts[s], starts[s + 1]):
                factor = row[terms[2, t]]
                if factor != 0.0:
                    for c in range(len(sums)):
                        sums[c] += factor * covariance[slots[t], c]
            for t in range(starts[s], starts[s + 1]):
                total += row[terms[2, t]] * sums[slots[t]]
            for c in range(len(sums)):
                covariance[target, c] = sums[c]
                covariance[c, target] = sums[c]
            covariance[target, target] = total
        source = _slot(rings, phases, reading, 0)
        found[i] = covariance[source, source]
        if backwards:
            covariance[source] = 0.0
            covariance[:, source] = 0.0
