"""`factorize verify`: the claims of a result, of a matrix of one's own, or of a calibration, proved from bytes."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

import numpy as np
import typer

from factorize.api.local import bind, certify_file
from factorize.api.proof import confirm_sensitivity, examined
from factorize.api.questions.calibration_request import answer, read_calibration_request
from factorize.api.terminal.output import (
    ExitCode,
    Explain,
    Holds,
    PublicKey,
    Shown,
    SignatureFile,
    VerificationFailed,
    argument,
    describe_certificate,
    explained,
    option,
    remark,
)
from factorize.api.terminal.sources import existing_results, file_of, open_target, read_spec, read_spec_text, read_start
from factorize.checker.check import check_matrix_sensitivity
from factorize.checker.receipt_text import STATUSES, verdict
from factorize.checker.report import Report
from factorize.checker.sampling.calibrations import CalibrationReport, check_calibration
from factorize.encoding import JsonObject, in_one_line, read_json
from factorize.errors import CertificateError, CorruptObject, InvalidParameter, InvalidStrategy
from factorize.factors.strategy_file import read_strategy
from factorize.format.claims import is_exact
from factorize.format.container import Container
from factorize.format.manifest import Manifest
from factorize.format.quantities import at_most
from factorize.format.signatures import check_signature
from factorize.numbers.scalars import finite_real
from factorize.spec import parse_spec
from factorize.structures.base import Matrix, StoredMatrix


def verify(
    target: Annotated[
        str | None,
        argument(metavar="FILE|DIGEST", help="A factor file, or the digest or spec digest of a stored result."),
    ] = None,
    strategy: Annotated[
        Path | None, option(metavar="FILE", help="Anybody's strategy: .npy, .npz, .safetensors or TensorProto.")
    ] = None,
    holds: Holds = None,
    spec: Annotated[
        str | None, option(metavar="SPEC", help="With --strategy: what it is for; its losses are proved too.")
    ] = None,
    sigma: Annotated[
        float | None, option(help="With --spec and --delta: of each entry of Z, for sums of norm 1; epsilon is stated.")
    ] = None,
    delta: Annotated[float | None, option(help="With --sigma.")] = None,
    participation: Annotated[
        str | None,
        option(metavar="JSON|SPEC", help="With --strategy: who takes part when, as JSON, or a spec that says so."),
    ] = None,
    claim: Annotated[
        float | None, option(help="With --strategy: the sensitivity that you believe it has; 1 if not given.")
    ] = None,
    calibration: Annotated[
        Path | None,
        option(
            metavar="CLAIM.json", help="A claim of privacy under balls-in-bins sampling, checked from the bytes of C."
        ),
    ] = None,
    seed: Annotated[
        Literal["claim", "fresh"],
        typer.Option(help="With --calibration: draw with the claim's seed, or with one of this run."),
    ] = "claim",
    explain: Explain = False,
    signature: SignatureFile = None,
    public_key: PublicKey = None,
    store: str | None = None,
) -> Shown:
    """Prove every claim of a result from its bytes, and list those that were not looked at.

    With --strategy: answer whether anybody's matrix has the sensitivity that you believe under --participation, or
    prove its sensitivity and losses for --spec, and state the epsilon of --sigma at --delta. With --calibration:
    re-run the test of a claim that calibrate wrote. Exits with 4 where a claim does not hold or the bytes are
    damaged, and with 6 where one was not looked at.
    """
    if (target is None) == (strategy is None):
        raise InvalidParameter("name one thing to verify: FILE or DIGEST, or --strategy C.npy", field="target")
    if seed != "claim" and calibration is None:
        raise InvalidParameter("--seed works only with --calibration CLAIM.json", field="seed")
    if (signature or public_key) and (target is None or calibration is not None):
        raise InvalidParameter("--signature works only with the claims of a FILE or DIGEST", field="signature")
    if strategy is None and (spec, sigma, delta, holds) != (None,) * 4:
        raise InvalidParameter("--spec, --sigma, --delta and --holds work only with --strategy FILE", field="strategy")
    if strategy is not None and spec is not None:
        if participation is not None or claim is not None:
            raise InvalidParameter("--spec sets the participation and the claim; leave out both options", field="spec")
        return verify_for_spec(strategy, spec, holds, sigma, delta, store)
    if strategy is not None:
        if sigma is not None or delta is not None:
            raise InvalidParameter("--sigma and --delta need --spec SPEC, which the strategy is for", field="spec")
        return verify_strategy(strategy, participation, 1.0 if claim is None else claim, holds)
    assert target is not None
    if target.endswith((".npy", ".npz")):
        raise InvalidParameter(f"{target} is a matrix, not a factor file; use --strategy {target}", field="target")
    if calibration is not None:
        return verify_calibration(target, store, calibration, seed == "fresh")
    try:
        with file_of(target, store) as path:
            signed = check_signature(path, signature, public_key) if signature or public_key else None
            data = path.read_bytes()
        if signed is not None:
            signed.check_bytes(data)
        factorization = open_target(target, store)
        if Manifest.read(Container(data)).digest != factorization.digest:
            raise CorruptObject(f"{target} was changed while it was read; verify it again")
        own = factorization.spec.user_matrices().get("workload")  # the store has them: they are in no factor file
        report = examined(data, {} if own is None else {str(own.sha256): own.array})
        head: dict[str, object] = {"digest": factorization.digest, "spec_digest": factorization.spec_digest}
        if signed is not None:
            head["signature"] = signed.document()
        if report.supported:
            head["certificate"] = factorization.manifest.certificate
            confirm_sensitivity(report, factorization)
    except CertificateError as error:
        raise VerificationFailed(error) from None
    return _shown_report(report, head, explain=explain)


_MAX_SHOWN_STEPS = 12


def verify_for_spec(
    path: Path, text: str, holds: str | None, sigma: float | None, delta: float | None, store: str | None
) -> Shown:
    """Certify anybody's strategy as it is for a spec, and prove what that states; with a sigma, its epsilon at delta.

    Raises:
        VerificationFailed: it is no strategy, or C does not serve the workload.
        CorruptObject: the file is damaged.
        InvalidParameter: one of sigma and delta alone.
    """
    asked = None if sigma is None and delta is None else read_calibration_request({"sigma": sigma, "delta": delta})
    wanted, results = read_spec(text), existing_results(store)
    try:
        spec = wanted if results is None else bind(wanted, results)
        certified = certify_file(path, spec, holds, as_given=True, remark=remark)
        with TemporaryDirectory(prefix="factorize.") as folder:
            certified.save(Path(folder) / "C.safetensors")
            report = examined((Path(folder) / "C.safetensors").read_bytes(), spec.user_arrays())
        confirm_sensitivity(report, certified)
    except (InvalidStrategy, CertificateError) as error:
        raise VerificationFailed(error) from None
    head: dict[str, object] = {"strategy": str(path), "spec": spec.document()}
    head["certificate"] = certified.manifest.certificate
    if asked is not None:
        head["privacy"] = answer(certified, asked)
    return _shown_report(report, head)


def verify_strategy(path: Path, participation: str | None, claim: float, holds: str | None = None) -> Shown:
    """Answer whether a matrix of anybody's has sensitivity at most `claim` under a participation.

    Raises:
        VerificationFailed: it is no strategy matrix.
        CorruptObject: the file is damaged.
        InvalidParameter: the participation is missing, is none, or does not fit the matrix; or no such claim exists.
    """
    claim = finite_real("claim", claim, remedy="give the sensitivity that you expect")
    if participation is None:
        raise InvalidParameter(
            '--strategy needs --participation, JSON such as \'{"kind": "single"}\', or --spec, which the matrix is for',
            field="participation",
        )
    try:
        given = read_strategy(path, holds=holds)
        if isinstance(given, Matrix) and not isinstance(given, StoredMatrix):
            raise InvalidParameter(f"{path} describes C by a recursion; give --spec, which it is for", field="spec")
        array = given if isinstance(given, np.ndarray) else given.dense()
        document = _participation(participation, array.shape[1])
        report = check_matrix_sensitivity(array, document, claim=claim)
    except InvalidStrategy as error:
        raise VerificationFailed(error) from None
    return _shown_report(report, {"strategy": str(path), "shape": list(array.shape), "participation": document})


def _participation(text: str, n: int) -> dict[str, object]:
    """Return the canonical participation of JSON text, of a file, or of a spec in either."""
    document = {"kind": "single"} if text == "single" else read_json(read_spec_text(text))
    if isinstance(document, dict) and "workload" in document:
        spec = parse_spec(document)
        if spec.workload.n != n:
            raise InvalidParameter(f"the spec has n={spec.workload.n}, the matrix {n} columns", field="workload")
    else:
        spec = parse_spec({"workload": {"kind": "identity", "n": n}, "participation": document})
    return dict(spec.document()["participation"])


def _shown_report(report: Report, head: dict[str, object], *, explain: bool = False) -> Shown:
    """Return a report; the exit code is 4 where a claim is not supported, else 6 where one was not looked at."""
    document = {"verified": report.supported, "complete": not report.unseen, **head, **report.document()}
    headline, code = verdict(report)
    text = "\n".join(map(in_one_line, _report_lines(report, document, headline)))
    return document, explained(text) if explain else text, code


def _report_lines(report: Report, document: JsonObject, headline: str) -> list[str]:
    """Return a report as text."""
    lines = [f"{headline:13} {document.get('digest') or document.get('strategy', '')}"]
    if "certificate" in document:
        lines += describe_certificate(document["certificate"])
    if "signature" in document:
        lines.append(f"signed        {document['signature']['file']}, by the key sha256:{document['signature']['key']}")
    if "privacy" in document:
        known = document["privacy"]
        level = f"epsilon {at_most(known['epsilon'])} at delta {at_most(known['delta'])}"
        lines.append(f"privacy       {level}, for a sigma of sums of {known['sigma_of_sums']!r} at clip norm 1")
    value = report.sensitivity
    if value:
        ends = f"{value['upper']!r}" if is_exact(value) else f"{value['lower']!r} to {value['upper']!r}"
        lines.append(f"sensitivity   {ends}  ({value['rule']})")
        steps = [
            f"{'-' if sign < 0 else '+'}{step}" for step, sign in zip(value["pattern"], value["signs"], strict=True)
        ]
        more = f" and {len(steps) - _MAX_SHOWN_STEPS} more" if len(steps) > _MAX_SHOWN_STEPS else ""
        lines.append(f"attained by   steps {' '.join(steps[:_MAX_SHOWN_STEPS])}{more}: {value['lower']!r}")
    for claim in report.claims:  # the rules that prove the others are listed below them
        why = "" if claim["status"] == "proved" else f": {claim['why']}"
        lines.append(f"{STATUSES[claim['status']]:13} {claim['claim']}{why}")
    return lines + _findings(report, "failed", "warnings", "checked", "not_checked")


def _findings(report: Report | CalibrationReport, *kinds: str) -> list[str]:
    """Return what a report has of each kind, a line for each."""
    names = {kind: kind.replace("_", " ").removesuffix("s") for kind in kinds}
    return [f"{name:<14}{text}" for kind, name in names.items() for text in getattr(report, kind)]


_DIRECTIONS = {"pq": "removal", "qp": "addition"}


def verify_calibration(target: str, store: str | None, path: Path, fresh: bool) -> Shown:
    """Check a claim of amplified privacy against the bytes of a factor file.

    Args:
        target: path or digest of the factors.
        store: what `--store` says.
        path: the claim, or a calibration that holds it under `claim`.
        fresh: whether to draw with a seed of this run.

    Raises:
        CorruptObject: the factor file is damaged.
        InvalidParameter: the claim's file is no JSON object.
    """
    stated = read_json(read_start(path))
    if not isinstance(stated, dict):
        raise InvalidParameter(f"{path} is not a JSON object; give the claim that calibrate wrote", field="calibration")
    with file_of(target, store) as factors:
        report = check_calibration(factors.read_bytes(), stated, fresh=fresh)
    document = {"verified": report.supported, "factors": target, **report.document()}
    del document["sensitivity"]
    code = ExitCode.OK if report.supported else ExitCode.VERIFICATION_FAILED
    return document, "\n".join(map(in_one_line, _calibration_lines(report, target))), code


def _calibration_lines(report: CalibrationReport, target: str) -> list[str]:
    """Return a report as text."""
    lines = [f"{'accepted' if report.supported else 'REFUSED':13} {target}"]
    numbers: JsonObject = report.calibration
    if "sigma_of_sums" in numbers:
        level = f"epsilon {at_most(numbers['epsilon'])}, delta {at_most(numbers['delta'])}"
        noise = f"{level} at a sigma of sums of {numbers['sigma_of_sums']!r}"
        lines.append(f"claimed       {noise}, {numbers['bins']} bins, a secret one for each example")
        lines.append(f"claim         {numbers['claim_digest']} (seed: {numbers['seed']})")
    for direction, name in _DIRECTIONS.items():
        if "estimate" in numbers.get(direction, {}):
            lines.append(f"{name:13} delta near {numbers[direction]['estimate']:.6g}, by the samples drawn here")
    return lines + _findings(report, "failed", "checked", "not_checked")
