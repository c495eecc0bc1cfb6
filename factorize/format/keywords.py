"""Keywords of a spec: every field of every kind by its name, for completion and type checkers.

They are the options of the command line (`factorize/plain_data/words.py` reads them from the classes themselves):
`epochs=8` is `fixed_epochs`, `mechanism="banded", bands=4` is `banded{bands}`. The reader of the spec refuses keywords
that a kind does not take.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

import numpy as np

Part = Mapping[str, Any]
"""A part of a spec in the contract's JSON form."""
Numbers = Sequence[float] | np.ndarray

WorkloadKind = Literal[
    "adam", "decay", "identity", "matrix", "momentum", "mu2", "prefix", "schedule", "srg", "weight_decay", "window"
]
ParticipationKind = Literal["single", "fixed_epochs", "min_sep"]
ObjectiveKind = Literal["mean", "lambda_tau", "max", "weighted"]
MechanismKind = Literal[
    "auto",
    "dense",
    "banded",
    "buffered_linear",
    "toeplitz",
    "banded_toeplitz",
    "nu_toeplitz",
    "spectral",
    "blt",
    "square_root",
    "banded_square_root",
    "banded_inverse_square_root",
    "banded_inverse_fractional_root",
    "banded_inverse_toeplitz",
    "tree",
    "fft",
    "anti_pgd",
    "lambda_cgd",
    "identity",
    "semidefinite",
    "added",
]
ScheduleKind = Literal["cosine", "cosine_to_last", "linear_cooldown", "step", "warmup_cosine"]


class SpecKeywords(TypedDict, total=False):
    """The keywords of a spec other than its workload; docs/spec.md has the meanings."""

    # These keywords describe the workload.
    n: int | Literal["unbounded"]
    beta: float
    momentum: float
    nesterov: bool
    learning_rates: Numbers | ScheduleKind | Part
    final: float
    steps: int
    every: int
    factor: float
    warmup: int
    rate: float
    mode: Literal["decoupled", "coupled"]
    width: int
    decay: float
    output: Literal["q", "w", "x"]
    rows: Sequence[Sequence[float]] | np.ndarray
    sha256: str
    shape: Sequence[int]
    # These keywords describe the participation.
    participation: ParticipationKind | Part
    epochs: int
    min_sep: int
    max_participations: int
    # These keywords describe the objective.
    objective: ObjectiveKind | Part
    tau: int
    weights: Numbers
    # These keywords describe the mechanism.
    mechanism: MechanismKind | Part
    bands: int
    buffers: int
    redraws: int
    normalization: Literal["none", "columns", "auto", "fitted"]
    nu: float | Literal["tune"]
    gamma: float | Literal["tune"]
    correlation: float | Literal["tune"]
    decoder: Literal["online", "honaker_online", "honaker_full", "circulant", "optimal"]
    restart_every: int
    damping: float
    learning_rate: float
    eigenvalues: Numbers
    strong_convexity: float
    smoothness: float
    # These keywords describe the spec itself and its sampling.
    tolerance: float
    optimize_for: WorkloadKind | Part
    sampling: Literal["balls_in_bins"] | Part
    epsilon: float
    delta: float


def plain(value: object) -> Any:
    """Return a keyword's value as plain data: arrays and sequences as lists, numbers of numpy as Python's."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple | range):
        return [plain(one) for one in value]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
