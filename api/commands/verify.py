"""`factorize verify`: recompute a certificate from the bytes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from factorize.api.terminal.exit_codes import VerificationFailed
from factorize.api.terminal.options import Explain, Output, StoreUrl, argument, option
from factorize.api.terminal.output import OutputForm, emit
from factorize.api.terminal.sources import open_target
from factorize.api.terminal.terms import explained
from factorize.api.terminal.text import describe_certificate
from factorize.errors import CertificateError, CorruptObject, InvalidParameter

if TYPE_CHECKING:
    from factorize.certificate.certificate import Certificate
    from factorize.factorization import Factorization

Exact = Annotated[bool, typer.Option("--exact", help="Check every claim in integers and rationals, from the bytes.")]
Integers = Annotated[
    bool, typer.Option("--integers", help="With --exact: whole matrices as integers alone, never in doubles; slow.")
]
OptionalTarget = Annotated[
    str | None, argument(metavar="FILE|DIGEST", help="A factor file, or the digest or spec digest of a stored result.")
]
StrategyFile = Annotated[
    Path | None, option("--strategy", metavar="C.npy", help="A matrix of your own: .npy or .safetensors.")
]
ParticipationText = Annotated[
    str | None,
    option(
        "--participation",
        metavar="JSON|SPEC",
        help="With --strategy: who takes part when, as JSON, or a spec that says so.",
    ),
]
Claim = Annotated[float, typer.Option("--claim", help="With --strategy: the sensitivity that you believe it has.")]
CalibrationFile = Annotated[
    Path | None,
    option(
        "--calibration",
        metavar="CLAIM.json",
        help="A claim of privacy under balls-in-bins sampling, checked from the bytes of C.",
    ),
]
Seed = Annotated[
    Literal["claim", "fresh"],
    typer.Option("--seed", help="With --calibration: draw with the claim's seed, or with one of this run."),
]


def verify(
    target: OptionalTarget = None,
    exact: Exact = False,
    integers: Integers = False,
    strategy: StrategyFile = None,
    participation: ParticipationText = None,
    claim: Claim = 1.0,
    calibration: CalibrationFile = None,
    seed: Seed = "claim",
    explain: Explain = False,
    store: StoreUrl = None,
    output: Output = OutputForm.TEXT,
) -> None:
    """Recompute the certificate of a result from its bytes, and say what was checked and what was not.

    With --strategy: answer whether a matrix of your own has the sensitivity that you believe. With --calibration:
    re-run the test of a claim that calibrate wrote. Exits with 4 where a number does not hold or the bytes are damaged.
    """
    from factorize.api.commands.exact import check_file, finish, verify_strategy

    if (target is None) == (strategy is None):
        raise InvalidParameter("name one thing to verify: FILE or DIGEST, or --strategy C.npy", field="target")
    if seed != "claim" and calibration is None:
        raise InvalidParameter("--seed is for --calibration CLAIM.json", field="seed")
    if integers and not exact:
        raise InvalidParameter("--integers is for --exact", field="integers")
    if strategy is not None:
        return verify_strategy(strategy, participation, claim, output)
    assert target is not None
    if calibration is not None:
        from factorize.api.commands.verify_calibration import verify_calibration

        return verify_calibration(target, store, calibration, seed == "fresh", output)
    try:
        factorization = open_target(target, store)
        report = check_file(target, store, factorization, integers=integers) if exact else None
        if report is not None and not report.supported:
            return finish(report, _head(factorization), output)
        fresh = factorization.verify()
    except (CertificateError, CorruptObject) as error:
        raise VerificationFailed(error) from None
    if report is not None:
        report.checked.append("the certificate in double precision, recomputed by other code, agrees with the claims")
        return finish(report, _head(factorization) | {"certificate": fresh.document()}, output)
    document = {
        "verified": True,
        **_head(factorization),
        "checked": _checked(factorization, fresh),
        "not_checked": _unchecked(fresh),
        "certificate": fresh.document(),
    }
    text = _text(document)
    emit(output, document, explained(text) if explain else text)


def _head(factorization: Factorization) -> dict[str, Any]:
    return {"digest": factorization.digest, "spec_digest": factorization.spec_digest}


def _checked(factorization: Factorization, fresh: Certificate) -> list[str]:
    """What `load` and `verify` have established, in the order in which they do."""
    matrices = factorization.manifest["matrices"]
    found = [
        "every stored tensor hashes to the sha256 in the manifest, and the manifest to its digest",
        "the spec hashes to its spec digest",
        "C is lower-triangular and finite, with a positive diagonal",
        f"sensitivity recomputed from C for this participation: {fresh.sensitivity.rule}",
        f"B C = A up to {fresh.residual:.2g} per entry, with B = A C^-1 recomputed",
        "every loss recomputed from B and the sensitivity",
    ]
    if fresh.lower_bound is not None:
        found.append(f"lower bound recomputed from the dual evidence: {fresh.lower_bound.rule}")
    extra = [name for name in matrices if name != "C"]
    if extra:
        found.append(f"the stored {' and '.join(extra)} agree with C and the workload")
    return found


def _unchecked(fresh: Certificate) -> list[str]:
    left = ["exact arithmetic: everything was recomputed in double precision; verify --exact does it in integers"]
    left.append("that C is of the mechanism that the spec names: verify --exact proves it")
    left.append("who solved it, with what and for how long: provenance is recorded, not proved")
    if fresh.lower_bound is None:
        left.append("optimality: no lower bound is known for this participation and objective, or none was stored")
    if fresh.sensitivity.kind == "upper_bound":
        left.append("how far the sensitivity is above the true one: it is an upper bound")
    return left


def _text(document: dict[str, Any]) -> str:
    lines = [f"verified      {document['digest']}", *describe_certificate(document["certificate"])]
    lines += [f"checked       {text}" for text in document["checked"]]
    lines += [f"not checked   {text}" for text in document["not_checked"]]
    return "\n".join(lines)
