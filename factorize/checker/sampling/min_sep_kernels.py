"""Compiled loops of `min_sep`: gains of theorem 11, linear bounds of theorem 11 b, and draws by them.

`products` has K for steps t and t + d, shape (n, b), and `favours` has exp(m / 2 K); keep = 1 - p.
"""

import math

import numpy as np

from factorize.checker.arithmetic.loops import kernel, part

_LEAP = 16  # The steps that a search over falling chances takes at a time.
_TINY = 1e-140  # Terms below are multiplied by its inverse, and are too small to be counted.
_MAX_SUM = 1e140  # Sums above count as infinite: a draw, which begins at the inverse, would underflow.
_MAX_PULL = 300.0  # Exponents above count as infinite.
_LEAST_SPREAD = 1 / 64  # The least relative distance of two pulls at which each gets a slope of its own.
_HALVINGS = 40  # The halvings of the interval where a bound's height is searched.
_ROUNDING = 2.0**-36  # What is added to a height, relative to 1 or itself; sums lose far less.


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


@part()
def _log_growth(p, free, own, pull):
    """Return log sum_j Bin(free, p; j) exp(j (j - 1) / 2 own + j pull), or infinity where a draw would underflow.

    That is where the sum is too large, or where terms that were too small to be counted grow again.
    """
    if free == 0:
        return 0.0
    if not pull < _MAX_PULL:
        return math.inf
    total, term, scaled = 1.0, 1.0, 0
    ratio, factor, more = p / (1 - p), math.exp(pull), math.exp(own)
    for j in range(free):
        term *= (free - j) / (j + 1) * ratio * factor
        factor *= more
        if term < _TINY:
            term, scaled = term / _TINY, scaled + 1
        elif scaled and term > 1:
            term, scaled = term * _TINY, scaled - 1
            if not scaled:
                return math.inf
        total += 0.0 if scaled else term
        if not (total < _MAX_SUM and factor < _MAX_SUM):
            return math.inf
    return free * math.log1p(-p) + math.log(total)


@part()
def _steepest(growths, height):
    """Return the least slope of a line of this height at 0 above all growths, and the place where it touches them."""
    slope, place = -math.inf, 1
    for k in range(1, len(growths)):
        rise = (growths[k] - height) / k
        if rise > slope:
            slope, place = rise, k
    return slope, place


@part()
def _gain(growths, height, near):
    """Return by how much the slopes fall as the height grows; `near` is the share of the nearest step in a pull."""
    return (1 - near) / _steepest(growths[0], height)[1] + near / _steepest(growths[1], height)[1]


@part()
def _height(growths, usual, near):
    """Return the height of the lines above all growths that are lowest where so many examples rest as usual."""
    low = high = growths[0, 0]
    while usual * _gain(growths, high, near) > 1:
        high += max(high - low, _LEAST_SPREAD)
    for _ in range(_HALVINGS if high > low else 0):
        middle = (low + high) / 2
        if usual * _gain(growths, middle, near) > 1:
            low = middle
        else:
            high = middle
    return high


@kernel()
def bound_chain(p, order, products, worth, heights, slopes, pulls, growths):
    """Write a linear bound of log G_t for each step t, and sums of slopes, at [s + b] of `worth`; see theorem 11 b.

    It returns whether all numbers are finite. `worth`, shape (n + b,), is zero at first.
    """
    n, b = products.shape
    usual = order * p * (b - 1) / (1 + (b - 1) * p)
    for t in range(n - 1, -1, -1):
        most, total = 0.0, 0.0
        least = math.inf if 1 < b <= t + 1 else 0.0
        for d in range(1, min(b - 1, t) + 1):
            pull = products[t - d, d]
            most, least, total = max(most, pull), min(least, pull), total + pull
        for k in range(order + 1):
            growths[0, k] = _log_growth(p, order - k, products[t, 0], worth[t + b] + k * least)
            growths[1, k] = _log_growth(p, order - k, products[t, 0], worth[t + b] + k * most)
            if not growths[1, k] < math.inf:
                return False
        apart = most - least > _LEAST_SPREAD * most
        height = _height(growths, usual, (total / (b - 1) - least) / (most - least) if apart else 0.0)
        slopes[t], above = _steepest(growths[0], height)[0], _steepest(growths[1], height)[0]
        pulls[t] = (above - slopes[t]) / (most - least) if apart else 0.0
        slopes[t] = slopes[t] - pulls[t] * least if apart else max(slopes[t], above)
        heights[t] = height + _ROUNDING * (1 + abs(height))
        for d in range(1, b):
            worth[t - d + b] += slopes[t] + (pulls[t] * products[t - d, d] if d <= t else 0.0)
    return True


@kernel()
def draw_chain(words, p, firsts, powers, products, worth, heights, slopes, pulls, counts, logs, last):
    """Write how many of each candidate's m examples take part in each step, and 0, or -inf where it is thrown away.

    `words` has m + n words for each candidate; `last`, shape (b,), is for the numbers of the last b steps.
    """
    (n, b), order = products.shape, len(powers) - 1
    for i in range(len(words)):
        counts[i], last[:], logs[i], free = 0.0, 0, -math.inf, order
        for j in range(order):
            rest = min(np.searchsorted(firsts, _uniform(words[i], j), "right"), b - 1)
            if rest > 0:
                last[rest] += 1
                free -= 1
        for t in range(n):
            free, last[t % b], pull = free + last[t % b], 0, 0.0
            if free < order:
                for d in range(1, min(b - 1, t) + 1):
                    pull += last[(t - d) % b] * products[t - d, d]
            term = powers[free] * math.exp(-heights[t] - slopes[t] * (order - free) - pulls[t] * pull)
            left, j = _uniform(words[i], order + t) - term, 0
            if left >= 0:
                factor, more = p / (1 - p) * math.exp(worth[t + b] + pull), math.exp(products[t, 0])
                while left >= 0 and j < free:
                    term *= (free - j) / (j + 1) * factor
                    factor *= more
                    left -= term
                    j += 1
                if left >= 0:
                    break
                counts[i, t], last[t % b] = j, j
                free -= j
        else:
            logs[i] = 0.0
