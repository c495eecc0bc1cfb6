"""The receipt of a run: its schema, the chain of its processes, and what it states of the calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from factorize.encoding import json_digest

SCHEMA = "factorize.receipt/2"
CALIBRATION = {
    *("noise_multiplier", "sigma_of_sums", "sigma_of_means", "divisor", "clip_norm", "adjacency", "epsilon", "delta"),
    *("mu", "sensitivity", "sensitivity_kind", "sensitivity_rule", "participation", "sampling"),
}
"""What is stated of every calibration; the rest of it follows from this."""
_BINS = {"bins", "epochs", "epsilon_without_secrecy", "claim", "claim_digest"}
SAMPLED = {
    "fixed": set[str](),
    "cyclic_poisson": {"sampling_probability", "groups", "compositions", "largest_column"},
    "balls_in_bins": _BINS,
    "random_allocation": _BINS,
}
"""What is stated beside it, by sampling."""
MOMENTS = {"second_sigma_of_sums", "second_sigma_of_means", "weight", "digests"}
"""What is stated beside it where the squares of gradients have noise of their own."""


def link_of(run: str, process: Mapping[str, Any], taken: Sequence[int]) -> str:
    """Return the digest by which a process names the one that it continues.

    Args:
        run: the name of the run.
        process: the earlier process's own entry of the chain, with the digest of the one before it.
        taken: its steps, from and before.
    """
    return json_digest({"run": run, **process, "steps": list(taken)})
