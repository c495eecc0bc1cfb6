"""The one door through which data leaves a training algorithm: clip, sum, add the noise of the step, divide.

Everything with a method `next()` that returns the noise of the next step will do, scaled and correlated; so will the
engines of `factorize.client`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from factorize.errors import InvalidParameter
from factorize.format.manifest import CertifiedFactors, certified
from factorize.noise.generator import NoiseGenerator
from factorize.noise.source import source_of
from factorize.privacy import Calibration, PrivacyTarget, calibrate
from factorize.privacy.adjacency import Adjacency
from factorize.training.bins_order import BallsInBins
from factorize.training.orders import Order
from factorize.training.receipt import Receipt
from papers.training.clip import Contributions, clipped_sum
from papers.training.order_record import OrderRecord


class NoiseSource(Protocol):
    """The noise of one run."""

    def next(self) -> np.ndarray:
        """Return the noise of this step, of the shape of the parameters, and go on to the next."""


class FactorizationNoise(NoiseGenerator):
    """The correlated noise of a factorization, calibrated to a privacy target.

    Args:
        factors: the factors that `factorize.solve` or `factorize.load` returned.
        target: the privacy asked for.
        shape: shape of the parameters.
        clip_norm: bound on one contribution to one step.
        divisor: the fixed public divisor where steps are means.
        adjacency: `zero_out` or `replace_one`.
        seed: secret, `secrets.randbits(128)`; never used for a second run of the same factorization.

    Attributes:
        factors: factors of C.
        origin: what the noise is a function of, the seed included.
    """

    def __init__(
        self,
        factors: CertifiedFactors,
        target: PrivacyTarget,
        shape: int | Sequence[int],
        *,
        clip_norm: float = 1.0,
        divisor: int | None = None,
        adjacency: Adjacency | str = Adjacency.ZERO_OUT,
        seed: int,
    ) -> None:
        self.factors = held = certified(factors)
        calibration = calibrate(held.sensitivity, target, clip_norm=clip_norm, divisor=divisor, adjacency=adjacency)
        super().__init__(source_of(held), calibration, shape, seed=seed, precision="float64")
        self.origin = "factorization", held.digest, seed


class PrivateSums:
    """Noisy sums of clipped contributions: C^-1 (C G + Z), one Gaussian mechanism over all steps.

    Whoever sees all releases, and every model that is a function of them, has the guarantee of `calibration`. The
    contributions may depend on earlier releases in any way (Denisov et al. 2022, theorem 2.1).

    Args:
        noise: noise of each step for sums, with the right scale and correlation.
        calibration: its calibration; by default the attribute `calibration`. Clip norm and divisor are read from it, so
            that they cannot differ from what the noise was made for.
        receipt: a receipt, written before each release; close it after the last. It takes `FactorizationNoise`, whose
            factor file proves it.
        unit: the owner of the data of one contribution: `example` or `user`.

    Attributes:
        calibration: scale and guarantee.
        step: number of releases so far.

    Raises:
        InvalidParameter: no calibration, or another one than the noise's own; or a receipt for noise without factors.
    """

    def __init__(
        self,
        noise: NoiseSource,
        calibration: Calibration | None = None,
        *,
        receipt: Receipt | None = None,
        unit: str = "example",
    ) -> None:
        own = getattr(noise, "calibration", None)
        stated = own if calibration is None else calibration
        if not isinstance(stated, Calibration) or (own is not None and own != stated):
            raise InvalidParameter(
                "the noise has no guarantee without the Calibration that it was made with; pass that result of "
                "factorize.privacy.calibrate",
                field="calibration",
            )
        self.calibration = stated
        self.step = 0
        self._noise, self._receipt, self._unit = noise, receipt, unit
        if receipt is not None and not isinstance(noise, FactorizationNoise):
            raise InvalidParameter(
                f"a receipt is proved from a factor file, but {type(noise).__name__} has none; use "
                "FactorizationNoise, or leave the receipt out",
                field="receipt",
            )
        self._orders: list[Order | BallsInBins] = []
        self._recorded: OrderRecord | None = None

    @property
    def clip_norm(self) -> float:
        """The bound on the norm of one contribution."""
        return self.calibration.clip_norm

    @property
    def divisor(self) -> int | None:
        """The fixed divisor where steps are means."""
        return self.calibration.divisor

    @property
    def origin(self) -> object:
        """What the noise is a function of: equal for two doors that would add the same noise. It holds the seed."""
        return getattr(self._noise, "origin", id(self._noise))

    def release(self, contributions: Contributions) -> np.ndarray:
        """Return the sum of the clipped contributions plus this step's noise, over the divisor where there is one."""
        return self.release_clipped(clipped_sum(contributions, self.clip_norm))

    def release_clipped(self, total: np.ndarray) -> np.ndarray:
        """Return the same for a sum of contributions that were clipped to `clip_norm` elsewhere (by the machines).

        Raises:
            InvalidParameter: the noise has another shape than the sum; or nobody has checked the order of a receipt.
        """
        if self._receipt is not None:
            self._record(self._receipt)
        noise = self._noise.next()
        if noise.shape != total.shape:
            raise InvalidParameter(f"the noise has shape {noise.shape}, but the sums have {total.shape}", field="noise")
        self.step += 1
        noisy: np.ndarray = total + noise
        noisy = noisy.astype(noise.dtype).astype(noisy.dtype)  # a total of float64 would show beyond the noise's digits
        return noisy / (self.divisor or 1)

    def check(self, order: Order | BallsInBins) -> None:
        """Refuse an order that is not within the participation of the sensitivity, or has more steps than the noise.

        Raises:
            InvalidParticipation: saying which rule is broken.
            InvalidParameter: epsilon counts on a sampling that is not the order's.
            InvalidParameter: some of the noise was used before: a second run would be at other steps.
        """
        used: int = max(self.step, getattr(self._noise, "step", 0))
        if used > 0:
            raise InvalidParameter(
                f"{used} steps of this noise have been used already; give every run noise with its own seed",
                field="noise",
            )
        steps: Any = getattr(self._noise, "steps", None)
        sampling, amplified = self.calibration.sampling, self.calibration.amplified
        if isinstance(order, BallsInBins) and amplified:
            order.check_calibration(self.calibration, len(order) if steps is None else steps)
        elif amplified:
            raise InvalidParameter(
                f"epsilon assumes {sampling} sampling, but the order is {order.sampling}; calibrate without sampling, "
                "or take batches as the calibration assumes",
                field="calibration",
            )
        order.check(self.calibration.sensitivity.participation, steps)
        self._orders.append(order)

    def _record(self, receipt: Receipt) -> None:
        if self._recorded is None:
            assert isinstance(self._noise, FactorizationNoise)
            self._recorded = OrderRecord(
                receipt,
                self.calibration,
                self._noise.factors,
                self._orders,
                unit=self._unit,
                commitments=[self._noise.commitment],
            )
        self._recorded.record(self.step)


class PlainSums:
    """Sums with no guarantee: the baseline that the others are compared with, or a study of noise without clipping.

    Args:
        divisor: divisor where steps are means.
        clip_norm: bound on one contribution, if clipping is wanted.
        noise: added as it is, after the division. Without clipping that is Noisy-FTRL (C24, remark 1.2), which protects
            nobody.
    """

    def __init__(
        self, *, divisor: int | None = None, clip_norm: float = np.inf, noise: NoiseSource | None = None
    ) -> None:
        self.divisor = divisor
        self.clip_norm = clip_norm
        self._noise = noise

    def release(self, contributions: Contributions) -> np.ndarray:
        """Return the sum or mean, with noise if there is any."""
        return self.release_clipped(clipped_sum(contributions, self.clip_norm))

    def release_clipped(self, total: np.ndarray) -> np.ndarray:
        """Return the sum, divided."""
        mean = total / (self.divisor or 1)
        return mean if self._noise is None else mean + self._noise.next()

    def check(self, order: Order | BallsInBins) -> None:
        """Accept any order."""


Sums = PrivateSums | PlainSums
"""The doors that the algorithms ask for sums."""
