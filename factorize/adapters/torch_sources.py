"""Sources of flat noise for torch: the client's generator, moved to a device, and the device's own normals."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from factorize.adapters.torch_engine import DeviceStreaming
from factorize.adapters.torch_normals import commitment, device_normals
from factorize.client import noise as core
from factorize.client.allowances import choose_precision, raised
from factorize.client.noise_source import Streamable
from factorize.client.recurrences.state_rounding import SINGLE
from factorize.client.regions import Region
from factorize.encoding import canonical_json
from factorize.errors import InvalidParameter
from factorize.privacy import Calibration

_VERSION = 2


class CoreSource:
    """Noise from the core, moved to a device."""

    def __init__(self, made: core.NoiseGenerator, device: torch.device) -> None:
        self._made, self._device, self.steps = made, device, made.steps
        self.allowance, self.sigma = made.allowance, made.sigma
        self._flat = torch.empty(made.shape, dtype=torch.float32, pin_memory=device.type == "cuda")

    @property
    def step(self) -> int:
        """The step whose noise comes next."""
        return self._made.step

    def next(self) -> torch.Tensor:
        """Return a step's noise, float32, in memory that the next call may write again."""
        self._made.next(out=self._flat.numpy())
        return self._flat.to(self._device)

    def skip(self, steps: int) -> None:
        """Go on without the noise of some steps."""
        self._made.skip(steps)

    def state_dict(self, *, arrays: bool) -> dict[str, Any]:
        """Return what a checkpoint needs."""
        return self._made.state_dict(arrays=arrays)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a checkpoint, or refuse it."""
        given = state.get("state")
        self._made.load_state_dict(state if given is None else {**state, "state": np.asarray(given)})

    @property
    def vectors(self) -> torch.Tensor | None:
        """The state's own memory, shape (vectors, entries); None where everything is drawn again."""
        return None if self._made.vectors is None else torch.from_numpy(self._made.vectors)

    def restore(self, step: int, vectors: torch.Tensor | None) -> None:
        """Go to a step with vectors that were checked; None makes them again."""
        self._made.restore(step, None if vectors is None else vectors.cpu().numpy())

    def close(self) -> None:
        """End threads and connections."""
        self._made.close()


class DeviceSource:
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

    def skip(self, steps: int) -> None:
        """Go on without the noise of some steps."""
        if steps < 0:
            raise InvalidParameter(f"steps={steps} would go back, and release the same noise twice", field="steps")
        self._refuse_past(self.step + steps)
        for _ in range(steps):
            self.next()

    def state_dict(self, *, arrays: bool) -> dict[str, Any]:
        """Return what a checkpoint needs."""
        state: dict[str, Any] = {**self._header, "step": self.step}
        if arrays:
            kept = self._engine.state.cpu().clone()
            state |= {"state": kept, "state_sha256": self._digest(self.step, kept)}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a checkpoint, or refuse it."""
        step = state.get("step")
        if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step <= self.steps:
            raise InvalidParameter(f"the checkpoint's step {str(step)[:20]} is outside 0..{self.steps}", field="step")
        core.refuse_version(state, _VERSION)
        wrong = [key for key in self._header if state.get(key) != self._header[key]]
        if wrong:
            theirs, ours = str(state.get(wrong[0]))[:80], str(self._header[wrong[0]])[:80]
            raise InvalidParameter(
                f"the checkpoint's {wrong[0]} is {theirs}, here it is {ours}; restore seed, factorization, kind of "
                "device and library versions",
                field=wrong[0],
            )
        given = state.get("state")
        if given is None:
            self.restore(step, None)
            return
        kept, mine = torch.as_tensor(given).cpu(), self._engine.state
        same = kept.shape == mine.shape and kept.dtype == mine.dtype
        if not same or state.get("state_sha256") != self._digest(step, kept):
            raise InvalidParameter(
                f"the checkpoint's vectors are not those of step {step}: damaged, or of another step; leave out "
                "`state` to have them made again",
                field="state",
            )
        self.restore(step, kept)

    @property
    def vectors(self) -> torch.Tensor | None:
        """The state's own memory, shape (vectors, entries)."""
        return self._engine.state

    def restore(self, step: int, vectors: torch.Tensor | None) -> None:
        """Go to a step with vectors that were checked; None makes them again."""
        if vectors is None:
            self.step = 0
            self._engine.reset()
            self.skip(step)
            return
        self._engine.state.copy_(vectors)
        self.step = step

    def close(self) -> None:
        """Nothing is kept open."""

    def _refuse_past(self, step: int) -> None:
        if step > self.steps:
            raise InvalidParameter(
                f"step {step} is past n={self.steps}: no sensitivity covers it; stop, or factor a larger n",
                field="step",
            )

    def _digest(self, step: int, state: torch.Tensor) -> str:
        """Return the sha256 of position and vectors together, so that the two cannot be mixed up."""
        digest = hashlib.sha256(canonical_json({**self._header, "step": step}))
        digest.update(state.contiguous().numpy().reshape(-1).view(np.uint8).data)
        return digest.hexdigest()
