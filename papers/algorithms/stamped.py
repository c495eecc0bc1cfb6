"""Stamping: the noise of any factorization, begun anew every so many steps, for runs that are longer than its n."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from factorize.checker.arithmetic.near import square_root_up
from factorize.errors import InvalidParameter
from factorize.format.claims import Sensitivity
from factorize.format.manifest import CertifiedFactors, certified
from factorize.noise.normals import secret_seed
from factorize.privacy import Calibration, PrivacyTarget, calibrate
from factorize.privacy.adjacency import Adjacency
from papers.training.private_sums import FactorizationNoise


class StampedNoise:
    """The noise of C with `stamps` copies of a smaller C' on its diagonal: each restart has fresh draws.

    |C u|^2 is the sum of |C' u_b|^2 over the copies. An example that is in every copy, as the certificate of C' allows,
    has at most the root of their number times the certified sensitivity; one that is in a single copy has that itself.

    Args:
        factors: factors of one copy, certified for `single` or `fixed_epochs`.
        target: the privacy asked for, of the whole run.
        shape: shape of the parameters.
        stamps: copies; the run has that many times n steps.
        once: whether an example is in one copy only, in one step (C' of `single`); else the order repeats in all.
        clip_norm: bound on one contribution to one step.
        divisor: the fixed public divisor where steps are means.
        adjacency: `zero_out` or `replace_one`.
        seed: secret, `secrets.randbits(128)`, for one run.

    Attributes:
        calibration: scale and guarantee of the whole run.
        step: the step whose noise comes next.
        steps: steps of the whole run.
        origin: what the noise is a function of, the seed included.

    Reference:
        Choquette-Choo et al. 2023 (multi-epoch matrix factorization), "stamping"; C24, section 4.
    """

    def __init__(
        self,
        factors: CertifiedFactors,
        target: PrivacyTarget,
        shape: int | Sequence[int],
        *,
        stamps: int,
        once: bool = False,
        clip_norm: float = 1.0,
        divisor: int | None = None,
        adjacency: Adjacency | str = Adjacency.ZERO_OUT,
        seed: int,
    ) -> None:
        held = certified(factors)
        self.calibration: Calibration = calibrate(
            stamped_sensitivity(held.sensitivity, stamps, once=once),
            target,
            clip_norm=clip_norm,
            divisor=divisor,
            adjacency=adjacency,
        )
        self._factors, self._shape, self._length = factors, shape, held.steps
        self._seed = secret_seed(seed)
        self._options = {"clip_norm": clip_norm, "divisor": divisor, "adjacency": adjacency}
        self._own: FactorizationNoise | None = None
        self.steps, self.step = stamps * held.steps, 0
        self.origin = ("stamped", held.digest, stamps, self._seed)

    def next(self) -> np.ndarray:
        """Return the noise of this step, float32.

        Raises:
            InvalidParameter: all steps were taken.
        """
        if self.step >= self.steps:
            raise InvalidParameter(f"step {self.step + 1} is past n={self.steps}; ask for more stamps", field="stamps")
        if self.step % self._length == 0:
            self._own = self._copy(self.step // self._length)
        assert self._own is not None
        self.step += 1
        return np.asarray(self._scale * self._own.next(), dtype=np.float32)

    def _copy(self, stamp: int) -> FactorizationNoise:
        """Return the noise of one copy, with a seed of its own, and the factor that brings it to the run's sigma."""
        text = f"factorize stamp {stamp} of {self._seed}".encode()
        seed = int.from_bytes(hashlib.sha256(text).digest()[:16], "big")
        own = FactorizationNoise(self._factors, PrivacyTarget(mu=1.0), self._shape, **self._options, seed=seed)  # type: ignore[arg-type]
        self._scale = self.calibration.sigma_of_sums / own.calibration.sigma_of_sums
        return own


def stamped_sensitivity(one: Sensitivity, stamps: int, *, once: bool = False) -> Sensitivity:
    """Return the certified sensitivity of `stamps` copies on the diagonal, rounded up.

    Raises:
        InvalidParameter: no stamps, or a participation whose repetition has no name in the contract.
    """
    stated = dict(one.participation)
    epochs = {"single": 1, "fixed_epochs": int(stated.get("epochs", 1))}.get(str(stated["kind"]))
    if stamps < 1 or epochs is None or (once and epochs > 1):
        raise InvalidParameter(
            f"stamps={stamps} of a factorization for {stated}: give at least one stamp, and factors for single or "
            "fixed_epochs (single, where an example is in one stamp only)",
            field="stamps",
        )
    copies = 1 if once else stamps
    whole = {"kind": "single"} if copies * epochs == 1 else {"kind": "fixed_epochs", "epochs": copies * epochs}
    value = one.value if copies == 1 else square_root_up(Fraction(one.value) ** 2 * copies)
    return Sensitivity(value, "upper_bound", f"{copies} blocks on the diagonal, each: {one.rule}", whole)
