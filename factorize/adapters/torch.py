"""Correlated noise for the parameters of a torch model, on their device: `pip install 'factorize[torch]'`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypedDict

import numpy as np
import torch

from factorize.adapters.clipping import refuse_narrow
from factorize.adapters.torch_sources import CoreSource, DeviceSource
from factorize.client import noise as core
from factorize.client.noise_source import Streamable, source_of
from factorize.errors import InvalidParameter
from factorize.format.claims import certified
from factorize.privacy import Calibration, check_own


class TorchNoiseOptions(TypedDict, total=False):
    """Options of a `NoiseGenerator`, for what passes them on."""

    generator: Literal["torch", "sfc64", "shake128"] | None
    device: torch.device | str | None
    precision: Literal["float32", "float64"] | None
    memory_bytes: int
    threads: int | None


class TorchNoiseGenerator:
    """The noise of each step as tensors like the parameters: sigma * (row t of C^-1 Z), cut up.

    Every entry is a function of (seed, factorization, step, position) and, with `generator="torch"`, of the kind of
    device. Restarts and shards are as for `factorize.client.NoiseGenerator`.

    Args:
        factors: what `factorize.client.load` or `solvers.solve` gave.
        calibration: its own, from `calibrate`. Never a bare number.
        parameters: tensors whose shapes and devices the noise gets; kept by shape alone. The noise is float32, float64
            for parameters of that type.
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
        held = certified(factors)
        check_own(calibration, held)
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
        source = source_of(held)
        self._whole, self._shard_size = shard is None, last - first
        self.generator = generator or _best(source, self._device)
        count = torch.get_num_threads() if threads is None else threads
        self._source: DeviceSource | CoreSource
        if self.generator == "torch":
            if not isinstance(source, Streamable):
                raise InvalidParameter(
                    f"C of {held.digest[:12]} has no recurrence, so its noise is drawn by the core; use 'sfc64'",
                    field="generator",
                )
            self._source = DeviceSource(source, calibration, size, (first, last), seed, self._device, count, precision)
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
            self._source = CoreSource(made, self._device)
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

        The tensors share memory that the next call writes again, where dtype and device allow it: add them at once, to
        sums that have as many digits (`release` does). A generator with a shard returns one flat float32 tensor in the
        list.

        Raises:
            InvalidParameter: all n steps were taken.
        """
        flat = self._source.next()
        if not self._whole:
            return [flat]
        parts = zip(flat.split(self._sizes), self._like, strict=True)
        return [part.view(shape).to(device, _noise_dtype(dtype)) for part, (shape, dtype, device) in parts]

    def release(self, sums: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Return sums of clipped gradients with this step's noise, in the parameters' types, and go on to the next.

        The addition is rounded to float32, where the noise has its digits, and then to the type of the parameter.

        Args:
            sums: (or means with the calibration's divisor) float32 or float64, shaped like the parameters; one flat
                tensor for a shard.

        Raises:
            InvalidParameter: there are others than parameters, one has fewer digits than float32, or all n steps were
                taken.
        """
        given = list(sums)
        refuse_narrow(given)
        shard = [((self._shard_size,), torch.float32, self._device)]
        wanted = self._like if self._whole else shard
        if [tuple(total.shape) for total in given] != [shape for shape, _, _ in wanted]:
            raise InvalidParameter(
                f"{len(given)} sums are not shaped like the {len(wanted)} parameters; give one for each, in order",
                field="parameters",
            )
        pairs = zip(given, self.next(), wanted, strict=True)
        return [(total + drawn.to(total.device)).float().to(d, t) for total, drawn, (_, t, d) in pairs]

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


NoiseGenerator = TorchNoiseGenerator
"""Its name in the documents: in this module every noise is torch's."""


def _best(source: object, device: torch.device) -> Literal["torch", "sfc64"]:
    return "torch" if isinstance(source, Streamable) and device.type in ("cpu", "cuda") else "sfc64"


def _noise_dtype(dtype: torch.dtype) -> torch.dtype:
    """Noise that is rounded to fewer digits before it is added is not the noise of any strategy that was bounded."""
    return dtype if dtype == torch.float64 else torch.float32
