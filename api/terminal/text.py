"""Results as text: the few lines that people read, and what their terms mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from factorize.format.labels import describe_spec

if TYPE_CHECKING:
    from factorize.solution import Progress
_DOING = {
    "compile": "compiling once, about 20 s",
    "coarse grid": "on a coarse grid, {gap} there",
    "bound": "searching a lower bound, {gap} of that search",
    "certify": "certifying",
    "prove": "proving the written bytes",
    "store": "storing",
}
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


def describe_certificate(certificate: Mapping[str, Any]) -> list[str]:
    """Return the certificate's numbers, one per line."""
    sensitivity, loss = certificate["sensitivity"], certificate["loss"]
    kind = "exact" if sensitivity["kind"] == "exact" else "an upper bound"
    lines = [
        f"sensitivity   {sensitivity['value']:.12g}  ({kind}: {sensitivity['rule']})",
        f"objective     {_loss(loss['objective'], 12)}",
        f"rmse          {_loss(loss['rmse'], 12)}",
        f"max error     {_loss(loss['max_error'], 12)}",
        f"last iterate  {_loss(loss['last_iterate'], 12)}",
        f"lower bound   {_bound(certificate['lower_bound'])}",
    ]
    if certificate.get("class_lower_bound"):
        lines.append(f"class bound   {_bound(certificate['class_lower_bound'])}")
    gap = certificate["relative_gap"]
    lines.append(f"relative gap  {'unknown' if gap is None else format(gap, '.3g')}")
    lines.append(f"residual      {certificate['residual']['max_abs']:.3g}")
    lines.append(f"converged     {'yes' if certificate['converged'] else 'no'}")
    return lines + [f"warning       {text}" for text in certificate["warnings"]]


def _loss(value: float | None, digits: int) -> str:
    return "infinite" if value is None else f"{value:.{digits}g}"


def _bound(bound: Mapping[str, Any] | None) -> str:
    return "none known" if bound is None else f"{bound['objective']:.12g}  ({bound['rule']})"


def describe_manifest(manifest: Mapping[str, Any]) -> str:
    """Return a result in text."""
    head = [
        f"spec          {describe_spec(manifest['spec'])}",
        f"spec digest   {manifest['spec_digest']}",
        f"digest        {manifest['digest']}",
    ]
    return "\n".join(head + describe_certificate(manifest["certificate"]))


def describe_gap(certificate: Mapping[str, Any]) -> str:
    """Return objective and gap in a few words, for one line per result."""
    gap = certificate["relative_gap"]
    known = "no bound known" if gap is None else f"gap {gap:.1e}"
    met = "" if certificate["converged"] else ", tolerance not met"
    return f"objective {_loss(certificate['loss']['objective'], 8)}, {known}{met}"


def describe_seconds(seconds: float) -> str:
    """Return a duration in the unit that fits it, to two digits: `0.05 s`, `40 s`, `12 min`, `3.1 h`."""
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def state_text(progress: Progress) -> str:
    """Return what a solve is doing, the gap that it has and of which problem, and the time left, in a few words."""
    left = "" if progress.seconds_left is None else f", about {max(1, round(progress.seconds_left))} s left"
    return _DOING.get(progress.phase, "{gap}").format(gap=_gap_text(progress)) + left


def _gap_text(progress: Progress) -> str:
    if progress.relative_gap is not None:
        return f"gap {progress.relative_gap:.2e}"
    if progress.class_gap is not None:
        return f"gap within its class {progress.class_gap:.2e}"
    return "no gap yet"


def explained(text: str) -> str:
    """Return a printed result with the meaning of each term that it has below."""
    used = [name for name in TERMS if any(line.startswith(f"{name} ") for line in text.splitlines())]
    return "\n".join([text, "", *(f"{name:<14}{TERMS[name]}" for name in used)])
