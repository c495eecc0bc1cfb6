"""Correlated noise for the parameters of a torch model, on their device: `pip install 'factorize[torch]'`."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypedDict

import numpy as np
import torch

from factorize.adapters.held import Held
from factorize.adapters.torch_engine import DeviceStreaming
from factorize.adapters.torch_normals import commitment, device_normals
from factorize.client import noise as core
from factorize.client.allowances import choose_precision, raised
from factorize.client.noise_source import Streamable
from factorize.client.recurrences.state_rounding import SINGLE
from factorize.encoding import canonical_json
from factorize.errors import InvalidParameter
from factorize.privacy import Calibration

_VERSION = 2


class TorchNoiseOptions(TypedDict, total=False):
    """Options of a `NoiseGenerator`, for what passes them on."""

    generator: Literal["torch", "sfc64", "shake128"] | None
    device: torch.device | str | None
    precision: Literal["float32", "float64"] | None
    memory_bytes: int
    threads: int | None


class NoiseGenerator:
    """The noise of each step as tensors like the parameters: sigma * (row t of C^-1 Z), cut up.

    Every entry is a function of (seed, factorization, step, position) and, with `generator="torch"`, of the kind of
    device. Restarts and shards are as for `factorize.client.NoiseGenerator`.

    Args:
        factors: what `factorize.client.load` or `solvers.solve` gave.
        calibration: its own, from `calibrate`. Never a bare number.
        parameters: tensors whose shapes, dtypes and devices the noise gets; kept by shape alone.
        seed: a secret integer, `secrets.randbits(128)`, never used for a second run of the same factorization.
        generator: `torch` draws on the device in torch's own normals; `sfc64` (the core's, the same bits everywhere)
            and `shake128` (cryptographic) draw on the CPU. None takes `torch` where C has a recurrence and the device
            is a CPU or CUDA, else `sfc64`.
        device: where the noise is made; that of the first parameter by default.
        shard: (first, last): only these entries of the flattened parameters; `next` then returns one flat tensor.
        precision: of a recurrence's state; see `factorize.client.NoiseGenerator`. The arithmetic is float64.
        memory_bytes: see `factorize.client.NoiseGenerator`.
        threads: that make noise on the CPU; torch's own number by default.

    Attributes:
        calibration: scale and guarantee.
        generator: the one in use.
        steps: n.
        allowance: what the noise is multiplied by beyond 1 for the roundings.
        sigma: standard deviation of Z as it is drawn, calibration.sigma (1 + allowance).

    Raises:
        InvalidParameter: no parameters, a calibration of another factorization, or an option out of range.
        UnsupportedProblem: the device has no generator that can be replayed here.
    """

    def __init__(
        self,
        factors: Any,
        calibration: Calibration,
        parameters: Iterable[torch.Tensor],
        *,
        seed: int,
        generator: Literal["torch", "sfc64", "shake128"] | None = None,
        device: torch.device | str | None = None,
        shard: tuple[int, int] | None = None,
        precision: Literal["float32", "float64"] | None = None,
        memory_bytes: int = core.MEMORY_BYTES,
        threads: int | None = None,
    ) -> None:
        held = Held(factors)
        held.check(calibration)
        self._like = [(tuple(p.shape), p.dtype, p.device) for p in parameters]
        if not self._like or not all(dtype.is_floating_point for _, dtype, _ in self._like):
            raise InvalidParameter(
                "there is no parameter to add noise to, or one is no real tensor", field="parameters"
            )
        self.calibration = calibration
        self._device = torch.device(self._like[0][2] if device is None else device)
        self._sizes = [math.prod(shape) for shape, _, _ in self._like]
        size = sum(self._sizes)
        first, last = (0, size) if shard is None else shard
        source = held.source()
        self._whole = shard is None
        self.generator = generator or _best(source, self._device)
        count = torch.get_num_threads() if threads is None else threads
        self._source: _Device | _Core
        if self.generator == "torch":
            if not isinstance(source, Streamable):
                raise InvalidParameter(
                    f"C of {held.digest[:12]} has no recurrence, so its noise is drawn by the core; use 'sfc64'",
                    field="generator",
                )
            self._source = _Device(source, calibration, size, (first, last), seed, self._device, count, precision)
        else:
            made = core.NoiseGenerator(
                source,
                calibration,
                size,
                seed=seed,
                shard=shard,
                generator=self.generator,
                precision=precision,
                memory_bytes=memory_bytes,
                threads=count,
            )
            self._source = _Core(made, self._device)
        self.steps = self._source.steps
        self.allowance, self.sigma = self._source.allowance, self._source.sigma

    @property
    def step(self) -> int:
        """The step whose noise `next` returns, from 0."""
        return self._source.step

    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        """Yield the noise of every step that is left."""
        while self.step < self.steps:
            yield self.next()

    def next(self) -> list[torch.Tensor]:
        """Return the noise of this step, one tensor per parameter, and go on to the next.

        The tensors share memory that the next call writes again, where dtype and device allow it: add them at once.
        A generator with a shard returns one flat float32 tensor in the list.

        Raises:
            InvalidParameter: all n steps were taken.
        """
        flat = self._source.next()
        if not self._whole:
            return [flat]
        parts = flat.split(self._sizes)
        return [p.view(s).to(device=d, dtype=t) for p, (s, t, d) in zip(parts, self._like, strict=True)]

    def skip(self, steps: int = 1) -> None:
        """Go on without the noise of the next `steps` steps, which then must not be released.

        Raises:
            InvalidParameter: fewer than 0 steps, or beyond n.
        """
        self._source.skip(steps)

    def state_dict(self, *, arrays: bool = True) -> dict[str, Any]:
        """Return what a checkpoint needs beside the seed; see `factorize.client.NoiseGenerator`.

        Args:
            arrays: with the state's vectors, as a tensor as secret as the seed; without them restarting makes all
                earlier steps again.
        """
        state = self._source.state_dict(arrays=arrays)
        if isinstance(state.get("state"), np.ndarray):
            state["state"] = torch.from_numpy(state["state"])
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a checkpoint, whose model must be restored with it.

        Raises:
            InvalidParameter: it is damaged, or of another seed, factorization, scale, size, shard or generator.
        """
        self._source.load_state_dict(state)

    def close(self) -> None:
        """End threads and connections; the next step opens them again."""
        self._source.close()


