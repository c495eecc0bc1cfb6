"""Rows of gradients, one for each example: compared between a step and its rehearsal, and with plain autograd."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from factorize.adapters.data.altered_batches import Altered
from factorize.adapters.gradients.clipping import flat_rows, squared_norms, use_up
from factorize.adapters.gradients.layer_rows import Rows, iterate_rows
from factorize.adapters.gradients.raw_gradients import kept_gradient
from factorize.errors import InvalidParameter

MAX_SKETCH_ENTRIES = 1 << 16
"""The most entries of a row: longer ones are folded with random signs, so that 256 kB are kept for each example."""
TOLERANCE = 1e-3
"""The clip norms by which other examples may move the sum, beyond roundings: one example moves it by up to 1.001."""
TOLERANCE_OF_REPEATS = 5e-6
"""The part of a gradient's norm that others may move where it is nearly the same whenever the batch is: a term of small
weight that mixes examples moves less than `TOLERANCE` at first, and an outlier makes it large."""
MAX_SPREADS = 8
"""The most times that other examples may move a gradient farther than the same batch does that is taken again."""
MAX_PASSES_BETWEEN = 3
"""The most passes from an altered batch to the step, where each moves all gradients a little, as a schedule does."""
TOLERANCE_OF_SHAPES = 2e-2
"""The tolerance between batches of different shapes, whose matrix products add up in other orders."""
SHARE_OF_LARGEST = 1e-3
"""The share of the largest gradient below which a gradient is compared with this share: its roundings are larger."""

WAY_OUT = (
    "use one loss per example (reduction='none', without class weights that a mean divides by) and its mean over the "
    "batch, no layer or loss that compares examples, and random numbers from global generators only; a function that "
    "you give as loss= has to compute the loss of your loop; with loss='not_looked_at' the job runs anyway, and its "
    "statement tells that"
)


class GradientRows(NamedTuple):
    """Gradients of one pass by example.

    Attributes:
        sketch: linear in the gradients and of about their norms, exact for short ones, shape (examples, entries).
        norms: norms of the sketch, float64, shape (examples,).
        rounding: relative rounding of the arithmetic that made the gradients.
    """

    sketch: torch.Tensor
    norms: torch.Tensor
    rounding: float

    @classmethod
    def of(cls, samples: Sequence[Rows]) -> GradientRows:
        """Return the rows of per-example gradients by parameter."""
        sketch = torch.cat([_sketch(part) for _, part in iterate_rows(samples)])
        wide = torch.float32 if sketch.device.type == "mps" else torch.float64
        norms = sketch.new_empty(len(sketch), dtype=wide)
        for i, row in enumerate(sketch):  # all rows at once would need twice the sketch's own memory
            norms[i] = torch.linalg.vector_norm(row.to(wide))
        return cls(sketch, norms, max(_rounding(sample) for sample in samples))

    @property
    def idle(self) -> list[bool]:
        """Whether each example counts as zero, since its gradient is zero or not finite."""
        return [bool(each) for each in (self.norms == 0) | ~self.norms.isfinite()]

    def clipped(self, unit: float, places: list[int]) -> torch.Tensor:
        """Return the sketch of some gradients, clipped to `unit`; zero where one is not finite."""
        norms = self.norms[places]
        counts = norms.isfinite() & (norms > 0)
        weight = torch.where(counts, (unit / norms).clamp(max=1.0), 0.0).to(self.sketch)[:, None]
        return (self.sketch[places] * weight).masked_fill_(weight == 0, 0.0)

    def moved(self, other: GradientRows, kept: Sequence[tuple[int, int]]) -> float:
        """Return the most that the gradient of an example differs from that of another pass, in parts of its norm."""
        mine, theirs = (list(each) for each in zip(*kept, strict=True))
        norms = [each.norms.nan_to_num(0, 0, 0) for each in (self, other)]
        largest = max(float(each.max()) for each in norms)
        own = torch.maximum(norms[0][mine], norms[1][theirs]).clamp(min=SHARE_OF_LARGEST * largest)
        whole = self.clipped(largest, mine) - other.clipped(largest, theirs)  # clipping hides a scaled gradient
        return float((whole.norm(dim=1) / own).max()) if largest else 0.0


def _rounding(sample: Rows) -> float:
    """Return the relative rounding of a gradient; CUDA devices may make products of float32 in TF32."""
    own = torch.finfo(sample.dtype).eps
    return max(own, 2.0**-11) if sample.device.type == "cuda" and sample.dtype == torch.float32 else own


def _sketch(samples: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return rows of at most `MAX_SKETCH_ENTRIES`, with the norms of the gradients in expectation."""
    total = sum(sample[0].numel() for sample in samples) if len(samples[0]) else 0
    width, device = min(total, MAX_SKETCH_ENTRIES), samples[0].device
    out = torch.zeros(len(samples[0]), width, device=device, dtype=torch.float64 if total == width else torch.float32)
    laps = -(-total // max(width, 1))
    signs = torch.randint(0, 2, (width + laps,), generator=torch.Generator().manual_seed(0)).to(out) * 2 - 1
    at, lap = 0, 0  # each lap shifts the signs of the one before by one place: those of one column are independent
    for sample in samples:
        flat, start = flat_rows(sample), 0
        while start < flat.shape[1]:
            count = min(flat.shape[1] - start, width - at)
            part = flat[:, start : start + count].to(out)
            out[:, at : at + count].addcmul_(part, signs[at + lap : at + lap + count])
            start, at = start + count, at + count
            if at == width:
                at, lap = 0, lap + 1
    return out


def difference_of_passes(
    rows: GradientRows,
    other: GradientRows,
    altered: Altered,
    counted: torch.Tensor | None,
    clip_norm: float,
    *,
    examined: bool = False,
    spread: float | None = None,
) -> InvalidParameter | None:
    """Return the error if the examples that stayed have other gradients, or None.

    Args:
        rows: gradients of the batch.
        other: gradients of the altered batch.
        altered: that batch.
        counted: False for rows that pad.
        clip_norm: the clip norm.
        examined: whether another pass shows if the others decide which examples have no gradient.
        spread: how far the gradient of an example moves if the same batch is taken again; None if unknown.
    """
    counts = [True] * len(rows.norms) if counted is None else counted.tolist()
    kept = [(mine, theirs) for mine, theirs in altered.kept if counts[mine]]
    if not kept:
        return None
    mine, theirs = (list(each) for each in zip(*kept, strict=True))
    norms = [each.norms.nan_to_num(0, 0, 0) for each in (rows, other)]
    largest = max(float(each.max()) for each in norms)
    if largest == 0:
        return None
    unit = min(clip_norm, largest)  # otherwise gradients far below the clip norm would hide it
    moved = rows.clipped(unit, mine) - other.clipped(unit, theirs)
    by = max(float(moved.sum(0).norm()), float(moved.norm(dim=1).max())) / unit
    share = rows.moved(other, kept)
    roundings = 4 * max(rows.rounding, other.rounding) * len(kept) ** 0.5
    allowed = (
        (TOLERANCE if altered.alike else TOLERANCE_OF_SHAPES)
        + roundings
        + MAX_PASSES_BETWEEN * min(spread or 0.0, TOLERANCE)
    )
    repeats = altered.alike and spread is not None and share > MAX_SPREADS * spread
    if repeats and share > TOLERANCE_OF_REPEATS + roundings:
        allowed = min(allowed, TOLERANCE_OF_REPEATS + roundings)
    with_gradient = [int(norms[0].count_nonzero()), int(norms[1][theirs].count_nonzero())]
    if not examined and max(by, share) <= allowed and with_gradient[0] == 1 < len(kept) and with_gradient[1] <= 1:
        return InvalidParameter(
            f"only one of {len(rows.norms)} examples has a gradient, so the loss picks one example of the batch (its "
            f"largest loss, for example), and the others decide which; {WAY_OUT}",
            field="loss",
        )
    replaced = set(range(len(rows.norms))) - {own for own, _ in altered.kept}
    shows = altered.alike and altered.other and bool(rows.norms[sorted(replaced)].any())  # zeros may stay zeros
    if shows and torch.equal(rows.sketch, other.sketch):
        return InvalidParameter(
            f"replacing {len(rows.norms) - len(kept)} of {len(rows.norms)} examples changed no gradient, so the loop "
            "does not train on the batch it was given, but on one that it keeps or reads itself, whose examples take "
            "part more often than the participation allows; train on each batch as it comes",
            field="loss",
        )
    if max(by, share) <= allowed:
        return None
    what = "replacing" if altered.rows == len(rows.norms) else "leaving out"
    return InvalidParameter(
        f"{what} {len(rows.norms) - len(altered.kept)} of {len(rows.norms)} examples moved the clipped gradients of "
        f"the others by more than the {allowed:.1g} clip norms (or parts of a gradient's norm) that rounding "
        "explains. The loss or a layer mixes the examples of a batch (as a layer does whose inputs begin with time, or "
        "with a table of relative positions), so one of them can change the sum by more than the clip norm; "
        f"{WAY_OUT}",
        field="loss",
    )


def difference_of_autograd(
    named: Sequence[tuple[str, torch.nn.Parameter]], samples: Sequence[Rows]
) -> InvalidParameter | None:
    """Return the error if the gradients of examples do not add up to plain autograd's gradient of the batch, or None.

    Any factor between both is right, as of a mean.

    Args:
        named: parameters with their names, whose gradients were kept of this batch alone (`keep_gradients`).
        samples: their gradients by example.
    """
    kept = [kept_gradient(p) for _, p in named]
    gradients = [each for each in kept if each is not None]
    parts = any(
        len(each) < len(samples[0]) for _, p in named if isinstance(p.grad_sample, list) for each in p.grad_sample
    )
    if parts or len(gradients) < len(kept) or not len(samples[0]):
        return None
    rounding = max(_rounding(sample) for sample in samples)
    allowed = (TOLERANCE + 4 * rounding) * float(squared_norms(samples).sqrt().sum())
    products = np.array(
        [
            [float((one * other).sum()) for one, other in ((total, total), (total, plain), (plain, plain))]
            for gradient, total in zip(gradients, use_up(list(samples), math.inf), strict=True)
            for plain in [gradient.to_dense().to(total)]
        ]
    )
    _, along, plain = products.sum(0)
    factor = max(along, 0.0) / (plain or 1.0)
    errors = np.sqrt((products @ [1.0, -2.0 * factor, factor**2]).clip(min=0.0))
    nothing = plain > 0 and not products[:, 0].any()  # fits any factor of 0
    if not (nothing or np.linalg.norm(errors) > allowed):
        return None
    worst = int(np.argmax(products[:, 2] if nothing else errors))
    return InvalidParameter(
        f"Opacus's per-example gradients of {named[worst][0]} do not add up to the batch gradient of plain autograd: "
        "the parameter is used outside of its own layer, tied to another one or penalized in the loss, its layer mixes "
        "examples, Opacus ignores a setting of it, or p.grad was changed before step(). Use it in its layer only, "
        "or give make_private a module around all its uses (whole=['encoder'], or [''] for the whole model); use "
        "weight_decay for penalties, and grad_sample_mode='functorch' for such settings",
        field="model",
    )
