"""Calibrating factors, wherever they are: the noise for a privacy target, or what a given noise is worth."""

from __future__ import annotations

from typing import Any

from factorize.errors import InvalidParameter, extras_named
from factorize.privacy import Adjacency, Calibration, PrivacyTarget, calibrate
from factorize.privacy_question import question_of


class CalibratedFactors:
    """Factors that can be asked for their noise."""

    def calibrate(
        self,
        target: PrivacyTarget | None = None,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        rho: float | None = None,
        mu: float | None = None,
        sigma: float | None = None,
        clip_norm: float = 1.0,
        divisor: int | None = None,
        adjacency: Adjacency | str = Adjacency.ZERO_OUT,
        sampling: str = "fixed",
        dataset_size: int | None = None,
        batch_size: int | None = None,
        bins: int | None = None,
        steps: int | None = None,
        spent_mu: float | None = None,
    ) -> Calibration:
        """Return the noise for a privacy target: exactly one of (epsilon, delta), rho and mu, or a `PrivacyTarget`.

        With `sigma`, which is for sums, and one of epsilon and delta it returns what that noise is worth: the other one
        is found. With `steps` the answer is for the first steps of the run, where it stops there; with `spent_mu` for
        what is left of the target after other runs on the same data. `divisor` is the public divisor of means;
        `batch_size` is of a sampling and divides nothing. See `factorize.privacy.calibrate`; and with another
        `sampling` than `fixed`, which takes (epsilon, delta) and the file of C, see
        `factorize.accounting.calibrate_sampling`.

        Raises:
            InvalidParameter: no target, two of them, or a value out of range.
            UnsupportedAdjacency: add/remove, or an unknown name.
            MissingExtra: the sampling's accounting takes the extra `[solve]`.
        """
        factors: Any = self
        numbers = {"epsilon": epsilon, "delta": delta, "rho": rho, "mu": mu, "sigma": sigma, "spent_mu": spent_mu}
        if target is not None and any(value is not None for value in numbers.values()):
            raise InvalidParameter("a PrivacyTarget and numbers beside it are two targets; give one", field="target")
        asked = question_of(**numbers) if target is None else target
        if sampling == "fixed" and (dataset_size, batch_size, bins, steps) == (None,) * 4:
            return calibrate(factors.sensitivity, asked, clip_norm=clip_norm, divisor=divisor, adjacency=adjacency)
        from factorize.accounting.schemes import calibrate_sampling

        with extras_named(f"a calibration for {sampling}"):
            return calibrate_sampling(
                factors,
                asked,
                sampling=sampling,
                clip_norm=clip_norm,
                divisor=divisor,
                adjacency=adjacency,
                dataset_size=dataset_size,
                batch_size=batch_size,
                bins=bins,
                steps=steps,
            )
