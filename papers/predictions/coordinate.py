"""DP-SkGD: what sketched descent loses, after K steps averaged in each of T rounds (M24)."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from factorize.errors import InvalidParameter
from factorize.plain_data import Count, NonNegative, Positive
from factorize.predict.prediction import Basis, Inverse, Prediction, Question, Relation

Positives = Annotated[list[Positive], Field(min_length=1, max_length=1_000_000)]
_SMOOTH = "f is convex and smooth coordinate by coordinate, with constants M_j"
_BOUNDS = "every example's partial gradient on U is bounded by (or clipped without effect to) L_U"


class _Blocks(Question):
    """A partition of the coordinates into blocks, one of which is drawn per step.

    Attributes:
        smoothness: M_j, one per coordinate, block after block.
        block_sizes: number of coordinates of each block; single coordinates by default, [d] for full gradients.
        block_bounds: L_U, one per block.
        sampling: `uniform`; `importance`: proportional to the largest M_j of the block; or `nice`: `size` coordinates
            at random, all sets alike, with one bound per coordinate and L_U^2 the sum of their squares.
        size: of the sets of `nice`.
    """

    smoothness: Positives
    block_sizes: Annotated[list[Count], Field(min_length=1)] | None = None
    block_bounds: Positives
    sampling: Literal["uniform", "importance", "nice"] = "uniform"
    size: Count | None = None

    def blocks(self) -> list[np.ndarray]:
        """Return M_j by block.

        Raises:
            InvalidParameter: the sizes do not add up to d, or there is not one bound per block.
        """
        d = len(self.smoothness)
        sizes = self.block_sizes or [1] * d
        if sum(sizes) != d:
            message = f"block_sizes add up to {sum(sizes)}, not to the {d} coordinates of smoothness"
            raise InvalidParameter(message, field="/block_sizes")
        if len(self.block_bounds) != len(sizes):
            message = f"block_bounds has {len(self.block_bounds)} entries for {len(sizes)} blocks; give one per block"
            raise InvalidParameter(message, field="/block_bounds")
        if (self.sampling == "nice") != (self.size is not None) or (self.size or 1) > d:
            message = f"size={self.size} with sampling {self.sampling}: nice sampling needs 1 to {d}, no other has it"
            raise InvalidParameter(message, field="/size")
        if self.sampling == "nice" and len(sizes) != d:
            raise InvalidParameter(
                "nice sampling draws single coordinates; leave block_sizes out", field="/block_sizes"
            )
        return np.split(np.array(self.smoothness), np.cumsum(sizes)[:-1])

    def probabilities(self) -> np.ndarray:
        """Return q_i of each block: the probability that its coordinates are drawn."""
        if self.sampling == "nice":
            return np.full(len(self.blocks()), (self.size or 1) / len(self.smoothness))
        largest = np.array([block.max() for block in self.blocks()])
        return largest / largest.sum() if self.sampling == "importance" else np.full(len(largest), 1 / len(largest))

    def noise_constants(self) -> tuple[float, float]:
        """Return E[L_U^2 sum_{j in U} 1/(p_j M_j)] and E[L_U^2 sum_{j in U} 1/M_j], Sigma_S^2 and what a step adds."""
        blocks, law, squares = self.blocks(), self.probabilities(), np.array(self.block_bounds) ** 2
        sums = np.array([(1 / block).sum() for block in blocks])
        if self.sampling != "nice":
            return float(squares @ sums), float(law @ (squares * sums))
        both = ((self.size or 1) - 1) / (len(sums) - 1) if len(sums) > 1 else 0.0
        same = float(squares @ sums)
        total = same + both * (float(squares.sum() * sums.sum()) - same)
        return total, total * float(law[0])

    def radius_squared(self, distances: np.ndarray) -> float:
        """Return R^2 = sum_j (M_j / p_j) (w^0_j - w*_j)^2."""
        per_coordinate = np.repeat(self.probabilities(), [len(block) for block in self.blocks()])
        return float(np.sum(np.array(self.smoothness) / per_coordinate * distances**2))


def one_for_each(distances: list[float], d: int) -> np.ndarray:
    """Return distances of d coordinates, shape (d,).

    Raises:
        InvalidParameter: neither one for all nor one for each.
    """
    if len(distances) not in (1, d):
        message = f"initial_distances has {len(distances)} entries for {d} coordinates; give one, or one for each"
        raise InvalidParameter(message, field="/initial_distances")
    return np.broadcast_to(np.array(distances), (d,))


class SketchedDescent(_Blocks):
    """M24, theorem 4.2 and lemma E.1, with their constants and sharper ones.

    Attributes:
        sigma: noise per unit of L_U: sigma_U = sigma L_U (a calibration for K T releases).
        inner: K.
        outer: T.
        initial_distances: |w^0_j - w*_j|, one per coordinate or one for all.
        initial_gap: f(w^0) - f*.
        strong_convexity: mu, where there is one; then K >= 2 (1 + max_j M_j / (p_j mu)) is needed.
    """

    kind: Literal["sketched_descent"]
    sigma: NonNegative
    inner: Count
    outer: Count = 1
    initial_distances: Annotated[list[NonNegative], Field(min_length=1)]
    initial_gap: NonNegative
    strong_convexity: Positive | None = None

    def answer(self, inverse: Inverse | None = None) -> Prediction:
        """Return R^2/(2K) + (N1 + N2)/2 for one round, (f_0 - f*)/2^T + 2 N1 for strong convexity."""
        blocks, law = self.blocks(), self.probabilities()
        first, second = (self.sigma**2 * constant for constant in self.noise_constants())
        if self.strong_convexity is not None:
            return self._strongly_convex(blocks, law, first)
        d = len(self.smoothness)
        if self.outer != 1 or len(self.initial_distances) not in (1, d):
            raise InvalidParameter(
                f"outer={self.outer} with {len(self.initial_distances)} initial_distances: without strong_convexity "
                f"the theorem is for outer=1, with one distance or one for each of the {d} coordinates",
                field="/outer",
            )
        radius = self.radius_squared(one_for_each(self.initial_distances, d))
        sharp = radius / (2 * self.inner) + (first + second) / 2
        lemma = (radius + 2 * self.initial_gap) / (2 * self.inner) + first
        return Prediction(
            quantity="E f(w) - f*",
            relation=Relation.AT_MOST,
            value=sharp,
            basis=Basis.DERIVED,
            terms={
                "distance": radius / (2 * self.inner),
                "noise": (first + second) / 2,
                "paper_lemma": lemma,
                "paper_theorem": radius / self.inner + first,
                "R2": radius,
                "N1": first,
                "N2": second,
            },
            assumptions=(_SMOOTH, _BOUNDS),
            source="Maranjyan et al. 2024, theorem 4.2 (convex), sharpened: papers/pages/notes-predictions.md",
        )

    def _strongly_convex(self, blocks: list[np.ndarray], law: np.ndarray, noise: float) -> Prediction:
        assert self.strong_convexity is not None  # the caller's case
        condition = 1 + max(block.max() / q for block, q in zip(blocks, law, strict=True)) / self.strong_convexity
        if self.inner < 2 * condition * (1 - 1e-12):
            raise InvalidParameter(
                f"inner={self.inner} is below 2 kappa = {2 * condition:.6g}, so the rounds do not halve the gap; use "
                f"inner >= {math.ceil(2 * condition)}",
                field="/inner",
            )
        transient = self.initial_gap / 2**self.outer
        return Prediction(
            quantity="E f(w) - f*",
            relation=Relation.AT_MOST,
            value=transient + 2 * noise,
            basis=Basis.PAPER,
            terms={"transient": transient, "noise": 2 * noise, "condition_number": condition, "N1": noise},
            assumptions=(_SMOOTH, "f is mu-strongly convex", _BOUNDS),
            source="Maranjyan et al. 2024, theorem 4.2 (strongly convex)",
            notes=("the main text prints the maximum of kappa in a denominator; the appendix has it right",),
        )


class SketchedRate(_Blocks):
    """M24, table 1: utility of block sampling beside DP-CD and DP-SGD, without constants.

    Attributes:
        initial_distances: |w^0_j - w*_j|, one per coordinate or one for all.
        examples: n.
        epsilon: of (epsilon, delta)-DP.
        delta: of (epsilon, delta)-DP.
        full_bound: L of the whole gradient, for the row of DP-SGD.
        coordinate_bounds: L_j of each coordinate, for the row of DP-CD; block_bounds where blocks are single ones.
        strong_convexity: mu; with it the second column of the table.
    """

    kind: Literal["sketched_rate"]
    initial_distances: Annotated[list[NonNegative], Field(min_length=1)]
    examples: Count
    epsilon: Positive
    delta: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
    full_bound: Positive
    coordinate_bounds: Positives | None = None
    strong_convexity: Positive | None = None

    def answer(self, inverse: Inverse | None = None) -> Prediction:
        """Return sqrt(log(1/delta))/(n epsilon) times the row's entry, or its square's with strong convexity."""
        blocks = self.blocks()
        d = len(self.smoothness)
        noise = self.noise_constants()[0]
        distances = one_for_each(self.initial_distances, d)
        common = math.sqrt(math.log(1 / self.delta)) / (self.examples * self.epsilon)
        if self.strong_convexity is None:
            value = common * math.sqrt(noise * self.radius_squared(distances))
            weighted = float(np.array(self.smoothness) @ distances**2)
            cd = common * math.sqrt(self._coordinate_noise() * d * weighted)
            sgd = common * self.full_bound * math.sqrt(d * float(distances @ distances))
        else:
            largest = max(block.max() / q for block, q in zip(blocks, self.probabilities(), strict=True))
            value = common**2 * noise * largest / self.strong_convexity
            sgd = common**2 * self.full_bound**2 * d / self.strong_convexity
            cd = common**2 * self._coordinate_noise() * d * max(self.smoothness) / self.strong_convexity
        return Prediction(
            quantity="E f(w) - f*",
            relation=Relation.ORDER,
            value=value,
            basis=Basis.ORDER,
            terms={
                "dp_sgd": sgd,
                "gain_over_dp_sgd": sgd / value if value else math.inf,
                **({} if math.isnan(cd) else {"dp_cd": cd, "gain_over_dp_cd": cd / value if value else math.inf}),
            },
            assumptions=(_SMOOTH, _BOUNDS),
            source="Maranjyan et al. 2024, table 1",
            notes=("the importance-sampling entry for strong convexity lacks a square on its norm in print",),
        )

    def _coordinate_noise(self) -> float:
        """Return sum_j L_j^2 / M_j, NaN where the bounds of coordinates are not known."""
        d = len(self.smoothness)
        bounds = self.coordinate_bounds or (self.block_bounds if len(self.block_bounds) == d else None)
        if bounds is None:
            return math.nan
        if len(bounds) != d:
            message = f"coordinate_bounds has {len(bounds)} entries for {d} coordinates; give one for each"
            raise InvalidParameter(message, field="/coordinate_bounds")
        return float((np.array(bounds) ** 2 / np.array(self.smoothness)).sum())
