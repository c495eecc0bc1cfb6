"""Binary-tree aggregation as one square matrix, for the three decoders, in closed form.

Every node of the trees holds the sum of its leaves' gradients plus a Gaussian of variance 1, and a decoder adds up
nodes so that each prefix sum comes out. The noise of the released sums has a covariance K; with its Cholesky factor
B = chol(K) the same release is B (C g + z), C = B^-1 S, with one Gaussian for each step. For all three decoders C has
no negative entry and is constant on the blocks of the tree, which is what structures/tree.py stores. v_h denotes the
variance of the best estimate of a node of height h from the complete subtree below it: v_0 = 1,
1 / v_h = 1 + 1 / (2 v_{h-1}).

- online: dyadic decomposition. A step completes one new node of the decomposition, so C is the 0/1 matrix of those.
- honaker_online: each node of the decomposition is replaced by its best estimate from the subtree (Honaker 2015). Only
  that combination of the nodes that end with a step is ever used, which is one Gaussian again.
- honaker_full: B = S H^+, every node of the tree, later ones included. Then C^T C = H^T H, and row i of C is the
  Gaussian of x_i given the past once the future is integrated out, from the root down to the leaf.

The closed forms are derived in docs/notes/mechanisms.md.
"""

import numpy as np
from numpy.typing import NDArray

from factorize.factors.solution import ProgressCallback, Solution
from factorize.solvers.formulas.closed_form import finish
from factorize.solvers.methods.compiled import Array
from factorize.solvers.problem import Estimate, Problem, Reporter, estimate_of, mechanism_of, refuse_beyond_dense
from factorize.spec import Spec
from factorize.spec.mechanisms import Tree
from factorize.structures.tree import TreeMatrix, level_count


def supports(spec: Spec) -> str | None:
    """Return why a spec is outside these formulas, or None: every participation and objective is certified."""
    mechanism = mechanism_of(spec, Tree)
    if mechanism.restart_every is not None and mechanism.restart_every > spec.workload.n:
        return f"restart_every={mechanism.restart_every} exceeds n={spec.workload.n}; leave it out for a single tree"
    return None


def estimate(spec: Spec) -> Estimate:
    """Return the cost: log2(n) numbers for each step, and n x n arrays for a workload that is no recursion."""
    n, m = float(spec.workload.n), float(max(spec.workload.m, spec.workload.n))
    levels = level_count(spec.workload.n) + 1.0
    if spec.workload.outline().recursions() is None:
        needed = estimate_of(entries=4 * n * m, multiplications=4 * n * n * m)
        return refuse_beyond_dense(needed, int(n), int(m))
    return estimate_of(entries=n * (5 * levels + 60), multiplications=200 * n * levels**2)


def solve(problem: Problem, progress: ProgressCallback) -> Solution:
    """Return the square equivalent of the tree's noise."""
    mechanism = mechanism_of(problem.spec, Tree)
    restart = mechanism.restart_every or problem.n
    strategy = TreeMatrix(node_weights(problem.n, restart, mechanism.decoder), restart)
    return finish(problem, strategy, Reporter(progress))


def node_weights(n: int, restart: int, decoder: str) -> Array:
    """Return the rows of C by node: diagonal, then one number for each block behind a step (structures/tree.py).

    Args:
        n: number of steps.
        restart: steps of a tree; the last one may be shorter.
        decoder: `online`, `honaker_online` or `honaker_full`.

    Returns:
        Shape (levels + 1, n).
    """
    leaves = np.arange(n) % min(restart, n)
    if decoder == "honaker_full":
        sizes = np.where(np.arange(n) >= n - n % restart, n % restart, restart)
        return _full(leaves, sizes, level_count(min(restart, n)))
    table = _online_table(level_count(min(restart, n)), honaker=decoder == "honaker_online")
    height = _trailing_zeros(leaves + 1)
    return np.ascontiguousarray(table[height].T)


def _trailing_zeros(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    lowest = numbers & -numbers
    return np.frexp(lowest.astype(np.float64))[1].astype(np.int64) - 1


def _variances(levels: int) -> Array:
    """Return v_0 .. v_levels = 2^h / (2^(h+1) - 1)."""
    powers = 2.0 ** np.arange(levels + 1)
    return np.asarray(powers / (2 * powers - 1))


def _online_table(levels: int, *, honaker: bool) -> Array:
    """Return the row of a step that completes a node of each height, shape (levels + 1, levels + 1).

    A node of height h that ends with step i has left children of heights h-1, .., 0 down its right side, the blocks
    behind i. Its estimate E is w_h times its own noise plus 1 - w_h times those of its children, w_h = v_h, and so on
    down the right side: E = a z + sum over blocks of c_j E_j with c_j = (1 - w_j) .. (1 - w_h). Sums of outputs over
    blocks are what the E_j stand for, so row i has (1 - c_j) / a on block j and 1 / a on the diagonal.
    """
    table = np.zeros((levels + 1, levels + 1))
    own = _variances(levels)
    for height in range(levels + 1):
        if not honaker:
            table[height, : height + 1] = 1.0
            continue
        passed = np.cumprod(np.concatenate([[1.0], (1.0 - own[1 : height + 1])[::-1]]))[::-1]  # c_1 .. c_h, 1
        scale = np.sqrt(float(np.sum((own[: height + 1] * passed) ** 2)))
        table[height, 0] = 1.0 / scale
        table[height, 1 : height + 1] = (1.0 - passed[:height]) / scale
    return table


def _full(leaves: NDArray[np.int64], sizes: NDArray[np.int64], levels: int) -> Array:
    """Return the rows of the full decoder: precision m and offsets passed down from the root to each leaf.

    At a node the future leaves below it, u in sum, are known through m (u + offset)^2, the offset being a combination
    of the blocks behind. Going down to a left child, the right sibling is integrated out: 1 / m grows by the variance
    of its sum. Each complete node adds (u + all blocks behind within it)^2. A node that sticks out adds nothing.

    Args:
        leaves: number of each step in its tree.
        sizes: steps of its tree.
        levels: levels of the largest tree.
    """
    n = len(leaves)
    partial = _partial_variances(levels)
    precision, common = np.zeros(n), np.zeros(n)  # `common` is the coefficient of all blocks below the node
    kept = np.ones((levels + 1, n))  # the part of the offsets from above that each node leaves
    nodes = np.zeros((levels + 1, n))
    for level in range(levels, -1, -1):
        end = ((leaves >> level) + 1) << level
        if level < levels:
            left = leaves >> level & 1 == 0
            sibling = partial[np.clip(sizes - end, 0, 1 << level)]
            precision = np.where(left, precision / (1.0 + precision * sibling), precision)
            nodes[level + 1] = np.where(left, 0.0, common)
        complete = end <= sizes
        kept[level] = np.where(complete, precision / (precision + 1.0), 1.0)
        common = np.where(complete, (precision * common + 1.0) / (precision + 1.0), common)
        precision = precision + complete
    # The block at level j takes part in the nodes above it; those from its own level down only scale its offset.
    diagonal = np.sqrt(precision)
    remaining = np.ones(n)
    for level in range(levels):
        remaining = remaining * kept[level]
        nodes[level + 1] *= remaining * diagonal
    nodes[0] = diagonal
    return nodes


def _partial_variances(levels: int) -> Array:
    """Return, for a subtree cut off after k leaves, the variance of their sum: those of its dyadic pieces, added."""
    own = _variances(levels)
    out = np.zeros(1)
    for height in range(levels):
        out = np.concatenate([out, out + own[height]])
    return np.concatenate([out, [own[levels]]])
