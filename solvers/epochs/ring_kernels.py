"""Kernels of `ring`: filters over the classes of a recursion, eight poles at a time.

Matrices are flat arrays of `Lanes` entries, row by row; S = q k is the number of states of all epochs together. A class
is described by its coefficients ``follow`` (k, q, q), ``feed`` (k, q), ``read`` (k, q) and ``through`` (k,): the block
diagonal maps F = diag(follow_e^T), B = diag(feed_e^T), R = diag(read_e) and D = diag(through_e) of the adjoint process

    z = B x + D w,    x <- F x + R w,    w white, from the last class to the first.
"""

from factorize.numbers.compiling import plain
from factorize.solvers.methods.compiled import Array, FourArrays, Index, ThreeArrays, TwoArrays, compiled, part
from factorize.solvers.methods.lanes import (
    from_both,
    from_left,
    invert,
    load,
    mirror,
    multiply,
    reciprocal,
    spread,
    store,
    total,
)

System = FourArrays
"""Coefficients by class and epoch: follow, feed, read and through."""
Filters = ThreeArrays
"""The filters by class: the gains K, what was seen, V, and the starts Y^T."""
Ends = ThreeArrays


@compiled
def forward(
    system: System, inverse: Array, poles: TwoArrays, sums: TwoArrays, filters: Filters, ends: Ends, scratch: Array
) -> None:
    """Filter the classes from the last to the first, given the states at the end of all epochs.

    With x = transition s + noise of the covariance given, s the states at the start, an observation of z with noise of
    covariance ``inverse / t`` has the innovation V^-1 = B P B^T + D^2 + inverse / t, and

        K = (F P B^T + R D) V,   Y = V B Phi,   Phi <- F Phi - K B Phi,   P <- F P F^T + R R^T - K V^-1 K^T,
        O <- O + Y^T V^-1 Y.

    Args:
        system: coefficients by class and epoch: follow, shape (b, k, q, q), feed and read, shape (b, k, q), and
            through, shape (b, k).
        inverse: W^-1, shape (b, k, k).
        poles: eight nodes t, and their weights w.
        sums: ``sum w / t V Z``, Z the variance of z before it is observed, and the same of ``w V Z``: both are added
            to, shape (b, k, k).
        filters: out, by class: the gains K, shape (b, S k lanes), what was seen, V, shape (b, k k lanes), and the
            starts Y^T, shape (b, S k lanes).
        ends: out, after the first class: covariance P, transition Phi and information O, all of shape (S S lanes,).
        scratch: shape (5, S k lanes).
    """
    (follow, feed, read, through), (t, w), (x, y) = system, poles, sums
    (gains, seen, starts), (covariance, transition, information) = filters, ends
    b, k, q = feed.shape
    side = q * k
    one, yes, no = plain(1), plain(True), plain(False)
    cross, watched, column, before, after = scratch[0], scratch[1], scratch[2], scratch[3], scratch[4]
    covariance[:] = 0.0
    transition[:] = 0.0
    information[:] = 0.0
    for i in range(side):
        store(transition, i * side + i, spread(1.0))
    over = reciprocal(load(t, 0))
    for c in range(b - 1, -1, -1):
        gain, noise, start = gains[c], seen[c], starts[c]
        for i in range(side):  # P B^T and (B Phi)^T
            for e in range(k):
                value, watch = spread(0.0), spread(0.0)
                for r in range(q):
                    value = value + feed[c, e, r] * load(covariance, i * side + e * q + r)
                    watch = watch + feed[c, e, r] * load(transition, (e * q + r) * side + i)
                store(cross, i * k + e, value)
                store(watched, i * k + e, watch)
        for e in range(k):
            for d in range(k):
                value = spread(through[c, e] ** 2 if d == e else 0.0)
                for r in range(q):
                    value = value + feed[c, e, r] * load(cross, (e * q + r) * k + d)
                store(before, e * k + d, value)
                store(noise, e * k + d, value + inverse[c, e, d] * over)
        invert(noise, k)
        multiply(noise, k, one, before, k, one, after, k, k, k, 1.0, yes, no)
        for e in range(k):
            for d in range(k):
                value = load(w, 0) * load(after, e * k + d)
                x[c, e, d] += total(over * value)
                y[c, e, d] += total(value)
        from_left(follow[c], yes, cross, k, k, column)
        for e in range(k):
            for r in range(q):
                at = (e * q + r) * k + e
                store(cross, at, load(cross, at) + spread(read[c, e, r] * through[c, e]))
        multiply(cross, k, one, noise, k, one, gain, side, k, k, 1.0, yes, no)
        multiply(watched, k, one, noise, k, one, start, side, k, k, 1.0, yes, no)
        multiply(start, k, one, watched, k, one, information, side, side, k, 1.0, no, yes)
        from_left(follow[c], yes, transition, side, side, column)
        multiply(gain, k, one, watched, k, one, transition, side, side, k, -1.0, no, no)
        from_both(follow[c], yes, covariance, column)
        multiply(gain, k, one, cross, k, one, covariance, side, side, k, -1.0, no, yes)
        for e in range(k):
            for r in range(q):
                for s in range(r + 1):
                    at = (e * q + r) * side + e * q + s
                    store(covariance, at, load(covariance, at) + spread(read[c, e, r] * read[c, e, s]))
        mirror(covariance, side)
    mirror(information, side)


