"""Noise of streaming strategies that a device makes by torch operations, from the coefficients of each step."""

import hashlib

import numpy as np
import torch

from factorize.adapters.coefficients import StepPlan
from factorize.errors import UnsupportedProblem
from factorize.noise.allowances import choose_precision, raised
from factorize.noise.checkpoints import Checkpointed
from factorize.noise.normals import committed, keyed
from factorize.noise.recurrences.state_rounding import SINGLE
from factorize.noise.regions import BlockPart, Region
from factorize.noise.single_use import NoiseUse, Secret
from factorize.noise.source import Streamable
from factorize.privacy import Calibration

_VERSION = 2
"""The version of the state in a checkpoint."""
_COUNTERS = 1 << 12
"""The Philox counters of one block, far more than a block of 2^20 entries uses."""


class DeviceSource(Checkpointed):
    """The noise that a device makes itself, from torch's normals and the coefficients of each step.

    Coefficients and arithmetic are float64, one block at a time: no matrix product here is one that torch may
    round to TF32 or bfloat16. The draws and, if asked for, the state are float32.

    Args:
        source: source of C.
        calibration: the calibration of its noise.
        size: number of entries of the whole noise.
        region: the shard.
        seed: the secret seed.
        device: device that makes the noise.
        precision: precision of the state; see `factorize.client.NoiseGenerator`.
    """

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
        self._recurrence = source.recurrence()
        precision, self.allowance = choose_precision(self._recurrence, calibration, precision, draws=SINGLE)
        self.sigma = raised(calibration.sigma_of_sums, self.allowance)
        self.steps = self._recurrence.steps
        self._device, self._normals = device, device_normals(seed, source.digest, device)
        self._parts = region.parts(self._normals.block)
        shape = self._recurrence.vectors, region.size
        self._state = torch.zeros(shape, device=device, dtype=getattr(torch, precision))
        self._drawn = torch.empty(self._normals.block, device=device)
        self._flat = torch.empty(region.size, device=device)
        self._stated = {
            "version": _VERSION,
            "steps": self.steps,
            "size": size,
            "shard": region.document(),
            "sigma": self.sigma.hex(),
            "precision": precision,
            "factorization": source.digest,
            "generator": f"torch-{device.type}",
            "commitment": commitment(self._normals, device),
        }
        self._use = NoiseUse(self._stated["commitment"], region)

    def next(self) -> torch.Tensor:
        """Return a step's noise, float32, in memory that the next call may overwrite."""
        self.refuse_half()
        self._refuse_past(self.step + 1)
        self._use.take(self.step)
        self._half = True
        self._move(self.step)
        self.step += 1
        self._half = False
        return self._flat

    def _move(self, step: int) -> None:
        """Make the noise of a step in the memory that `next` returns."""
        plan = StepPlan.of(self._recurrence, step)
        with torch.no_grad():
            update = _Update(plan, self._device)
            wanted = [(step, self.sigma * plan.gain), *((earlier, self.sigma) for earlier in plan.steps)]
            for part in self._parts:
                draws = [self._draw(*each, part) for each in wanted]
                update.apply(self._flat[part.at], self._state[:, part.at], draws)

    def _draw(self, step: int, factor: float, part: BlockPart) -> torch.Tensor:
        """Return some entries of z_step times a factor, float64, as numbers that the state can keep exactly."""
        self._normals.fill(self._drawn, step, part.block)
        inside = part.inside if isinstance(part.inside, slice) else _on(part.inside, self._device, np.int64)
        return (self._drawn[inside].double() * factor).to(self._state.dtype).double()

    @property
    def vectors(self) -> np.ndarray:
        """A copy of the state's own memory, shape (vectors, entries)."""
        return self._state.cpu().numpy()

    def _begin(self, vectors: np.ndarray | None) -> None:
        if vectors is None:
            self._state.zero_()
        else:
            self._state.copy_(torch.from_numpy(vectors))


class _Update:
    """The coefficients of a step on the device, float64, without the states that it does not change."""

    def __init__(self, plan: StepPlan, device: torch.device) -> None:
        loads, diagonal = plan.loads, np.diag(plan.moves)
        apart = not (plan.moves - np.diag(diagonal)).any()
        same = (plan.moves == np.eye(len(diagonal))).all(axis=1) & (loads == 0).all(axis=1)
        changed = np.flatnonzero(~same)
        self._rows = torch.from_numpy(changed).to(device) if same.any() else slice(None)
        self._none = not len(changed)
        self._reads = _on(plan.reads, device) if plan.reads.any() else None
        self._takes = _on(plan.takes, device) if plan.steps else None
        self._decays = _on(diagonal[changed][:, None], device) if apart else None
        self._moves = None if apart else _on(plan.moves[changed], device)
        self._scale = plan.scale
        self._loads, self._by_x = _on(loads[changed], device), not plan.keeps_draws

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


class CudaNormals(Secret):
    """Normals that torch draws on a CUDA device, and can draw again: a function of (key, step, block), float32.

    The generator is Philox: its key is hashed from the secret, and step and block are its counter, so that no two
    blocks meet.

    Args:
        key: secret key; 64 bits of its hash are the generator's key.
        device: a CUDA device.

    Attributes:
        block: number of entries of one block.
        key: the secret that every block is hashed from.
    """

    block = 1 << 20

    def __init__(self, key: bytes, device: torch.device) -> None:
        self.key = key
        self._generator = torch.Generator(device=device)
        self._seed = hashlib.shake_128(key + bytes(16)).digest(8)

    def fill(self, out: torch.Tensor, step: int, block: int) -> None:
        """Fill a tensor of one whole block."""
        offset = (step << 24 | block) * _COUNTERS  # allows 2^28 steps of 2^24 blocks
        state = self._seed + offset.to_bytes(8, "little")
        self._generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
        out.normal_(generator=self._generator)


def device_normals(seed: int, context: str, device: torch.device) -> CudaNormals:
    """Return the normals of a device.

    Args:
        seed: a secret integer, `secrets.randbits(128)`.
        context: name of the noise's purpose.
        device: a CUDA device.

    Raises:
        InvalidParameter: the seed is no integer >= 0.
        UnsupportedProblem: another kind of device.
    """
    key = keyed(f"torch-{device.type}", seed, context)
    if device.type != "cuda":
        message = f"generator='torch' draws on CUDA devices, not on {device.type}; use generator='sfc64'"
        raise UnsupportedProblem(message, field="generator")
    return CudaNormals(key, device)


def commitment(normals: CudaNormals, device: torch.device) -> str:
    """Return a hash that tells another seed, and a torch with another stream; see `factorize.noise.normals`."""
    probe = torch.empty(normals.block, device=device)
    normals.fill(probe, 0, 0)
    return committed(normals.key, probe[:64].cpu().numpy().astype("<f4").tobytes())


def _on(array: np.ndarray, device: torch.device, kind: type[np.generic] = np.float64) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=kind)).to(device)
