"""`factorize calibrate`: from a certified sensitivity and a privacy target to the noise to draw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.commands.options import Output, StoreUrl, Target
from api.commands.sources import open_target
from api.exits import VerificationFailed
from api.terminal import OutputForm, emit
from factorize.errors import CertificateError

if TYPE_CHECKING:
    from factorize.factorization import Factorization

Epsilon = Annotated[float | None, typer.Option("--epsilon", help="Of (epsilon, delta)-DP.", show_default=False)]
Delta = Annotated[float | None, typer.Option("--delta", help="With --epsilon; else reported.", show_default=False)]
Rho = Annotated[float | None, typer.Option("--rho", help="Of rho-zCDP.", show_default=False)]
Mu = Annotated[float | None, typer.Option("--mu", help="Of mu-GDP.", show_default=False)]
ClipNorm = Annotated[float, typer.Option("--clip-norm", help="Norm that contributions are clipped to.")]
BatchSize = Annotated[
    int | None, typer.Option("--batch-size", help="Fixed public divisor, for means.", show_default=False)
]
Adjacency = Annotated[str, typer.Option("--adjacency", help="zero_out or replace_one.")]


def calibrate(
    target: Target,
    epsilon: Epsilon = None,
    delta: Delta = None,
    rho: Rho = None,
    mu: Mu = None,
    clip_norm: ClipNorm = 1.0,
    batch_size: BatchSize = None,
    adjacency: Adjacency = "zero_out",
    store: StoreUrl = None,
    output: Output = OutputForm.TEXT,
) -> None:
    """Compute the standard deviation of the noise for (--epsilon, --delta), --rho or --mu.

    The sensitivity is recomputed from C first; a file that claims less exits with 4.
    """
    from factorize.privacy import PrivacyTarget
    from factorize.privacy import calibrate as compute

    wanted = PrivacyTarget(epsilon=epsilon, delta=delta, rho=rho, mu=mu)
    factorization = open_target(target, store)
    _check_sensitivity(factorization)
    answer = compute(
        factorization.certificate.sensitivity, wanted, clip_norm=clip_norm, batch_size=batch_size, adjacency=adjacency
    )
    document = answer.document()
    emit(output, document, _text(document))


def _check_sensitivity(factorization: Factorization) -> None:
    """Noise is scaled to this number, so that a forged one would cost privacy; recomputing it is cheap."""
    stated = factorization.certificate.sensitivity
    fresh = factorization.spec.participation.sensitivity(factorization.strategy)
    if stated.value < fresh.value * (1 - 1e-12) or stated.participation != fresh.participation:
        raise VerificationFailed(
            CertificateError(
                f"the stated sensitivity {stated.value!r} is below {fresh.value!r}, the one of the stored C, or is for "
                "another participation: noise scaled to it would be too small; do not use this file"
            )
        )


def _text(document: dict[str, Any]) -> str:
    """One line per number, the one to use first."""
    names = ("sigma", "noise_multiplier", "sensitivity", "clip_norm", "batch_size", "adjacency")
    shown = [f"{name:<18}{document[name]}" for name in names if document[name] is not None]
    guarantees = ("epsilon", "delta", "rho", "mu")
    shown += [f"{name:<18}{document[name]:.12g}" for name in guarantees if document[name] is not None]
    what = "means with that divisor" if document["batch_size"] is not None else "sums of clipped contributions"
    shown.append(f"sigma is the standard deviation per entry of Z, for {what}, without amplification by sampling")
    return "\n".join(shown)
