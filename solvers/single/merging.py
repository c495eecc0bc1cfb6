"""The smaller workload that is left when steps move nothing or outputs weigh nothing.

A is a first-order recursion: its rows are a_i = follow_i a_{i-1} + feed_i e_i^T. Two kinds of rows do not count.

- A step with feed 0 repeats the row before: a_i = follow_i a_{i-1}. Its weight goes there, times follow_i^2.
- A row of weight 0 (then or from the start) is only passed on. The columns of its step and of the next steps up to the
  first row that counts are multiples of each other in every row that counts.

So the steps fall into groups that end with a row that counts. Let r_k be the multiple of column k in its group. The
weighted loss tr(W A X^-1 A^T W) depends on X only through the matrix X' that is left when each group's columns are
merged, X >= R^T X' R with R[g, k] = r_k, and R^T X' R plus anything on the diagonal reaches X'. Hence X_kk <= 1 asks
r_k^2 X'_gg <= 1, and the largest r_k of a group decides: the others' constraints are not tight.
"""

from dataclasses import dataclass

import numpy as np

from factorize.errors import SolveFailed
from factorize.solvers.single.dense import ql_factor
from factorize.workloads.forms import FirstOrder


@dataclass(frozen=True)
class Merged:
    """A weighted workload with fewer steps, known by its bidiagonal inverse.

    Attributes:
        p: diagonal of the inverse, positive, shape (groups,).
        q: negated subdiagonal of the inverse, shape (groups,).
        rows: the row of the whole workload that each group ends with, shape (groups,).
        columns: the column with the largest multiple of each group, shape (groups,).
        group: the group of each column, or -1 for columns that no row that counts sees, shape (n,).
        share: multiple of each column over the largest of its group, in [0, 1], shape (n,).
    """

    p: np.ndarray
    q: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    group: np.ndarray
    share: np.ndarray

    def spread(self, weights: np.ndarray) -> np.ndarray:
        """Return dual weights of all columns, shape (n,), from those of the groups."""
        whole = np.zeros(len(self.group))
        whole[self.columns] = weights
        return whole

    def embed(self, strategy: np.ndarray, ridge: float = 0.0) -> np.ndarray:
        """Return lower-triangular C for all steps from that of the groups, shape (n, n).

        C^T C is R^T X' R with its diagonal filled up to 1, and with a ridge where columns are merged, some of which may
        be equal. Columns that nothing sees get unit columns.
        """
        n = len(self.group)
        if (self.share > 0).sum() == len(self.rows):
            whole = np.eye(n)
            whole[np.ix_(self.columns, self.columns)] = strategy
            return whole
        seen = self.group >= 0
        root = np.zeros((len(self.rows), n))
        root[:, seen] = strategy[:, self.group[seen]] * self.share[seen]
        # The same ridge everywhere: columns of one group that were scaled differently would cost its inverse.
        fill = 1.0 - self.share**2 + ridge
        return ql_factor(np.vstack([root, np.diag(np.sqrt(fill))]))


def merge(steps: FirstOrder, weights: np.ndarray) -> Merged:
    """Return the workload diag(sqrt(weights)) A with its steps merged.

    Args:
        steps: A as a recursion, `follow` and `feed` of shape (n,).
        weights: of the squared row norms of B, non-negative, shape (n,).

    Raises:
        SolveFailed: no row that counts sees any step.
    """
    follow, feed = steps
    counts = np.array(weights, dtype=np.float64)
    for i in range(len(counts) - 1, 0, -1):
        if feed[i] == 0:
            counts[i - 1] += follow[i] ** 2 * counts[i]
            counts[i] = 0.0
    counts[: int(np.argmax(feed > 0))] = 0.0
    rows = np.flatnonzero(counts)
    if not len(rows):
        raise SolveFailed("no output of positive weight depends on any step; give weight to a later output")
    group = np.searchsorted(rows, np.arange(len(counts)))
    multiple, through = _multiples(follow, feed, rows)
    group[multiple == 0] = -1
    largest = np.zeros(len(rows))
    np.maximum.at(largest, group[group >= 0], multiple[group >= 0])
    share = np.where(group >= 0, multiple / largest[group], 0.0)
    _, columns = np.unique(np.where(share == 1, group, -1)[::-1], return_index=True)
    columns = len(group) - 1 - columns[-len(rows) :]
    roots = np.sqrt(counts[rows])
    p = 1.0 / (largest * roots)
    q = through / (largest * np.concatenate([[1.0], roots[:-1]]))
    q[0] = 0.0
    return Merged(p, q, rows, columns, group, share)


def _multiples(follow: np.ndarray, feed: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each column's multiple at the end of its group, and each group's factor on the row that ends the last."""
    multiple, through = np.zeros(len(feed)), np.ones(len(rows))
    start = 0
    for g, row in enumerate(rows):
        reach = 1.0
        for k in range(row, start - 1, -1):
            multiple[k] = reach * feed[k]
            reach *= follow[k]
        through[g] = reach
        start = row + 1
    return multiple, through
