"""b-min-sep sampling of a banded C: bounds of delta without samples.

An example that took part in none of the last b - 1 steps takes part in a step with probability p, in secret (Dong and
Ganesh, arXiv 2602.09338). With b = 1 and C = I this is the Poisson sampling of DP-SGD, and with p = 1 balls in bins.
docs/notes/amplification-proofs.md has the bounds, theorems 11 to 12 b.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Self

import numpy as np
from flint import ctx

from factorize.accounting.bins_law import best_order_from
from factorize.accounting.law import MARGIN, Bound, Law, multiplier_about
from factorize.accounting.payoff import log_call_ceiling
from factorize.checker.arithmetic.balls import PLACES
from factorize.checker.sampling import min_sep
from factorize.checker.sampling.curved_field import CurvedField, ceiling
from factorize.checker.sampling.star import lognormal_put
from factorize.checker.strategy import Strategy
from factorize.errors import ConditionNotMet, InvalidParameter, TooLarge
from factorize.factors.sensitivity import sensitivity_of
from factorize.numbers.scalars import whole_number
from factorize.participation import MinSep
from factorize.structures.base import Matrix

_RATE_SHARES = (0.05, 0.1, 0.2, 0.4, 0.6, 0.7, 0.75, 0.8, 0.9, 1.0)
"""The values of q over p that are tried for the direction (Q, P)."""
_CURVED_TILTS = tuple(2.0 ** (halves / 2) for halves in range(14))
_CURVED_SHARES = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
_REACHES = tuple(range(3, 12))
_CURVED_VALUES: tuple[Sequence[float], ...] = _CURVED_TILTS, _CURVED_SHARES, _REACHES
"""The values of eta, of q over p, and of the reach in standard deviations that are tried for a curved bound."""
BEYOND_WORTH = 300.0
"""The chance to be beyond the reach is a part of each weight, of which no sample tells: so it has to be this small."""
_BOOST_GAIN = math.log(2)
"""The logarithm of the share of samples that a star saves by a boosted coin; the coin of a chain has no boost."""
_KINDS: dict[str, Callable[[min_sep.MinSepSteps, int], min_sep.Tuples]] = {
    "chain": min_sep.ChainedTuples,
    "star": min_sep.Centres,
}
"""The draws of tuples by the first word of their rules."""
_MAX_WORDS = 1 << 12
"""The most words of a candidate: with more, as at a tiny epsilon, samples take minutes, and bounds are claimed."""


class MinSepLaw(Law):
    """Steps that each have a probability, at least as many steps apart as C has bands.

    Args:
        columns: upper bounds on |C[t + d, t]|, shape (n, b).
        sensitivity: an upper bound on the sensitivity of steps so far apart.
        probability: p, in (0, 1].
    """

    name = "b_min_sep"
    tolerance = 1e-3
    first_tolerance = 1e-2  # a look at a sigma takes up to a second, and other paths are drawn at each one
    margin = 0.006  # a margin of 0.006 takes two thirds of the samples of 0.005, and is within 1 % of the truth

    def __init__(self, columns: np.ndarray, sensitivity: float, probability: float) -> None:
        steps, separation = columns.shape
        super().__init__(steps, separation, sensitivity * (1 + MARGIN), signed=False)
        self.columns, self.probability = columns, probability
        self._orders, self._ceilings = dict.fromkeys(_KINDS, 8), dict[float, dict[str, float]]()
        self._curved: tuple[int, ...] = (7, 4, 4)

    def _remember(self) -> None:
        self.at = lru_cache(maxsize=8)(self._at)
        self._log_moment = lru_cache(maxsize=256)(self._log_moment_at)

    @classmethod
    def of(cls, strategy: Matrix, dataset_size: int, batch_size: int) -> Self:
        """Return the law on a banded C, with b the number of its bands.

        Raises:
            ConditionNotMet: C has as many bands as columns, or batches are larger than N / b.
            InvalidParameter: sizes below 1.
            TooLarge: more than MAX_MIN_SEP_STEPS steps.
        """
        bands = strategy.bandwidth()
        if bands >= strategy.n and strategy.n > 1:
            raise ConditionNotMet(
                f"b_min_sep needs a C with fewer bands than steps, and this one has {bands} bands; use a banded "
                "mechanism, or balls_in_bins",
                field="sampling",
            )
        held = Strategy(strategy.structure, strategy.tensors(), strategy.n)
        probability = min_sep_probability(bands, dataset_size, batch_size)
        norm = sensitivity_of(strategy, MinSep(kind="min_sep", min_sep=bands)).value
        return cls(min_sep.columns_of(held, bands), norm, probability)

    def _at(self, multiplier: float) -> min_sep.MinSepSteps | None:
        """Return the law of the steps at a multiplier; None where there is too little noise."""
        try:
            return min_sep.MinSepSteps(self.columns, multiplier, self.probability)
        except InvalidParameter:
            return None

    def enough_at(self, multiplier: float) -> min_sep.MinSepSteps:
        """Return the law of the steps at a multiplier; raise InvalidParameter where there is too little noise."""
        law = self.at(multiplier)
        if law is None:
            raise InvalidParameter(
                f"sigma = {multiplier:.3g} clip norms is too little noise for a guarantee with b_min_sep; use a "
                "larger sigma, or a smaller epsilon",
                field="sigma",
            )
        return law

    def tuples(self, multiplier: float, epsilon: float, order: int) -> min_sep.Tuples:
        """Return the draw of tuples for a bet; raise InvalidParameter where doubles cannot hold it."""
        return _KINDS[self.kind(multiplier, epsilon)](self.enough_at(multiplier), order)

    def kind(self, multiplier: float, epsilon: float, gain: float = _BOOST_GAIN) -> str:
        """Return `chain` or `star`, whose bet takes fewer samples where this epsilon was first asked for.

        Args:
            multiplier: the multiplier at which the kinds are compared, if the epsilon is new.
            epsilon: the epsilon.
            gain: by how much the ceiling of a star may be higher; 0 for the lower ceiling.
        """
        ceilings = self._ceilings.get(epsilon)
        if ceilings is None:
            ceilings = {kind: self._best_order(kind, multiplier, epsilon)[1] for kind in _KINDS}
            if min(ceilings.values()) < math.inf:
                self._ceilings[epsilon] = ceilings
        return "star" if ceilings["star"] - gain < ceilings["chain"] else "chain"

    def _log_moment_at(self, kind: str, multiplier: float, order: int) -> float:
        """Return an upper bound on log E; infinity where doubles cannot hold it."""
        law = self.at(multiplier)
        try:
            return math.inf if law is None else _KINDS[kind](law, order).log_moment + law.slack(order)
        except (InvalidParameter, TooLarge):
            return math.inf

    def log_ceiling(self, multiplier: float, epsilon: float, order: int, kind: str) -> float:
        """Return log W(m) of a kind of tuples."""
        return self._log_moment(kind, multiplier, order) + log_call_ceiling(epsilon, 0.0, order)

    def removal(self, multiplier: float, epsilon: float) -> Bound:
        """Return the bound without samples at its best order."""
        kind = self.kind(multiplier, epsilon, gain=0.0)
        order, value = self._best_order(kind, multiplier, epsilon)
        return Bound(f"{kind}_bound", min(value + MARGIN * (1 + abs(value)), 0.0), float(order))

    def best_order(self, multiplier: float, epsilon: float) -> int:
        """Return the m of the smallest W(m)."""
        return self._best_order(self.kind(multiplier, epsilon), multiplier, epsilon)[0]

    def _best_order(self, kind: str, multiplier: float, epsilon: float) -> tuple[int, float]:
        def log_ceiling(order: int) -> float:
            return self.log_ceiling(multiplier, epsilon, order, kind)

        order, least = best_order_from(self._orders[kind], log_ceiling)
        while order > 2 and least == math.inf:
            order, least = order - 1, log_ceiling(order - 1)
        self._orders[kind] = order
        return order, least

    def addition(self, multiplier: float, epsilon: float) -> Bound:
        """Return the closed form, or the curved bound, at the best values of those that are tried."""
        law, found = self.at(multiplier), Bound("closed_form", 0.0, rate=self.probability)
        if law is None:
            return found
        for rate in self.rates:
            field = min_sep.Field(law, rate)
            delta = float(lognormal_put(field.less, field.square, epsilon).upper())
            value = math.log(delta) if 0 < delta < 1 else (0.0 if delta else -700.0)
            if value + MARGIN * (1 + abs(value)) < found.log_delta:
                found = found._replace(log_delta=value + MARGIN * (1 + abs(value)), rate=rate)
        curved = self.curved(multiplier, epsilon)
        if curved is not None:
            value = min(log_curved_ceiling(curved, epsilon), 0.0)
            bound = Bound("curved_bound", value + MARGIN * (1 + abs(value)), curved.eta, curved.rate, curved.reach)
            found = min(found, bound, key=lambda each: each.log_delta)
        return found

    def curved(self, multiplier: float, epsilon: float, worth: float = 1.0) -> CurvedField | None:
        """Return the curved bound that is lowest nearby the last one, or None where none is proved.

        Args:
            multiplier: the multiplier.
            epsilon: the epsilon.
            worth: the weight of the chance to be beyond the reach.
        """
        law, sizes = self.enough_at(multiplier), (len(_CURVED_TILTS), len(_CURVED_SHARES), len(_REACHES))
        known: dict[tuple[int, ...], tuple[float, CurvedField | None]] = {}

        def at(place: tuple[int, ...]) -> tuple[float, CurvedField | None]:
            if place not in known:
                eta, share, reach = (values[i] for values, i in zip(_CURVED_VALUES, place, strict=True))
                try:
                    field = CurvedField(law, eta, share * self.probability, reach * math.sqrt(law.largest))
                    known[place] = log_curved_ceiling(field, epsilon, worth), field
                except InvalidParameter:
                    known[place] = math.inf, None
            return known[place]

        eta, _, reach = self._curved
        starts: list[tuple[int, ...]] = [(eta, share, reach) for share in range(sizes[1])]
        best = min(starts, key=lambda place: at(place)[0])
        while True:
            steps = itertools.product((-1, 0, 1), repeat=3)
            near = (tuple(i + move for i, move in zip(best, step, strict=True)) for step in steps)
            inside = [place for place in near if all(0 <= i < size for i, size in zip(place, sizes, strict=True))]
            lowest = min(inside, key=lambda place: at(place)[0])
            if not at(lowest)[0] < at(best)[0]:
                self._curved = best
                return at(best)[1]
            best = lowest

    def words(self, order: int) -> int:
        """Return the number of words of a star's candidate."""
        return order * (self.epochs + 2)

    def can_be_sampled(self, multiplier: float, epsilon: float) -> bool:
        """Return whether a candidate takes so few words that samples for a claim take seconds."""
        star = self.kind(multiplier, epsilon) == "star"
        return not star or self.words(self.best_order(multiplier, epsilon)) <= _MAX_WORDS

    @property
    def rates(self) -> tuple[float, ...]:
        """The values of q that are tried; where p is 1, a smaller q allows steps that p does not."""
        return tuple(share * self.probability for share in _RATE_SHARES if share == 1 or self.probability < 1)

    def guess(self, epsilon: float, delta: float) -> float | None:
        """Return the multiplier of as many groups as C has bands, sampled in turn, if their losses were Gaussian."""
        largest, chance = float((self.columns**2).sum(axis=1).max()), self.bins * self.probability
        share = chance / (1 + chance - self.probability)
        return math.sqrt(largest) * multiplier_about(epsilon, delta, self.epochs, share**2)


def log_curved_ceiling(field: CurvedField, epsilon: float, worth: float = 1.0) -> float:
    """Return log W of a curved bound; `worth` weighs the chance to be beyond its reach."""
    with ctx.workprec(PLACES):
        return float((ceiling(field, epsilon) + (worth - 1) * field.beyond).log().upper())


def min_sep_probability(bands: int, dataset_size: int, batch_size: int) -> float:
    """Return p for batches of an expected size: batch_size / (N - (b - 1) batch_size), over examples that do not rest.

    Raises:
        ConditionNotMet: batches are larger than N / b, which is every example in every b-th step.
    """
    dataset_size, batch_size = whole_number("dataset_size", dataset_size), whole_number("batch_size", batch_size)
    if bands * batch_size > dataset_size:
        raise ConditionNotMet(
            f"batch_size={batch_size} is above {dataset_size} / {bands}, the examples divided by the bands of C, "
            f"since each example rests for {bands - 1} steps after a step; use a smaller batch or fewer bands",
            field="batch_size",
        )
    return batch_size / (dataset_size - (bands - 1) * batch_size)
