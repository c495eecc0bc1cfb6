"""The receipt of a run: its schema, the chain of its processes, and what it states of the calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from factorize.encoding import is_digest, json_digest
from factorize.format.bins_claims import check_keys, require
from factorize.format.weights import KINDS

SCHEMA = "factorize.receipt/2"
LOSSES = {
    "per_example": "that the loss is one for each example was compared before the first step, and is the job's word",
    "rehearsed": "that no example changes the gradients of others was rehearsed with one batch, and is the job's word",
    "not_looked_at": "the loss: nobody looked whether an example changes the gradients of others; if so, nothing holds",
}
"""How a job looked at its loss, and what of that is not proved."""
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


def check_chain(run: str, steps: Mapping[str, Any]) -> None:
    """Refuse a chain in which a process does not name the one before it.

    Raises:
        ClaimRefused: it is broken.
    """
    chain, before = steps["chain"], None
    require(len(chain) == len(steps["processes"]), "the receipt does not say which process took which steps")
    for process, taken in zip(chain, steps["processes"], strict=True):
        check_keys("an entry of its chain", process, {"process", "previous"})
        require(process["previous"] == before, f"the process {process['process']} does not continue the one before it")
        before = link_of(run, process, taken)


def check_names(receipt: Mapping[str, Any]) -> None:
    """Refuse names of run, processes, noise and model that are none.

    Raises:
        ClaimRefused: one is none.
    """
    commitments, model = receipt["noise"]["commitments"], receipt["model"]
    names = [receipt["run"], *commitments, *(process["process"] for process in receipt["steps"]["chain"])]
    if model is not None:
        check_keys("its model", model, {"of", "sha256"})
        require(model["of"] in KINDS and receipt["steps"]["ended"], "a run that has ended states its model's digest")
        names.append(model["sha256"])
    require(receipt["loss"] in LOSSES, f"the loss {str(receipt['loss'])[:40]!r} is none of {', '.join(LOSSES)}")
    require(all(map(is_digest, names)), "run, processes, noise and model are named by 64 hexadecimal digits")
    one_each = len(set(commitments)) == len(commitments) and len(commitments) in (0, len(receipt["factors"]))
    require(one_each, "the receipt does not commit to one noise for each of its factors")


def is_state_of(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether the second of two receipts of one run has been in the state of the first; links bind steps before."""
    if one["steps"]["ended"]:
        return bool(one["digest"] == other["digest"])
    (mine, own), (theirs, longer) = ((each["steps"]["processes"], each["steps"]["chain"]) for each in (one, other))
    count = len(own)
    return bool(own == longer[:count] and mine[-1:] <= theirs[:count][-1:])


def steps_of(receipt: Mapping[str, Any]) -> int:
    """Return the steps that all processes together have taken."""
    return max((last for _, last in receipt["steps"]["processes"]), default=0)
