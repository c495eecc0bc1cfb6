"""Receipts of the papers' training algorithms, whose orders tell each step's batch beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from factorize.errors import InvalidParameter
from factorize.format.manifest import CertifiedFactors
from factorize.privacy import Calibration
from factorize.training.auditor import ParticipationAuditor
from factorize.training.bins_order import BallsInBins
from factorize.training.orders import Order
from factorize.training.receipt import Receipt
from factorize.training.statement import PrivacyStatement


class OrderRecord:
    """Writes the receipt of a run whose batches its orders tell.

    Args:
        receipt: begun here.
        calibration: scale and guarantee of the run, which does not count on sampling.
        factors: factors of C.
        orders: orders of the run; several where machines with examples of their own are summed.
        unit: the owner of the data of one contribution: `example` or `user`.
        dtype: type of the noise.
        commitments: see `Receipt.begin`.

    Raises:
        InvalidParameter: no orders; or as of `Receipt.begin`.
    """

    def __init__(
        self,
        receipt: Receipt,
        calibration: Calibration,
        factors: CertifiedFactors,
        orders: Sequence[Order | BallsInBins],
        *,
        unit: str = "example",
        dtype: str = "float32",
        commitments: Sequence[str] = (),
    ) -> None:
        if not orders:
            raise InvalidParameter("a receipt needs the order; call check(order) first", field="receipt")
        seen = [np.concatenate([order[t] for t in range(len(order) // order.epochs)]) for order in orders]
        sizes = [int(indices.max(initial=-1)) + 1 for indices in seen]
        self._orders, self._starts = list(orders), np.cumsum([0, *sizes[:-1]])
        self._auditor = ParticipationAuditor.of(calibration, factors.steps, unit=unit)
        used = sum(len(np.unique(indices)) for indices in seen)
        noise = partial(PrivacyStatement, calibration, factors.digest, steps=factors.steps)
        counted = {"examples": sum(sizes), "used": used, "users": sum(sizes) if unit == "user" else None}
        statement = noise(**counted, sampling="fixed", unit=unit)
        receipt.begin(statement, [factors], self._auditor, generator="sfc64", dtype=dtype, commitments=commitments)

    def record(self, step: int) -> None:
        """Write that a step is about to be released.

        Raises:
            InvalidParticipation: the participation excludes it.
            OSError: the receipt cannot be written.
        """
        batches = [start + order[step] for start, order in zip(self._starts, self._orders, strict=True)]
        self._auditor.record(np.concatenate(batches))
