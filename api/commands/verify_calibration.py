"""The checks that `verify FILE --calibration CLAIM.json` runs and prints; see factorize/checker/sampling."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from factorize.api.commands.checking import _bytes
from factorize.api.terminal.exit_codes import ExitCode, VerificationFailed
from factorize.api.terminal.output import OutputForm, emit
from factorize.errors import CorruptObject, InvalidParameter

if TYPE_CHECKING:
    from factorize.checker.sampling.calibrations import CalibrationReport

MOST_BYTES = 1 << 20
_DIRECTIONS = {"pq": "removal", "qp": "addition"}


def verify_calibration(target: str, store: str | None, path: Path, fresh: bool, output: OutputForm) -> None:
    """Check a claim of amplified privacy against the bytes of a factor file.

    Args:
        target: path or digest of the factors.
        store: what `--store` says.
        path: the claim, or a calibration that holds it under `claim`.
        fresh: whether to draw with a seed of this run.
        output: text or JSON.

    Raises:
        VerificationFailed: the factor file is damaged.
        InvalidParameter: the claim's file is no JSON object.
        typer.Exit: with 4 where the claim is refused, after the report.
    """
    from factorize.checker.sampling.calibrations import check_calibration
    from factorize.encoding import read_json

    found = read_json(path.read_bytes()[: MOST_BYTES + 1], limit=MOST_BYTES)
    if not isinstance(found, dict):
        raise InvalidParameter(f"{path} holds no JSON object; give the claim that calibrate wrote", field="calibration")
    try:
        report = check_calibration(_bytes(target, store), found, fresh=fresh)
    except CorruptObject as error:
        raise VerificationFailed(error) from None
    document = {"verified": report.supported, "factors": target, **report.document()}
    del document["sensitivity"]
    emit(output, document, "\n".join(lines(report, target)))
    if not report.supported:
        raise typer.Exit(ExitCode.VERIFICATION_FAILED)


def lines(report: CalibrationReport, target: str) -> list[str]:
    """Return a report as text."""
    found = [f"{'accepted' if report.supported else 'REFUSED':13} {target}"]
    numbers: dict[str, Any] = report.calibration
    if "sigma_of_sums" in numbers:
        level = f"epsilon {numbers['epsilon']:g}, delta {numbers['delta']:g}"
        told = f"{level} at a sigma of sums of {numbers['sigma_of_sums']!r}"
        found.append(f"claimed       {told}, {numbers['bins']} bins, a secret one for each example")
        found.append(f"claim         {numbers['claim_digest']} (seed: {numbers['seed']})")
    if "least_delta" in numbers:
        found.append(f"delta         at least {numbers['least_delta']:.4g}, as bins taken one at a time show")
    for direction, name in _DIRECTIONS.items():
        if "estimate" in numbers.get(direction, {}):
            found.append(f"{name:13} delta near {numbers[direction]['estimate']:.6g}, by the samples drawn here")
    found += [f"failed        {text}" for text in report.failed]
    found += [f"checked       {text}" for text in report.checked]
    return found + [f"not checked   {text}" for text in report.not_checked]
