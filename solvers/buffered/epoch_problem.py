"""The problem of streaming strategies for fixed epochs: which specs, the optimum they start from, its evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from factorize.mechanisms import BufferedLinear
from factorize.solvers.epochs import epochs_optimum as epoch_optimum
from factorize.solvers.problem import outline_of
from factorize.spec import Spec
from factorize.structures.base import MAX_DENSE

if TYPE_CHECKING:
    from factorize.solvers.epochs.blocks import BlockAscent, Ring


def refusal(spec: Spec) -> str | None:
    """Return why no streaming strategy is found for a spec with fixed epochs, or None."""
    assert isinstance(spec.mechanism, BufferedLinear)
    workload, states = spec.optimize_for or spec.workload, spec.mechanism.buffers
    epochs = spec.participation.spread(workload.n).most
    inverse = outline_of(spec).bidiagonal_inverse()
    if inverse is None or spec.objective.weighted_inverse(inverse) is None:
        return (
            f"buffered_linear under fixed_epochs needs a bidiagonal inverse with positive entries, which the "
            f"{workload.kind} workload under objective {spec.objective.kind!r} has not; use dense"
        )
    if epochs > epoch_optimum.LARGEST_EPOCHS or workload.n < epoch_optimum.SHORTEST_EPOCH * epochs:
        return (
            f"n={workload.n} with {epochs} epochs is outside buffered_linear (at most {epoch_optimum.LARGEST_EPOCHS} "
            f"epochs, at least {epoch_optimum.SHORTEST_EPOCH} steps each); use dense"
        )
    if states >= workload.n // epochs:
        return f"buffers={states} is not below the {workload.n // epochs} steps of an epoch; use fewer, or dense"
    if workload.n > MAX_DENSE:
        return (
            f"n={workload.n} exceeds {MAX_DENSE}, up to which the sensitivity to several epochs is certified; use a "
            "smaller n, or nu_toeplitz"
        )
    return None


def optimal(ring: Ring, optimum: BlockAscent) -> np.ndarray:
    """Return the optimum over all matrices, whole."""
    from factorize.solvers.epochs.cholesky import reverse_cholesky
    from factorize.solvers.epochs.gram import masked, whole_gram

    gram = whole_gram(ring, optimum.point)
    masked(gram, ring.epochs)
    return reverse_cholesky(gram)


def dual_of(optimum: BlockAscent) -> dict[str, np.ndarray]:
    """Return the evidence for the lower bound over all matrices."""
    from factorize.solvers.epochs.step_kernels import factors

    out = np.empty_like(optimum.point.dual)
    factors(optimum.point.dual, out)
    return {"factors": out}