@compiled
def backward(
    system: System,
    filters: Filters,
    ends: Ends,
    shares: TwoArrays,
    sums: TwoArrays,
    responses: TwoArrays,
    keep: bool,
    scratch: Array,
) -> None:
    """Smooth from the first class to the last: U = (M + W^-1 / t)^-1 within the classes.

    With the adjoints of P, Phi and O (the last one constant),

        T = P' K,   G = Phi' Y^T,   H = T + G / 2,   U = V + sym(K^T (T + G)) - Y O' Y^T,
        P' <- F^T P' F - F^T H B - B^T H^T F + B^T U B,   Phi' <- F^T Phi' - B^T (K^T Phi' - 2 Y O').

    Args:
        system: as for `forward`.
        filters: from `forward`.
        ends: P' and Phi' behind the first class, overwritten, and O', shape (S S lanes,).
        shares: w / t^2 and w / t of eight poles.
        sums: those of w / t^2 (U - V) and of w / t (U - V) are added below and on the diagonals, shape (b, k, k).
        responses: out if kept, by class: the adjoints F^T H - B^T U, and Y O' - K^T Phi' / 2, how the states at the
            ends respond, both of shape (b, S k lanes).
        keep: whether `responses` are written.
        scratch: shape (7, S k lanes).
    """
    (follow, feed, _, _), (gains, seen, starts), (information, across, boundary) = system, filters, ends
    (squares, halves), (x, y), (adjoints, states) = shares, sums, responses
    b, k, q = feed.shape
    side = q * k
    one, yes, no = plain(1), plain(True), plain(False)
    left, joint, both, begun = scratch[0], scratch[1], scratch[2], scratch[3]
    moved, inner, column = scratch[4], scratch[5], scratch[6]
    for c in range(b):
        gain, start = gains[c], starts[c]
        multiply(information, side, one, gain, one, k, left, side, k, side, 1.0, yes, no)
        multiply(across, side, one, start, one, k, joint, side, k, side, 1.0, yes, no)
        multiply(start, one, k, boundary, side, one, begun, k, side, side, 1.0, yes, no)
        multiply(gain, one, k, across, one, side, moved, k, side, side, 1.0, yes, no)
        half = spread(0.5)
        for i in range(side * k):
            store(both, i, load(left, i) + load(joint, i))
            store(left, i, load(left, i) + half * load(joint, i))
        multiply(gain, one, k, both, one, k, inner, k, k, side, 1.0, yes, no)
        for e in range(k):
            for d in range(e + 1):
                store(inner, e * k + d, half * (load(inner, e * k + d) + load(inner, d * k + e)))
        multiply(begun, side, one, start, one, k, inner, k, k, side, -1.0, no, yes)
        for e in range(k):
            for d in range(e + 1):
                value = load(inner, e * k + d)
                x[c, e, d] += total(load(squares, 0) * value)
                y[c, e, d] += total(load(halves, 0) * value)
                store(inner, e * k + d, value + load(seen[c], e * k + d))
        mirror(inner, k)
        from_left(follow[c], no, left, k, k, column)
        if keep:
            _keep(feed[c], left, inner, begun, moved, adjoints[c], states[c])
        _pull_back(follow[c], feed[c], left, inner, information, column)
        from_left(follow[c], no, across, side, side, column)
        two = spread(2.0)
        for e in range(k):
            for j in range(side):
                value = load(moved, e * side + j) - two * load(begun, e * side + j)
                for r in range(q):
                    at = (e * q + r) * side + j
                    store(across, at, load(across, at) - feed[c, e, r] * value)


