"""`factorize verify`: recompute a certificate from the bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.commands.options import Output, StoreUrl, Target
from api.commands.sources import open_target
from api.commands.text import describe_certificate
from api.exits import VerificationFailed
from api.terminal import OutputForm, emit
from factorize.errors import CertificateError, CorruptObject, UnsupportedProblem

if TYPE_CHECKING:
    from factorize.certificate import Certificate
    from factorize.factorization import Factorization

Exact = Annotated[bool, typer.Option("--exact", help="Check in rational arithmetic (a later release).")]


def verify(target: Target, exact: Exact = False, store: StoreUrl = None, output: Output = OutputForm.TEXT) -> None:
    """Recompute the certificate of a result from its bytes, and say what was checked and what was not.

    Exits with 4 where a number does not hold or the bytes are damaged.
    """
    if exact:
        raise UnsupportedProblem(
            "--exact (the check in rational arithmetic) comes with a later release; verify without it recomputes every "
            "number in double precision, with the sensitivity and the bound rounded outwards"
        )
    try:
        factorization = open_target(target, store)
        fresh = factorization.verify()
    except (CertificateError, CorruptObject) as error:
        raise VerificationFailed(error) from None
    checked, unchecked = _checked(factorization, fresh), _unchecked(fresh)
    document = {
        "verified": True,
        "digest": factorization.digest,
        "spec_digest": factorization.spec_digest,
        "checked": checked,
        "not_checked": unchecked,
        "certificate": fresh.document(),
    }
    emit(output, document, _text(document))


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
    left = ["exact arithmetic: everything was recomputed in double precision (verify --exact is a later release)"]
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
