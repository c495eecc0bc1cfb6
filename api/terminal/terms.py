"""Terms of a printed result, each in a sentence, with the page that says more."""

from __future__ import annotations

TERMS = {
    "sensitivity": "the most by which one example or user changes C times the gradients, each contribution of norm 1 "
    "or less; noise is scaled to it (docs/sensitivity.md)",
    "objective": "the loss that was minimised, at noise of one sensitivity: by default the mean of the outputs' "
    "variances (docs/notation.md)",
    "rmse": "root of the mean variance of an output; times the noise multiplier it is the error of a run "
    "(docs/notation.md)",
    "max error": "root of the largest variance of an output (docs/notation.md)",
    "last iterate": "root of the variance of the last output, the trained model (docs/notation.md)",
    "lower bound": "an objective that no matrix beats, recomputed from evidence in the file (docs/notes/method.md)",
    "class bound": "an objective that no matrix of the mechanism's own class beats (docs/notes/method.md)",
    "relative gap": "objective / lower bound - 1: no more than that can be gained (docs/notes/method.md)",
    "residual": "largest entry of |B C - A|: how well the factors multiply to the workload (docs/verification.md)",
    "converged": "whether the tolerance of the spec was met within the mechanism's class (docs/spec.md)",
}


def explained(text: str) -> str:
    """Return a printed result with the meaning of each term that it has below."""
    used = [name for name in TERMS if any(line.startswith(f"{name} ") for line in text.splitlines())]
    return "\n".join([text, "", *(f"{name:<14}{TERMS[name]}" for name in used)])
