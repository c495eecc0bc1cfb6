"""`factorize verify`: prove the claims of a result from its bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from factorize.api.terminal.exit_codes import VerificationFailed
from factorize.api.terminal.options import Explain, Output, StoreUrl, argument, option
from factorize.api.terminal.output import OutputForm
from factorize.api.terminal.sources import open_target
from factorize.errors import CertificateError, CorruptObject, InvalidParameter

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
    strategy: StrategyFile = None,
    participation: ParticipationText = None,
    claim: Claim = 1.0,
    calibration: CalibrationFile = None,
    seed: Seed = "claim",
    explain: Explain = False,
    store: StoreUrl = None,
    output: Output = OutputForm.TEXT,
) -> None:
    """Prove every claim of a result from its bytes, and list those that were not looked at.

    With --strategy: answer whether a matrix of your own has the sensitivity that you believe. With --calibration:
    re-run the test of a claim that calibrate wrote. Exits with 4 where a claim does not hold or the bytes are
    damaged, and with 6 where one was not looked at.
    """
    from factorize.api.commands.checking import check_file, finish, verify_strategy
    from factorize.api.proof import confirm_sensitivity

    if (target is None) == (strategy is None):
        raise InvalidParameter("name one thing to verify: FILE or DIGEST, or --strategy C.npy", field="target")
    if seed != "claim" and calibration is None:
        raise InvalidParameter("--seed is for --calibration CLAIM.json", field="seed")
    if strategy is not None:
        return verify_strategy(strategy, participation, claim, output)
    assert target is not None
    if calibration is not None:
        from factorize.api.commands.verify_calibration import verify_calibration

        return verify_calibration(target, store, calibration, seed == "fresh", output)
    try:
        factorization = open_target(target, store)
        report = check_file(target, store, factorization)
        head: dict[str, Any] = {"digest": factorization.digest, "spec_digest": factorization.spec_digest}
        if report.supported:
            head["certificate"] = factorization.manifest["certificate"]
            confirm_sensitivity(report, factorization)
    except (CertificateError, CorruptObject) as error:
        raise VerificationFailed(error) from None
    finish(report, head, output, explain=explain)
