"""Results as text: the few lines that people read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from factorize.format.labels import describe_part as describe_part
from factorize.format.labels import describe_spec

if TYPE_CHECKING:
    from factorize.solution import Progress


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


_DOING = {
    "compile": "compiling once, about 20 s",
    "coarse grid": "on a coarse grid, {gap} there",
    "bound": "searching a lower bound, {gap} of that search",
    "certify": "certifying",
    "prove": "proving the written bytes",
    "store": "storing",
}


def _gap_text(progress: Progress) -> str:
    if progress.relative_gap is not None:
        return f"gap {progress.relative_gap:.2e}"
    if progress.class_gap is not None:
        return f"gap within its class {progress.class_gap:.2e}"
    return "no gap yet"
