"""One step of a streaming strategy as one kernel of a CUDA device: drawn, correlated and stored in a single pass."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import torch

from factorize.adapters.coefficients import StepPlan
from factorize.adapters.fused.counted_normals import QUARTER, SPAN
from factorize.client.recurrences.base import Recurrence
from factorize.client.regions import Region
from factorize.errors import UnsupportedProblem

_KEPT, _COUPLED = 8, 16  # states that a kernel keeps in registers; states that may move into each other


class FusedStreaming:
    """A recurrence and its state on a CUDA device.

    Coefficients and arithmetic are float64; draws are float32, and so is the state where asked for.

    Args:
        recurrence: of C.
        key: of Philox, see `counted_normals`.
        sigma: standard deviation of Z.
        region: the shard.
        device: a CUDA device.
        dtype: of the state.

    Attributes:
        steps: n.
        state: shape (vectors, entries of the shard).

    Raises:
        UnsupportedProblem: Triton is not installed, or more than 16 states move into each other.
    """

    def __init__(
        self,
        recurrence: Recurrence,
        key: bytes,
        sigma: float,
        region: Region,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if find_spec("triton") is None:
            raise UnsupportedProblem(
                "the one-pass kernel needs Triton, which is not installed; install it, or use generator='torch'",
                field="generator",
            )
        coupled = recurrence.vectors if _coupled(StepPlan.of(recurrence, 0)) else 0
        if coupled > _COUPLED:
            raise UnsupportedProblem(
                f"{coupled} states move into each other, and a kernel keeps {_COUPLED}; use generator='torch'",
                field="generator",
            )
        self.steps = recurrence.steps
        self.state = torch.zeros((recurrence.vectors, region.size), device=device, dtype=dtype)
        self._recurrence, self._sigma, self._device = recurrence, sigma, device
        self._key = torch.from_numpy(np.frombuffer(key[:8], "<i8").copy()).to(device)
        self._pieces = torch.from_numpy(span_pieces(region)).to(device)

    def reset(self) -> None:
        """Go back to step 0."""
        self.state.zero_()

    def step(self, step: int, out: torch.Tensor) -> None:
        """Write row `step` into `out`, float32, shape (entries,), and go on; steps come in order."""
        from factorize.adapters.fused.step_kernel import fused_step

        plan = StepPlan.of(self._recurrence, step)
        again = plan.redraws
        coupled = _coupled(plan)
        earlier = [] if again is None else again.steps
        numbers = torch.from_numpy(_numbers(plan, self._sigma, coupled)).to(self._device)
        steps = torch.tensor([step, *earlier], dtype=torch.int64).to(self._device)
        if not len(self._pieces):
            return
        fused_step[(len(self._pieces),)](
            out,
            self.state,
            self._pieces,
            numbers,
            steps,
            self._key,
            self.state.shape[1],
            K=len(self.state),
            M=len(earlier),
            BY_X=again is None,
            COUPLED=coupled,
            RELOAD=len(self.state) > _KEPT and not coupled,
            EXACT=self._device.type == "cuda",  # libdevice is not in the interpreter
            QUARTER=QUARTER,
            num_warps=4,
        )

    def close(self) -> None:
        """Nothing is kept open."""


def span_pieces(region: Region) -> np.ndarray:
    """Return what each span has of each run, shape (pieces, 4): span, first and past its last entry, place here."""
    firsts, lasts = region.starts // SPAN, (region.stops - 1) // SPAN
    counts = lasts - firsts + 1
    run = np.repeat(np.arange(len(counts)), counts)
    spans = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + firsts[run]
    low, high = np.maximum(region.starts[run] - spans * SPAN, 0), np.minimum(region.stops[run] - spans * SPAN, SPAN)
    return np.stack([spans, low, high, np.cumsum(high - low) - (high - low)], axis=1).astype(np.int64)


def _coupled(plan: StepPlan) -> bool:
    return bool((plan.moves - np.diag(np.diag(plan.moves))).any())


def _numbers(plan: StepPlan, sigma: float, coupled: bool) -> np.ndarray:
    """Pack the coefficients of a step as the kernel reads them."""
    again = plan.redraws
    loads = plan.writes[:, None] if again is None else again.loads
    takes = np.empty(0) if again is None else again.takes
    same = (plan.moves == np.eye(len(plan.moves))).all(axis=1) & (loads == 0).all(axis=1)
    moves = plan.moves if coupled else np.diag(plan.moves)
    head = np.array([sigma * plan.gain, sigma, plan.scale])
    parts = [head, plan.reads, (~same).astype(np.float64), moves.reshape(-1), takes, loads.reshape(-1)]
    return np.concatenate(parts).astype(np.float64)
