"""DP-SkGD: what sketched descent loses, after K steps averaged in each of T rounds (M24)."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from factorize.errors import InvalidParameter
from factorize.plain_data import Count, NonNegative, Positive
from factorize.predict.prediction import Basis, Inverse, Prediction, Question, Relation
from papers.algorithms.sketches import BlockSketch, NiceSketch, Sketch, importance

Positives = Annotated[list[Positive], Field(min_length=1, max_length=1_000_000)]
_SMOOTHNESS_ASSUMPTION = "f is convex and smooth coordinate by coordinate, with constants M_j"
_BOUND_ASSUMPTION = "every example's partial gradient on U is bounded by (or clipped without effect to) L_U"


class SketchedDescent(Question):
    """M24, theorem 4.2 and lemma E.1, with their constants and sharper ones.

    A partition of the coordinates into blocks, one of which is drawn per step.

    Attributes:
        smoothness: M_j, one per coordinate, block after block.
        block_sizes: number of coordinates of each block; single coordinates by default, [d] for full gradients.
        block_bounds: L_U, one per block.
        sampling: `uniform`; `importance`: proportional to the largest M_j of the block; or `nice`: `size` coordinates
            at random, all sets alike, with one bound per coordinate and L_U^2 the sum of their squares.
        size: size of the sets of `nice`.
        sigma: noise per unit of L_U: sigma_U = sigma L_U (a calibration for K T releases).
        inner: K.
        outer: T.
        initial_distances: |w^0_j - w*_j|, one per coordinate or one for all.
        initial_gap: f(w^0) - f*.
        strong_convexity: mu, where there is one; then K >= 2 (1 + max_j M_j / (p_j mu)) is needed.
    """

    kind: Literal["sketched_descent"]
    smoothness: Positives
    block_sizes: Annotated[list[Count], Field(min_length=1)] | None = None
    block_bounds: Positives
    sampling: Literal["uniform", "importance", "nice"] = "uniform"
    size: Count | None = None
    sigma: NonNegative
    inner: Count
    outer: Count = 1
    initial_distances: Annotated[list[NonNegative], Field(min_length=1)]
    initial_gap: NonNegative
    strong_convexity: Positive | None = None

    def sketch(self) -> Sketch:
        """Return the sampling law.

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
        if self.size is not None:
            return NiceSketch(self.block_bounds, self.size)
        blocks = np.split(np.arange(d), np.cumsum(sizes)[:-1])
        law = importance(blocks, np.array(self.smoothness)) if self.sampling == "importance" else None
        return BlockSketch(blocks, self.block_bounds, law)

    def answer(self, inverse: Inverse | None = None) -> Prediction:
        """Return R^2/(2K) + (N1 + N2)/2 for one round, (f_0 - f*)/2^T + 2 N1 for strong convexity."""
        smoothness, sketch = np.array(self.smoothness), self.sketch()
        law, d = sketch.probabilities, len(smoothness)
        first = self.sigma**2 * sketch.noise_constant(smoothness)
        if self.strong_convexity is not None:
            return self._strongly_convex(float((smoothness / law).max()), first)
        # E[L_U^2 sum_{j in U} 1/M_j]: every term of the first constant times the p_j of its coordinate
        second = self.sigma**2 * sketch.noise_constant(smoothness / law)
        if self.outer != 1 or len(self.initial_distances) not in (1, d):
            raise InvalidParameter(
                f"outer={self.outer} with {len(self.initial_distances)} initial_distances: without strong_convexity "
                f"the theorem is for outer=1, with one distance or one for each of the {d} coordinates",
                field="/outer",
            )
        radius = float((smoothness / law) @ np.square(np.broadcast_to(self.initial_distances, (d,))))
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
            assumptions=(_SMOOTHNESS_ASSUMPTION, _BOUND_ASSUMPTION),
            source="Maranjyan et al. 2024, theorem 4.2 (convex), sharpened: papers/pages/notes-predictions.md",
        )

    def _strongly_convex(self, steepest: float, noise: float) -> Prediction:
        assert self.strong_convexity is not None  # the caller's case
        condition = 1 + steepest / self.strong_convexity
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
            assumptions=(_SMOOTHNESS_ASSUMPTION, "f is mu-strongly convex", _BOUND_ASSUMPTION),
            source="Maranjyan et al. 2024, theorem 4.2 (strongly convex)",
            notes=("the main text prints the maximum of kappa in a denominator; the appendix has it right",),
        )
