"""Compiled loops of `min_sep`: gains of theorem 11, and draws by them.

`products` has K for steps t and t + d, shape (n, b), and `favours` has exp(m / 2 K); keep = 1 - p.
"""

import math

import numpy as np

from factorize.checker.arithmetic.loops import kernel, part

_LEAP = 16  # The steps that a search over falling chances takes at a time.


@kernel()
def tabulate(p, keep, favours, gains, begins, alone, ahead, here):
    """Write gain(s, t) to `gains` at [s, t], then first(t), and v of S1 = {t} at t + d; see theorem 11."""
    n, b = favours.shape
    for t in range(n):
        ahead[:] = 1.0
        for d in range(b - 1, -1, -1):
            if t + d < n:
                ahead[t + d] = keep * ahead[t + d + 1] + p * favours[t, d] * ahead[t + d + b]
            alone[t, d] = ahead[t + d]
        for s in range(t - 1, -1, -1):
            favour = favours[s, t - s] if t - s < b else 1.0
            ahead[s] = keep * ahead[s + 1] + p * favour * ahead[s + b]
        begins[t] = (ahead[0] + p * ahead[1:b].sum()) / (1 + (b - 1) * p)
        for s in range(t - b + 1):
            most = 0.0
            for d in range(b):
                here[b + d] = ahead[s + b + d]
            for d in range(b - 1, -1, -1):
                both = favours[s, d] * favours[s + d, t - s - d] if t - s - d < b else favours[s, d]
                here[d] = keep * here[d + 1] + p * both * here[d + b]
                most = max(most, here[d] / alone[s, d])
            gains[s, t] = most


@kernel(error_model="numpy")
def link(p, order, falls, log_gains, tails, nexts):
    """Write to `nexts` at [t] the running sums of the chances of later steps, with no step last; `tails` has totals."""
    n, b = len(nexts), len(falls) - len(nexts)
    for t in range(n - 1, -1, -1):
        tails[t], first = 0.0, min(t + b, n)
        for s in range(first, n):
            tails[t] += p * falls[s - first] * math.exp((order - 1) * log_gains[t, s]) * tails[s]
            nexts[t, s] = tails[t]
        tails[t] += falls[n - first]
        for s in range(first, n):
            nexts[t, s] /= tails[t]
        nexts[t, n] = 1.0


@kernel()
def shift(counts, columns, x):
    """Add to each row of `x` the columns C[t + d, t] as often as its row of counts says, which is mostly 0 times."""
    n, b = columns.shape
    for i in range(len(x)):
        for t in range(n):
            if counts[i, t] > 0:
                for d in range(min(b, n - t)):
                    x[i, t + d] += counts[i, t] * columns[t, d]


@kernel()
def advance(ratios, keep, free, totals, scale):
    """Advance `free` over all steps by p times each step's ratio, and add up the logarithms of its sums.

    `free`, shape (b, samples), holds the chances at first. It is changed, as are `scale` and the scratch `totals`.
    """
    n, b, samples = len(ratios), len(free), len(scale)
    for t in range(n):
        here, after = t % b, (t + 1) % b
        for i in range(samples):
            left = keep * free[here, i]
            free[here, i] *= ratios[t, i]
            free[after, i] += left
        if after == 0 or t == n - 1:
            totals[:] = 0.0
            for d in range(b):
                for i in range(samples):
                    totals[i] += free[d, i]
            for i in range(samples):
                scale[i] += math.log(totals[i])
            for d in range(b):
                for i in range(samples):
                    free[d, i] /= totals[i]


@part()
def _uniform(words, at):
    """Return a word as a multiple of 2^-53 in [0, 1), converted on demand as few of a candidate's words are used."""
    return (words[at] >> np.uint64(11)) * 2.0**-53


@part()
def _next_step(free, u, falls, ahead, n):
    """Return the next step of an example that is free from step `free` on, or n for none; falls[k] = (1 - p)^k."""
    most, t = u * ahead[free], free
    while t + _LEAP <= n and falls[t + _LEAP - free] * ahead[t + _LEAP] > most:
        t += _LEAP
    while t < n and falls[t + 1 - free] * ahead[t + 1] > most:
        t += 1
    return t


@part()
def _field(t, counts, products):
    """Return the sum over all drawn steps of their K with step t."""
    n, b = products.shape
    total = counts[t] * products[t, 0]
    for d in range(1, b):
        if t + d < n:
            total += counts[t + d] * products[t, d]
        if t >= d:
            total += counts[t - d] * products[t - d, d]
    return total


@kernel(error_model="numpy")
def draw_paths(words, p, falls, order, favours, products, log_gains, log_begins, firsts, nexts, counts, logs, work):
    """Write how many of each candidate's m examples take part in each step, and the log of its chance to be kept.

    `words` has m (k + 2) words for each candidate; `firsts` and `nexts` have the centre's running sums.
    """
    (n, b), keep = favours.shape, falls[1]
    stride = words.shape[1] // order
    ahead, fields, ends, sums, steps = work[0], work[1], work[2], work[3], work[4]
    for i in range(len(words)):
        u = words[i]
        counts[i] = 0.0
        fields[:] = 1.0
        used, last, bound, t = 0, -1, 0.0, min(np.searchsorted(firsts, _uniform(u, 0), "right"), n)
        while t < n:
            bound += log_begins[t] if last < 0 else log_gains[last, t]
            for d in range(b):
                if t + d < n:
                    fields[t + d] *= favours[t, d]
                if 0 < d <= t:
                    fields[t - d] *= favours[t - d, d]
            counts[i, t] += 1.0
            steps[used] = t
            used, last = used + 1, t
            t = min(np.searchsorted(nexts[t], _uniform(u, used), "right"), n)
        ends[0] = used
        ahead[n:] = 1.0
        for t in range(n - 1, -1, -1):
            ahead[t] = keep * ahead[t + 1] + p * fields[t] * ahead[t + b]
        total = ahead[0] + p * ahead[1:b].sum()
        for j in range(1, order):
            pick, begun, free = j * stride, ahead[0], 0
            while begun <= _uniform(u, pick) * total and free < b - 1:
                free += 1
                begun += p * ahead[free]
            t = _next_step(free, _uniform(u, pick + 1), falls, ahead, n)
            pick += 2
            while t < n:
                counts[i, t] += 1.0
                steps[used] = t
                used += 1
                t = _next_step(t + b, _uniform(u, pick), falls, ahead, n)
                pick += 1
            ends[j] = used
        mean, most, first = 0.0, 0.0, 0
        for j in range(order):
            sums[j] = 0.0
            for at in range(first, int(ends[j])):
                t = int(steps[at])
                sums[j] += order / 2 * (_field(t, counts[i], products) - products[t, 0])
            first = int(ends[j])
            mean += sums[j] / order
            most = max(most, sums[j])
        spread = 0.0
        for j in range(order):
            spread += math.exp(sums[j] - most) / order
        grown = math.log(total / (1 + (b - 1) * p))
        logs[i] = (order - 1) * (grown - bound) + mean - most - math.log(spread)
