"""Noise of streaming strategies that a device makes: torch operations, from the coefficients of each step."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from factorize.adapters.coefficients import StepPlan
from factorize.adapters.torch_normals import TorchNormals, commitment, device_normals
from factorize.client.allowances import choose_precision, raised
from factorize.client.checkpoints import Checkpointed
from factorize.client.noise_source import Streamable
from factorize.client.recurrences.base import Recurrence
from factorize.client.recurrences.state_rounding import SINGLE
from factorize.client.regions import BlockPart, Region
from factorize.privacy import Calibration

_VERSION = 2


class DeviceStreaming:
    """A recurrence and its state on a device.

    Coefficients and arithmetic are float64, a block at a time: no matrix product here is one that torch may round to
    TF32 or bfloat16. The draws and, where asked for, the state are float32.

    Args:
        recurrence: of C.
        normals: Z.
        sigma: standard deviation of Z.
        region: the shard.
        device: where to work.
        dtype: of the state.

    Attributes:
        state: shape (vectors, entries of the shard).
    """

    def __init__(
        self,
        recurrence: Recurrence,
        normals: TorchNormals,
        sigma: float,
        region: Region,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.steps = recurrence.steps
        self.state = torch.zeros((recurrence.vectors, region.size), device=device, dtype=dtype)
        self._recurrence, self._normals, self._sigma = recurrence, normals, sigma
        self._device, self._parts = device, region.parts(normals.block)
        self._drawn = torch.empty(normals.block, device=device)

    def reset(self) -> None:
        """Go back to step 0."""
        self.state.zero_()

    def step(self, step: int, out: torch.Tensor) -> None:
        """Write row `step` into `out`, float32, shape (entries,), and go on; steps come in order."""
        plan = StepPlan.of(self._recurrence, step)
        with torch.no_grad():
            update = _Update(plan, self._device)
            wanted = [(step, self._sigma * plan.gain), *((earlier, self._sigma) for earlier in update.redraws)]
            for part in self._parts:
                draws = [self._draw(*each, part) for each in wanted]
                update.apply(out[part.at], self.state[:, part.at], draws)

    def _draw(self, step: int, factor: float, part: BlockPart) -> torch.Tensor:
        """Return some entries of z_step times a factor, float64, of numbers that the state can keep as they are."""
        drawn = self._drawn
        self._normals.fill(drawn, step, part.block)
        inside = part.inside if isinstance(part.inside, slice) else torch.from_numpy(part.inside.astype(np.int64))
        taken = drawn[inside] if isinstance(inside, slice) else drawn[inside.to(self._device)]
        return (taken.double() * factor).to(self.state.dtype).double()


class _Update:
    """A step's coefficients on the device, float64, with the states that it leaves as they are left out."""

    def __init__(self, plan: StepPlan, device: torch.device) -> None:
        again, diagonal = plan.redraws, np.diag(plan.moves)
        self.redraws = [] if again is None else again.steps
        loads = plan.writes[:, None] if again is None else again.loads
        apart = not (plan.moves - np.diag(diagonal)).any()
        same = (plan.moves == np.eye(len(diagonal))).all(axis=1) & (loads == 0).all(axis=1)
        changed = np.flatnonzero(~same)
        self._rows = torch.from_numpy(changed).to(device) if same.any() else slice(None)
        self._none = not len(changed)
        self._reads = _on(plan.reads, device) if plan.reads.any() else None
        self._takes = None if again is None or not self.redraws else _on(again.takes, device)
        self._decays = _on(diagonal[changed][:, None], device) if apart else None
        self._moves = None if apart else _on(plan.moves[changed], device)
        self._scale = plan.scale
        self._loads, self._by_x = _on(loads[changed], device), again is None

    def apply(self, out: torch.Tensor, state: torch.Tensor, draws: list[torch.Tensor]) -> None:
        """Write x into `out`, and bring the state to the next step, from u and the earlier draws."""
        kept, x = state.double(), draws[0]
        taken = x if self._takes is None else torch.addmv(x, torch.stack(draws[1:]).T, self._takes)
        if self._reads is not None:
            taken = torch.addmv(taken, kept.T, self._reads, alpha=-1)
        if not self._none:
            moved = kept[self._rows] * self._decays if self._moves is None else self._moves @ kept
            incoming = taken[None] if self._by_x else torch.stack(draws)
            state[self._rows] = torch.addmm(moved, self._loads, incoming).to(state.dtype)
        out.copy_(taken if self._scale == 1 else taken * self._scale)


class DeviceSource(Checkpointed):
    """Noise that a device makes itself, from torch's normals."""

    def __init__(
        self,
        source: Streamable,
        calibration: Calibration,
        size: int,
        region: Region,
        seed: int,
        device: torch.device,
        precision: str | None,
    ) -> None:
        recurrence = source.recurrence()
        precision, self.allowance = choose_precision(recurrence, calibration, precision, draws=SINGLE)
        self.sigma = raised(calibration.sigma_of_sums, self.allowance)
        dtype = torch.float32 if precision == "float32" else torch.float64
        normals = device_normals(seed, source.digest, device)
        self._engine = DeviceStreaming(recurrence, normals, self.sigma, region, device, dtype)
        self.step, self.steps = 0, self._engine.steps
        self._flat = torch.empty(region.size, device=device)
        self._header = {
            "version": _VERSION,
            "steps": self.steps,
            "size": size,
            "shard": region.document(),
            "sigma": self.sigma.hex(),
            "precision": precision,
            "factorization": source.digest,
            "generator": f"torch-{device.type}",
            "commitment": commitment(normals, device),
        }

    def next(self) -> torch.Tensor:
        """Return a step's noise, float32, in memory that the next call may write again."""
        self._refuse_past(self.step + 1)
        self._engine.step(self.step, self._flat)
        self.step += 1
        return self._flat

    @property
    def vectors(self) -> np.ndarray:
        """A copy of the state's own memory, shape (vectors, entries)."""
        return self._engine.state.cpu().numpy()

    def header(self, step: int) -> dict[str, Any]:
        """Return what a checkpoint of a step says of the noise, as plain data."""
        return {**self._header, "step": step}

    def restore(self, step: int, vectors: np.ndarray | None) -> None:
        """Go to a step with vectors that were checked; None makes them again."""
        if vectors is None:
            self.step = 0
            self._engine.reset()
            self._advance_to(step)
            return
        self._engine.state.copy_(torch.from_numpy(vectors))
        self.step = step

    def _advance_to(self, step: int) -> None:
        while self.step < step:
            self.next()


def _on(array: np.ndarray, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float64)).to(device)
