"""Matrices with buffers: C[i, j] = output_i . T_i ... T_{j+1} input_j below a positive diagonal, enclosed.

The rounding of a step moves on through the transitions T as the state does. It is bounded in the order of positive
semidefinite matrices, since a bound by absolute values would grow where T rotates (docs/sensitivity.md, "Rounding").
"""

from collections.abc import Mapping

import numpy as np

from factorize.checker.arithmetic.near import UNIT, Columns, Near, NotEnclosed, share
from factorize.checker.structures.base import Buffers, Reading
from factorize.checker.structures.covariances import Recursion, Statement, variances

_MAX_SHARE = 2.0**-40  # Rounding may leave that share of a squared column norm open.
_UNDERFLOW = 1e-150  # More than one step loses by underflow, and large enough that its square does not underflow.


class BufferedReading(Reading):
    """A reading of C by a diagonal and buffers, from the tensors of the structure `buffered` or `state_space`."""

    buffers: Buffers

    def __init__(self, parts: Mapping[str, np.ndarray], n: int) -> None:
        middle = parts["decay"][:, :, None, None] if "decay" in parts else parts["transition"]
        middle = middle if middle.ndim == 4 else middle[:, None]
        inputs, outputs = (parts[name].reshape(middle.shape[:3]) for name in ("input", "output"))
        self.n = self.bandwidth = n
        self.buffers = Buffers(parts["diagonal"], middle, inputs, outputs)
        self.diagonal, self.signed = self.buffers.diagonal, not self.buffers.nonnegative

    def column_norms(self) -> Near:
        """Return the squared column norms, which are the variances of z^T C for white noise z.

        Steps run backwards: r <- r + output_j z_j, then r <- T_j^T r. Entry j is diagonal_j z_j + input_j . r, with
        the r of the steps after j.

        Raises:
            NotEnclosed: the transitions grow so much that doubled precision does not enclose them.
        """
        diagonal, transition, inputs, outputs = self.buffers.balanced()
        groups, s = inputs.shape[1:]
        size = groups * s
        z, y, spare = size, size + 1, size + 2
        parts = [divmod(k, s) for k in range(size)]
        statements = [Statement(y, {(k, 0): inputs[:, g, a] for k, (g, a) in enumerate(parts)}), Statement(z, {})]
        statements += [Statement(k, {(k, 0): 1.0, (z, 0): outputs[:, g, a]}) for k, (g, a) in enumerate(parts)]
        for g in range(groups):
            own = [g * s + a for a in range(s)]
            for b in range(s):
                column = {(own[a], 0): transition[:, g, a, b] for a in range(s)}
                statements.append(Statement(own[b] if s == 1 else spare + b, column))
            statements += [Statement(own[b], {(spare + b, 0): 1.0}) for b in range(s) if s > 1]
        with np.errstate(all="ignore"):
            ends = diagonal**2 + variances(len(diagonal), Recursion(statements, y, z), backwards=True)
        loose = float(((ends[1] - ends[0]) / ends[0]).max()) if (ends[0] > 0).all() else np.inf
        if not loose < _MAX_SHARE:
            raise NotEnclosed(f"the buffers' transitions grow so much that column norms are known only to {loose:.3g}")
        return Near(ends[1], share(loose, roundings=8))

    def near_columns(self, indices: np.ndarray) -> Columns:
        """Return some columns, whose states move on together, and with them the rounding of each step.

        Entry i is off by at most sqrt(output . W output) sqrt(sum |d_k|^2). d_k is the rounding of the states in
        step k, and W = sum Phi_ik Phi_ik^T over the transitions Phi_ik from step k to row i.

        Raises:
            NotEnclosed: the transitions grow so much that W is not known.
        """
        diagonal, transition, inputs, outputs = self.buffers.balanced()
        n, groups, s = inputs.shape
        order = np.argsort(indices, kind="stable")
        starts = indices[order]
        states, drift, far = np.zeros((groups, s, len(starts))), np.zeros(len(starts)), np.zeros(len(starts))
        values, reach = np.zeros((n, len(starts))), np.zeros((groups, s, s))
        begun = 0
        for i in range(int(starts[0]), n):
            step = transition[i]
            if begun:
                moved = step @ states[:, :, :begun]
                sizes = (s + 2) * UNIT * (np.abs(step) @ np.abs(states[:, :, :begun])) + _UNDERFLOW
                drift[:begun] += np.einsum("gac,gac->c", sizes, sizes)
                spread, widest = float(np.abs(step).sum()), float(np.abs(reach).max())
                if not (s + 4) * 2.0**-50 * spread**2 * widest < 0.5:
                    raise NotEnclosed("the transitions grow so much that doubles do not enclose the entries of C")
                reach = step @ reach @ step.swapaxes(1, 2) + np.eye(s)  # Twice that covers its own rounding.
                states[:, :, :begun] = moved
                row, size = outputs[i].reshape(-1), np.abs(outputs[i])
                flat = moved.reshape(groups * s, begun)
                values[i, :begun] = row @ flat
                length = float(np.einsum("ga,gab,gb->", outputs[i], reach, outputs[i]))
                length = max(length, 0.0) + 2.0**-40 * float(np.einsum("ga,gab,gb->", size, np.abs(reach), size))
                own = (groups * s + 4) * UNIT * (np.abs(row) @ np.abs(flat)) + _UNDERFLOW
                far[:begun] += (np.sqrt(2.0 * length * drift[:begun]) + own) ** 2
            while begun < len(starts) and starts[begun] == i:
                values[i, begun] = diagonal[i]
                states[:, :, begun] = inputs[i]
                begun += 1
        columns, slack = np.empty_like(values), np.empty_like(far)
        columns[:, order], slack[order] = values, np.sqrt(far) * (1 + 2.0**-20)
        return Columns(columns, slack)
