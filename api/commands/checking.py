"""The checks that `verify` runs and prints; see factorize/checker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from factorize.api.terminal.exit_codes import ExitCode, VerificationFailed
from factorize.api.terminal.output import OutputForm, emit
from factorize.api.terminal.sources import full_digest, is_name, open_results, read_spec_text
from factorize.api.terminal.terms import explained
from factorize.api.terminal.text import describe_certificate
from factorize.errors import CorruptObject, InvalidParameter, InvalidStrategy, TooLarge

if TYPE_CHECKING:
    from factorize.checker import Report
    from factorize.factorization import Factorization

_SHOWN = 12
_STATUS = {"proved": "proved", "false": "FALSE", "not_looked_at": "NOT LOOKED AT"}


def check_file(target: str, store: str | None, factorization: Factorization) -> Report:
    """Run the checker over the bytes of a factor file or of a stored result.

    Args:
        target: path or digest.
        store: what `--store` says.
        factorization: the same result, opened; only the numbers of users' matrices are taken from it.

    Raises:
        CorruptObject: the bytes are not accounted for.
    """
    from factorize.checker import check_factor_file, undecided

    own = factorization.spec.user_matrices().get("workload")
    user = {} if own is None else {str(own.sha256): own.array}
    data = _bytes(target, store)
    try:
        return check_factor_file(data, user=user)
    except TooLarge as reason:
        return undecided(data, str(reason))


def _bytes(target: str, store: str | None) -> bytes:
    if not is_name(target):
        return Path(target).read_bytes()
    results = open_results(store, create=False)
    manifest = results.manifest(full_digest(target, results))
    return b"".join(results.blob(manifest["files"][0]["sha256"]).read())


def verify_strategy(path: Path, participation: str | None, claim: float, output: OutputForm) -> None:
    """Answer whether a matrix of anybody's has sensitivity at most `claim` under a participation.

    Raises:
        VerificationFailed: it is no strategy matrix, or the file is damaged.
        InvalidParameter: the participation is missing, is none, or does not fit the matrix.
        typer.Exit: with 4 where the claim is not supported, after the report.
    """
    from factorize.checker import check_strategy, read_array

    if participation is None:
        raise InvalidParameter(
            '--strategy needs --participation: JSON such as \'{"kind": "single"}\', or the spec that the matrix is for',
            field="participation",
        )
    try:
        array = read_array(path)
        document = _participation(participation, array.shape[1])
        report = check_strategy(array, document, claim=claim)
    except (InvalidStrategy, CorruptObject) as error:
        raise VerificationFailed(error) from None
    finish(report, {"strategy": str(path), "shape": list(array.shape), "participation": document}, output)


def _participation(text: str, n: int) -> dict[str, Any]:
    """Return the canonical participation of JSON text, of a file, or of a spec in either."""
    from factorize.encoding import read_json
    from factorize.spec import parse_spec

    found = {"kind": "single"} if text == "single" else read_json(read_spec_text(text))
    if isinstance(found, dict) and "workload" in found:
        spec = parse_spec(found)
        if spec.workload.n != n:
            raise InvalidParameter(f"the spec has n={spec.workload.n} and the matrix has {n} columns", field="workload")
    else:
        spec = parse_spec({"workload": {"kind": "identity", "n": n}, "participation": found})
    return dict(spec.document()["participation"])


def finish(report: Report, head: dict[str, Any], output: OutputForm, *, explain: bool = False) -> None:
    """Write a report, and end with 4 where a claim is not supported, else with 6 where one was not looked at.

    Raises:
        typer.Exit: see above.
    """
    document = {"verified": report.supported, "complete": not report.unseen, **head, **report.document()}
    text = "\n".join(lines(report, document))
    emit(output, document, explained(text) if explain else text)
    if not report.supported:
        raise typer.Exit(ExitCode.VERIFICATION_FAILED)
    if report.unseen:
        raise typer.Exit(ExitCode.NOT_LOOKED_AT)


def lines(report: Report, document: dict[str, Any]) -> list[str]:
    """Return a report as text."""
    name = document.get("digest") or document.get("strategy", "")
    found = [f"{_headline(report):13} {name}"]
    if "certificate" in document:
        found += describe_certificate(document["certificate"])
    value = report.sensitivity
    if value:
        ends = f"{value['upper']!r}" if value["kind"] == "exact" else f"{value['lower']!r} to {value['upper']!r}"
        found.append(f"sensitivity   {ends}  ({value['rule']})")
        steps = [
            f"{'-' if sign < 0 else '+'}{step}" for step, sign in zip(value["pattern"], value["signs"], strict=True)
        ]
        more = f" and {len(steps) - _SHOWN} more" if len(steps) > _SHOWN else ""
        found.append(f"attained by   steps {' '.join(steps[:_SHOWN])}{more}: {value['lower']!r}")
    found += [f"{_STATUS[entry['status']]:13} {entry['claim']}{_reason(entry)}" for entry in report.claims]
    found += [f"failed        {text}" for text in report.failed]
    found += [f"warning       {text}" for text in report.warnings]
    found += [f"checked       {text}" for text in report.checked]
    return found + [f"not checked   {text}" for text in report.not_checked]


def _headline(report: Report) -> str:
    if not report.supported:
        return "NOT SUPPORTED"
    return "NOT ALL SEEN" if report.unseen else "verified"


def _reason(entry: dict[str, str]) -> str:
    """Why a claim is not proved; what proves the others is listed below them."""
    return "" if entry["status"] == "proved" else f": {entry['why']}"
