"""The kernel of one step: draws z, takes what the states say from it, brings the states on, all in one pass.

Arithmetic is float64 in registers; draws, noise and (where asked for) states are float32 in memory. No matrix product
is left to hardware that rounds to TF32.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def _normals(key, low, high, step, EXACT: tl.constexpr):
    """Return four normals for each counter, float32; see counted_normals.py."""
    second = tl.zeros_like(low) + step.to(tl.uint32)
    w0, w1, w2, w3 = tl.philox(key, low, high, second, tl.zeros_like(low))
    r0, r1 = _radius(w0, EXACT), _radius(w2, EXACT)
    c0, s0 = _turned(w1, EXACT)
    c1, s1 = _turned(w3, EXACT)
    return r0 * c0, r0 * s0, r1 * c1, r1 * s1


@triton.jit
def _radius(word, EXACT: tl.constexpr):
    uniform = (word.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    if EXACT:
        return tl.sqrt(-2.0 * libdevice.log(uniform))
    return tl.sqrt(-2.0 * tl.log(uniform))


@triton.jit
def _turned(word, EXACT: tl.constexpr):
    half_turns = word.to(tl.float32) * 4.656612873077393e-10
    if EXACT:
        return libdevice.cospi(half_turns), libdevice.sinpi(half_turns)
    angle = half_turns * 3.141592653589793
    return tl.cos(angle), tl.sin(angle)


@triton.jit
def _loaded(loads, x, u, again, M: tl.constexpr, BY_X: tl.constexpr):
    """Return what comes into a state: of x, or of u and the earlier draws."""
    if BY_X:
        return tl.load(loads) * x
    moved = tl.load(loads) * u
    for m in tl.static_range(M):
        moved += tl.load(loads + m + 1) * again[m]
    return moved


@triton.jit
def fused_step(
    out,
    state,
    pieces,
    numbers,
    steps,
    key,
    width,
    K: tl.constexpr,
    M: tl.constexpr,
    BY_X: tl.constexpr,
    COUPLED: tl.constexpr,
    RELOAD: tl.constexpr,
    EXACT: tl.constexpr,
    QUARTER: tl.constexpr,
):
    """Make one step's noise of one piece: entries low <= i < high of a span, at `at` in the vectors.

    `numbers` holds sigma * gain, sigma, scale, then reads (K), changed (K), moves (K, or K x K row by row), takes (M),
    and loads (K x (M + 1), of u and of each draw; of x alone where BY_X). RELOAD reads many states twice, so as not to
    keep them in registers.
    """
    piece = tl.program_id(0).to(tl.int64)
    span, low, high, at = (
        tl.load(pieces + 4 * piece),
        tl.load(pieces + 4 * piece + 1),
        tl.load(pieces + 4 * piece + 2),
        tl.load(pieces + 4 * piece + 3),
    )
    within = tl.arange(0, QUARTER)
    counters = span * QUARTER + within
    c0, c1 = (counters & 0xFFFFFFFF).to(tl.uint32), (counters >> 32).to(tl.uint32)
    secret = tl.load(key)
    gain, sigma, scale = tl.load(numbers), tl.load(numbers + 1), tl.load(numbers + 2)
    reads, changed, moves = numbers + 3, numbers + 3 + K, numbers + 3 + 2 * K
    takes = moves + (K * K if COUPLED else K)
    loads = takes + M
    columns: tl.constexpr = 1 if BY_X else M + 1
    kind = state.dtype.element_ty
    draws = (_normals(secret, c0, c1, tl.load(steps), EXACT),)
    for m in tl.static_range(M):
        draws = draws + (_normals(secret, c0, c1, tl.load(steps + 1 + m), EXACT),)
    for lane in tl.static_range(4):
        entry = within + lane * QUARTER
        here = (entry >= low) & (entry < high)
        where = at + entry - low
        u = (draws[0][lane].to(tl.float64) * gain).to(kind).to(tl.float64)
        x = u
        kept = ()
        if not RELOAD:
            for j in tl.static_range(K):
                kept = kept + (tl.load(state + j * width + where, mask=here, other=0.0).to(tl.float64),)
        again = ()
        for m in tl.static_range(M):
            z = (draws[m + 1][lane].to(tl.float64) * sigma).to(kind).to(tl.float64)
            again = again + (z,)
            x += tl.load(takes + m) * z
        if RELOAD:
            for j in range(K):
                x -= tl.load(reads + j) * tl.load(state + j * width + where, mask=here, other=0.0).to(tl.float64)
            for j in range(K):
                if tl.load(changed + j) != 0:
                    old = tl.load(state + j * width + where, mask=here, other=0.0).to(tl.float64)
                    moved = tl.load(moves + j) * old + _loaded(loads + j * columns, x, u, again, M, BY_X)
                    tl.store(state + j * width + where, moved.to(kind), mask=here)
        else:
            for j in tl.static_range(K):
                x -= tl.load(reads + j) * kept[j]
            for j in tl.static_range(K):
                if tl.load(changed + j) != 0:
                    moved = _loaded(loads + j * columns, x, u, again, M, BY_X)
                    if COUPLED:
                        for i in tl.static_range(K):
                            moved += tl.load(moves + j * K + i) * kept[i]
                    else:
                        moved += tl.load(moves + j) * kept[j]
                    tl.store(state + j * width + where, moved.to(kind), mask=here)
        tl.store(out + where, (x * scale).to(tl.float32), mask=here)
