"""The receipt of a run: its schema, and what it states of the calibration that its guarantee rests on."""

from __future__ import annotations

SCHEMA = "factorize.receipt/1"
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