@part
def _keep(feed: Array, left: Array, inner: Array, begun: Array, moved: Array, adjoint: Array, state: Array) -> None:
    k, q = feed.shape
    half = spread(0.5)
    for e in range(k):
        for r in range(q):
            for d in range(k):
                at = (e * q + r) * k + d
                store(adjoint, at, load(left, at) - feed[e, r] * load(inner, e * k + d))
    for i in range(q * k * k):
        store(state, i, load(begun, i) - half * load(moved, i))


@part
def _pull_back(follow: Array, feed: Array, left: Array, inner: Array, information: Array, column: Array) -> None:
    """``P' <- F^T P' F - L B - B^T L^T + B^T U B`` with L = F^T H in `left`."""
    k, q = feed.shape
    side = q * k
    from_both(follow, plain(False), information, column)
    for e in range(k):
        for r in range(q):
            i = e * q + r
            for d in range(e + 1):
                value = feed[e, r] * load(inner, e * k + d)
                first = load(left, i * k + d)
                for s in range(q):
                    at = i * side + d * q + s
                    second = load(left, (d * q + s) * k + e)
                    change = feed[d, s] * (value - first) - feed[e, r] * second
                    store(information, at, load(information, at) + change)
    mirror(information, side)


@compiled
def spread_out(
    system: System, filters: Filters, responses: TwoArrays, squares: Array, classes: Index, gram: Array, scratch: Array
) -> None:
    """Add ``sum w / t^2 U`` between different classes: rows of later classes, columns of the classes given.

    From class x onwards u = K^T l - Y s_x is the block of U in a later class, and l <- F^T l - B^T u.

    Args:
        system: as for `forward`.
        filters: from `forward`.
        responses: responses from `backward`: the l with which class x begins, overwritten, and s_x^T.
        squares: w / t^2 of eight poles.
        classes: the columns to fill, ascending.
        gram: Gram matrix in the order of the classes, shape (n, n).
        scratch: shape (2, S k lanes).
    """
    (follow, feed, _, _), (gains, _, starts), (adjoints, states) = system, filters, responses
    b, k, q = feed.shape
    side = q * k
    one, yes, no = plain(1), plain(True), plain(False)
    block, column = scratch[0], scratch[1]
    weight = load(squares, 0)
    for c in range(classes[0] + 1, b):
        for index in range(classes.size):
            x = classes[index]
            if x >= c:
                break
            multiply(gains[c], one, k, adjoints[x], one, k, block, k, k, side, 1.0, yes, no)
            multiply(starts[c], one, k, states[x], side, one, block, k, k, side, -1.0, no, no)
            for e in range(k):
                for d in range(k):
                    gram[c * k + e, x * k + d] += total(weight * load(block, e * k + d))
            from_left(follow[c], no, adjoints[x], k, k, column)
            for e in range(k):
                for r in range(q):
                    for d in range(k):
                        at = (e * q + r) * k + d
                        value = load(adjoints[x], at) - feed[c, e, r] * load(block, e * k + d)
                        store(adjoints[x], at, value)
