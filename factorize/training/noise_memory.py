"""Noise within a memory: the mechanism for a number of vectors, and a warning where the noise needs all rows."""

import warnings
from collections.abc import Mapping

from factorize.format.manifest import CertifiedFactors
from factorize.noise.source import source_of
from factorize.numbers.scalars import whole_number
from factorize.spec import parse_spec
from factorize.spec.mechanisms import WARNED_STEPS, DenseNoise, dense_note

STATES_TOLERANCE = 4e-3
"""The tolerance of a streaming optimum over several epochs, the same as in comparisons: its last steps gain less."""

MIN_EPOCH_STEPS = 4
"""The fewest steps of an epoch with which the streaming optimum over several epochs has a solver."""


def warn_of_dense(factors: CertifiedFactors, instead: str) -> None:
    """Warn if the noise of factors keeps as many vectors as there are steps, `WARNED_STEPS` or more.

    Args:
        factors: the factors whose noise is made.
        instead: see `dense_note`.
    """
    steps = factors.steps
    if steps is None or steps < WARNED_STEPS:
        return
    if source_of(factors).cost.vectors >= steps:
        warnings.warn(dense_note(steps, instead), DenseNoise, stacklevel=5)


def spec_within(
    workload: Mapping[str, object],
    participation: Mapping[str, object],
    memory: int,
    amplified: Mapping[str, object] | None = None,
) -> dict[str, object]:
    """Return the spec to solve for a training job that keeps at most this number of vectors of noise state.

    Without sampling it is the streaming optimum, with the draws of earlier epochs made again; it is optimised for the
    learning rates alone if the workload has momentum. Under bins it is the optimum for bins.

    Args:
        workload: workload in the contract's JSON form, with n.
        participation: participation in the contract's JSON form.
        memory: number of vectors, each as large as the model.
        amplified: the sampling to optimise for, in the contract's JSON form.

    Raises:
        InvalidParameter: the memory is below 0.
    """
    memory = whole_number("memory", memory, low=0, remedy="give the number of vectors to keep")
    base: dict[str, object] = {"workload": dict(workload), "participation": dict(participation)}
    spec = parse_spec(base)
    n = spec.workload.n
    if memory == 0 or n < 2:
        return {**base, "mechanism": {"kind": "identity"}}
    if memory >= n:
        return {**base, "mechanism": {"kind": "auto"}}
    if amplified is not None and spec.participation.passes is not None:
        return {**base, "mechanism": {"kind": "blt", "buffers": min(memory, 2)}, "sampling": dict(amplified)}
    spread = spec.participation.spread(n)
    buffers = min(memory, n // 2)
    direct = spec.workload.outline().bidiagonal_inverse() is not None
    if not direct and spec.workload.easier() is None:
        return {**base, "mechanism": {"kind": "blt", "buffers": buffers}}
    streaming: dict[str, object] = {"kind": "buffered_linear", "buffers": buffers}
    document: dict[str, object] = {**base, "mechanism": streaming}
    if spec.participation.periodic:
        if spread.separation < MIN_EPOCH_STEPS:
            return {**base, "mechanism": {"kind": "blt", "buffers": buffers}}
        streaming["buffers"] = min(buffers, spread.separation - 1)
        document["tolerance"] = STATES_TOLERANCE
    return document