class _Core:
    """Noise from the core, moved to a device."""

    def __init__(self, made: core.NoiseGenerator, device: torch.device) -> None:
        self._made, self._device, self.steps = made, device, made.steps
        self.allowance, self.sigma = made.allowance, made.sigma
        self._flat = torch.empty(made.shape, dtype=torch.float32, pin_memory=device.type == "cuda")

    @property
    def step(self) -> int:
        return self._made.step

    def next(self) -> torch.Tensor:
        self._made.next(out=self._flat.numpy())
        return self._flat.to(self._device)

    def skip(self, steps: int) -> None:
        self._made.skip(steps)

    def state_dict(self, *, arrays: bool) -> dict[str, Any]:
        return self._made.state_dict(arrays=arrays)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        given = state.get("state")
        self._made.load_state_dict(state if given is None else {**state, "state": np.asarray(given)})

    def close(self) -> None:
        self._made.close()


class _Device:
    """Noise that a device makes itself, from torch's normals."""

    def __init__(
        self,
        source: Streamable,
        calibration: Calibration,
        size: int,
        shard: tuple[int, int],
        seed: int,
        device: torch.device,
        threads: int,
        precision: str | None,
    ) -> None:
        first, last = shard
        if not 0 <= first < last <= size:
            raise InvalidParameter(f"shard {first}:{last} is not a part of the {size} entries", field="shard")
        if threads < 1:
            raise InvalidParameter(f"threads={threads} is not an integer >= 1", field="threads")
        normals = device_normals(seed, source.digest, device)
        recurrence = source.recurrence()
        precision, self.allowance = choose_precision(recurrence, calibration, precision, draws=SINGLE)
        self.sigma = raised(calibration.sigma, self.allowance)
        dtype = torch.float32 if precision == "float32" else torch.float64
        self._engine = DeviceStreaming(recurrence, normals, self.sigma, first, last, device, threads, dtype)
        self.step, self.steps = 0, self._engine.steps
        self._flat = torch.empty(last - first, device=device)
        self._header = {
            "version": _VERSION,
            "steps": self.steps,
            "size": size,
            "shard": [first, last],
            "sigma": self.sigma.hex(),
            "precision": precision,
            "factorization": source.digest,
            "generator": f"torch-{device.type}",
            "commitment": commitment(normals, device),
        }

    def next(self) -> torch.Tensor:
        self._refuse_past(self.step + 1)
        self._engine.step(self.step, self._flat)
        self.step += 1
        if self.step == self.steps:
            self.close()
        return self._flat

    def skip(self, steps: int) -> None:
        if steps < 0:
            raise InvalidParameter(f"steps={steps} would go back, and release the same noise twice", field="steps")
        self._refuse_past(self.step + steps)
        for _ in range(steps):
            self.next()

    def state_dict(self, *, arrays: bool) -> dict[str, Any]:
        state: dict[str, Any] = {**self._header, "step": self.step}
        if arrays:
            kept = self._engine.state.cpu().clone()
            state |= {"state": kept, "state_sha256": self._digest(self.step, kept)}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
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
            self.step = 0
            self._engine.reset()
            self.skip(step)
            return
        kept, mine = torch.as_tensor(given).cpu(), self._engine.state
        same = kept.shape == mine.shape and kept.dtype == mine.dtype
        if not same or state.get("state_sha256") != self._digest(step, kept):
            raise InvalidParameter(
                f"the checkpoint's vectors are not those of step {step}: damaged, or of another step; leave out "
                "`state` to have them made again",
                field="state",
            )
        mine.copy_(kept)
        self.step = step

    def close(self) -> None:
        self._engine.close()

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


def _best(source: object, device: torch.device) -> Literal["torch", "sfc64"]:
    return "torch" if isinstance(source, Streamable) and device.type in ("cpu", "cuda") else "sfc64"
