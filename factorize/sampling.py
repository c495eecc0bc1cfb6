"""Sampling of batches: by which random law examples take part, and at which privacy a strategy is to be best under it.

A spec that names a sampling asks for the C whose error is smallest *with* the amplification of that sampling. Its
sensitivity and losses are stated without, like those of every C; a calibration adds the sampling
(docs/amplification.md).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from factorize.errors import InvalidParameter
from factorize.participation import AnyParticipation, FixedEpochs, Single
from factorize.plain_data import Frozen, Positive

LARGEST_BINS = 4096
"""Bins above it have no accountant: b^2 exponentials per evaluation stop being cheap."""


class BinsSampling(Frozen):
    """Balls in bins: each example draws one of b = n / epochs bins, once, and takes part in that step of every epoch.

    Attributes:
        epsilon: of the (epsilon, delta)-DP at which C is to be best.
        delta: of the same.
    """

    kind: Literal["balls_in_bins"]
    epsilon: Positive
    delta: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]

    def bins(self, participation: AnyParticipation, n: int) -> int:
        """Return b.

        Raises:
            InvalidParameter: a participation without epochs, or a number of bins from 2 to 4096 that is not theirs.
        """
        if not isinstance(participation, (Single, FixedEpochs)):
            raise InvalidParameter(
                f"participation {participation.kind!r} has no epochs that bins could be; use fixed_epochs",
                field="/sampling/kind",
            )
        bins = n // participation.epochs if isinstance(participation, FixedEpochs) else n
        if not 2 <= bins <= LARGEST_BINS:
            raise InvalidParameter(
                f"{bins} bins, the steps of an epoch, are not from 2 to {LARGEST_BINS}; one bin is no sampling, and "
                "more than that take larger batches",
                field="/sampling/kind",
            )
        return bins


AnySampling = BinsSampling
"""All samplings; one so far."""
