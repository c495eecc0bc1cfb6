"""Correlated noise for the parameters of a torch model, on their device: `pip install 'factorize[torch]'`."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
import torch

from factorize.adapters.gradients.clipping import refuse_narrow, tensors_of
from factorize.adapters.gradients.released_sums import ReleasedSums, noise_dtype, norm_of
from factorize.adapters.ranks.agreement import agree, require_distributed
from factorize.adapters.ranks.placements import ShardLayout, is_sharded, refuse_unknown_parts, values_sum
from factorize.adapters.torch_engine import DeviceSource
from factorize.encoding import JsonObject
from factorize.errors import InvalidParameter
from factorize.format.manifest import certified
from factorize.noise import generator as core
from factorize.noise.checkpoints import refuse_other_types
from factorize.noise.noise_kernels import add_noise
from factorize.noise.normals import BLOCK
from factorize.noise.single_use import Secret
from factorize.noise.source import Streamable, source_of
from factorize.numbers.compiling import HAS_COMPILER
from factorize.numbers.scalars import check_choice
from factorize.privacy import NOT_LOOKED_AT, Calibration, check_kind, check_own
from factorize.training.auditor import Auditor

_MAX_THREAD_ENTRIES = (1 << 15) - 64
"""The most entries that a thread of the noise adds at a time: so few that torch starts no threads for them."""


class TorchNoiseOptions(TypedDict, total=False):
    """The options of a `NoiseGenerator`, for code that passes them on."""

    generator: Literal["torch", "sfc64", "shake128"] | None
    device: torch.device | str | None
    precision: Literal["float32", "float64"] | None
    memory_bytes: int
    threads: int | None
    mesh: object


def default_generator(device: torch.device) -> Literal["torch", "sfc64"]:
    """Return the generator of a noise that streams, where the caller names none."""
    return "torch" if device.type == "cuda" else "sfc64"


class TorchNoiseGenerator(Secret):
    """The noise of each step as tensors like the parameters: sigma * (row t of C^-1 Z), for sums, cut up.

    Every entry is a function of (seed, factorization, step, position) and of the generator. Restarts and shards are as
    for `factorize.client.NoiseGenerator`.

    Args:
        factors: the result of `factorize.client.load` or `solvers.solve`.
        calibration: the calibration of these factors, from `calibrate`, never a bare number.
        parameters: tensors whose shapes and devices the noise gets; only their shapes are kept. The noise has the
            digits of float32, in tensors of float64 if parameters have that type.
        seed: a secret integer, `secrets.randbits(128)`, never used for a second run of the same factorization.
        generator: `torch` draws on a CUDA device in torch's own normals; `sfc64` (the core's, the same bits
            everywhere) and `shake128` (cryptographic) draw on the CPU. None takes `torch` where C has a recurrence and
            the device is CUDA, else `sfc64`.
        device: device that makes the noise; that of the first parameter by default.
        shard: (first, last): only these entries of the flattened parameters; `next` then returns one flat tensor.
        mesh: a DeviceMesh of replicas (DDP) that share the work: each rank makes an even part of the flattened noise,
            `next` returns one flat DTensor. Where parameters are DTensors no mesh is given: every rank makes the noise
            of its own parts.
        precision: precision of a recurrence's state; see `factorize.client.NoiseGenerator`. The arithmetic is float64.
        memory_bytes: see `factorize.client.NoiseGenerator`.
        threads: number of threads that make noise on the CPU; torch's own number by default.
        auditor: auditor of the job's batches; see `factorize.client.NoiseGenerator`.

    Attributes:
        calibration: scale and guarantee.
        generator: name of the generator in use.
        steps: n.
        allowance: the excess of the factor on the noise over 1, which pays for the roundings.
        sigma: standard deviation of Z as it is drawn, calibration.sigma_of_sums (1 + allowance).

    Raises:
        InvalidParameter: no parameters, a calibration of another factorization, or an option out of range.
        UnsupportedProblem: `torch` on another device than CUDA.
    """

    def __init__(
        self,
        factors: object,
        calibration: Calibration,
        parameters: Iterable[torch.Tensor],
        *,
        seed: int,
        shard: tuple[int, int] | None = None,
        auditor: Auditor | Literal["not_looked_at"] | None = None,
        **options: Unpack[TorchNoiseOptions],
    ) -> None:
        steps, tensors = certified(factors).steps, tensors_of("parameters", parameters)
        self._auditor = check_kind(calibration).accept_auditor(auditor, steps)
        make = partial(self._make, factors, calibration, tensors, seed, shard, **options)
        if options.get("mesh") is None and not any(is_sharded(tensor) for tensor in tensors):
            make()
            return
        require_distributed("sharded noise")
        agree("the noise", make)

    def _make(
        self,
        factors: object,
        calibration: Calibration,
        parameters: list[torch.Tensor],
        seed: int,
        shard: tuple[int, int] | None,
        *,
        mesh: object = None,
        generator: Literal["torch", "sfc64", "shake128"] | None = None,
        device: torch.device | str | None = None,
        precision: Literal["float32", "float64"] | None = None,
        memory_bytes: int = core.MEMORY_BYTES,
        threads: int | None = None,
    ) -> tuple[None, dict[str, object]]:
        """Do the work of the constructor, and return the values that must be the same on all ranks."""
        held = certified(factors)
        check_own(calibration, held)
        refuse_unknown_parts(parameters)
        self._like = [(tuple(p.shape), p.dtype, p.device) for p in parameters]
        if not self._like or not all(dtype.is_floating_point for _, dtype, _ in self._like):
            raise InvalidParameter("parameters must be real tensors, at least one; give those", field="parameters")
        self.calibration = calibration
        self._device = torch.device(self._like[0][2] if device is None else device)
        self._sizes = [math.prod(shape) for shape, _, _ in self._like]
        size = sum(self._sizes)
        sharded = any(is_sharded(tensor) for tensor in parameters)
        if (shard is not None) + (mesh is not None) + sharded > 1:
            raise InvalidParameter(
                "DTensors, mesh= and shard= each select this rank's part of the noise; give only one of them",
                field="shard",
            )
        self._whole, self._ranks = shard is None and mesh is None, mesh is not None or sharded
        if shard is not None:
            self._layout = ShardLayout.flat(core.checked_region(shard, size))
        else:
            self._layout = ShardLayout.of(parameters) if mesh is None else ShardLayout.evenly(size, mesh)
        flat = (torch.float32, self._device)
        self._released = ReleasedSums(self._layout, self.kinds if self._whole else [flat])
        region = self._layout.region
        source = source_of(held)
        streams = isinstance(source, Streamable)
        usual = default_generator(self._device) if streams else "sfc64"
        named = usual if generator is None else generator
        self.generator = check_choice("generator", named, ("torch", "sfc64", "shake128"))
        self._made: core.NoiseGenerator | DeviceSource
        if self.generator == "sfc64" or self.generator == "shake128":
            self._made = core.NoiseGenerator(
                source,
                calibration,
                size,
                seed=seed,
                shard=region,
                generator=self.generator,
                precision=precision,
                memory_bytes=memory_bytes,
                threads=torch.get_num_threads() if threads is None else threads,
                auditor=NOT_LOOKED_AT,  # `next` asks the auditor
            )
        elif not isinstance(source, Streamable):
            raise InvalidParameter(
                f"generator='torch' needs a recurrence, which C of {source.digest[:12]} does not have; use 'sfc64'",
                field="generator",
            )
        else:
            self._made = DeviceSource(source, calibration, size, region, seed, self._device, precision)
        self.steps = self._made.steps
        self.allowance, self.sigma = self._made.allowance, self._made.sigma
        if not self._ranks:
            return None, {}
        state = self._layout.header_of(self._made)
        names = {"factorization": "factorization", "seed": "commitment", "generator": "generator", "sigma": "sigma"}
        own = {name: state[key] for name, key in names.items()} | {"precision": state.get("precision")}
        replicas = {} if mesh is None else {"values": values_sum(parameters)}
        return None, {**self._layout.document(), **own, "clip_norm": calibration.clip_norm, **replicas}

    @property
    def step(self) -> int:
        """The step whose noise `next` returns, from 0."""
        return self._made.step

    @property
    def kinds(self) -> list[tuple[torch.dtype, torch.device]]:
        """The type and the device of each parameter."""
        return [kind[1:] for kind in self._like]

    @property
    def commitment(self) -> str:
        """A hash that tells this noise from that of another seed and reveals nothing of either."""
        return self._made.commitment

    def _next(self) -> torch.Tensor:
        """Return this rank's noise of a step, float32, in memory that the next call may overwrite."""
        if self._auditor is not None:
            self._auditor.check_release(self.step, noise=self.commitment)
        if isinstance(self._made, DeviceSource):
            return self._made.next()
        row = torch.empty(self._made.shape, dtype=torch.float32, pin_memory=self._device.type == "cuda")
        self._made.next(out=row.numpy())
        return row.to(self._device)

    def _send(self, sizes: Sequence[int], first: int, use: Callable[[int, slice, torch.Tensor], None]) -> None:
        """Call use(tensor, its entries, their noise) for all of this rank's noise of a step, as it is made.

        Args:
            sizes: numbers of entries of tensors that follow one another.
            first: their entry at which this rank's noise begins.
            use: a function that several threads call.
        """
        ends = list(accumulate(sizes))

        def cut(start: int, row: torch.Tensor, most: int) -> None:
            low, stop = first + start, first + start + len(row)
            while low < stop:
                i = bisect_right(ends, low)
                begin, high = ends[i] - sizes[i], min(stop, ends[i], low + most)
                use(i, slice(low - begin, high - begin), row[low - first - start : high - first - start])
                low = high

        if isinstance(self._made, DeviceSource) or self._device.type != "cpu":
            cut(0, self._next(), core.MAX_ENTRIES)
            return
        if self._auditor is not None:
            self._auditor.check_release(self.step, noise=self.commitment)
        self._made.send(lambda at, row: cut(at.start, torch.from_numpy(row), _MAX_THREAD_ENTRIES))

    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        """Yield the noise of every step that is left."""
        while self.step < self.steps:
            yield self.next()

    def next(self) -> list[torch.Tensor]:
        """Return the noise of this step for sums, one tensor per parameter, and go on to the next.

        The tensors share memory that the next call overwrites, if dtype and device allow it: add them at once, to sums
        with as many digits (as `add_to_sum` does). A generator with a shard returns one flat float32 tensor in the
        list, one with a mesh a flat DTensor, and if parameters are DTensors the noise has their placements.

        Raises:
            InvalidParameter: all n steps were taken.
            InvalidParticipation: the auditor has not seen this step's examples.
        """
        parts = list(zip(self._layout.parts, self._next().split(self._layout.sizes), strict=True))
        if not self._whole:
            return [part.tensor(drawn) for part, drawn in parts]
        like = zip(parts, self._like, strict=True)
        return [part.tensor(drawn.to(device, noise_dtype(dtype))) for (part, drawn), (_, dtype, device) in like]

    def add_to_sum(self, totals: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Return sums of clipped gradients with this step's noise, in the parameters' types, and go on to the next.

        The sum is rounded to float32, where the noise has its digits, and then to the type of the parameter.

        Args:
            totals: float32 or float64, shaped like the parameters; one flat tensor for a shard.

        Raises:
            InvalidParameter: there are others than parameters, one has fewer digits than float32 or a number that is
                not finite, or all n steps were taken.
            InvalidParticipation: the auditor has not seen this step's examples, or they cannot have these sums.
        """
        return self._released.add(self._send, self._parts(totals), lambda total, drawn, _: total + drawn)

    def add_to_mean(self, means: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Return sums of clipped gradients over the calibration's divisor with this step's noise; see `add_to_sum`.

        Args:
            means: the `totals` of `add_to_sum`, divided by the calibration's divisor.

        Raises:
            InvalidParameter: see `add_to_sum`; or the calibration has no divisor, or the norm can only be that of sums.
        """
        divisor = self.calibration.divisor_of_means()
        parts, scale = self._parts(means, divisor), 1 / divisor
        self.calibration.check_mean(norm_of(parts))
        add = partial(torch.add, alpha=scale)
        return self._released.add(self._send, parts, lambda mean, drawn, _: add(mean.double(), drawn))

    def release(
        self, totals: Iterable[torch.Tensor], *, out: Iterable[torch.Tensor | None] | None = None
    ) -> list[torch.Tensor]:
        """Return the sum of `add_to_sum`, over the calibration's divisor if it has one.

        Args:
            totals: the `totals` of `add_to_sum`, which are overwritten.
            out: for each parameter the memory to write, if it is contiguous and has the parameter's type and device;
                new memory otherwise.
        """
        divisor, overwrite, parts = self.calibration.divisor or 1, out is not None, self._parts(totals)
        compiled = overwrite and HAS_COMPILER and sum(self._layout.sizes) >= BLOCK

        def add(total: torch.Tensor, drawn: torch.Tensor, place: torch.Tensor) -> torch.Tensor | None:
            kinds = total.dtype, place.dtype, total.is_cpu and place.is_cpu
            if compiled and kinds == (torch.float64, torch.float32, True):
                add_noise(total.numpy(), drawn.numpy(), float(divisor), place.numpy())
                return None
            return (total.add_(drawn) if overwrite else total + drawn).div_(divisor)

        return self._released.add(self._send, parts, add, out)

    def add_here(self, totals: list[torch.Tensor]) -> None:
        """Add this rank's part of the step's noise, in place, and go on to the next; for replicas that share the work.

        Args:
            totals: contiguous, shaped like the parameters: parts of sums that the ranks add up, and divide, afterwards.

        Raises:
            InvalidParameter: a part has fewer digits than float32, the generator has no mesh, or all n steps were
                taken.
        """
        refuse_narrow(totals)
        if not self._ranks or self._whole or [tuple(t.shape) for t in totals] != [s for s, _, _ in self._like]:
            message = "add_here needs sums shaped like the parameters, and replicas that share the work; give mesh="
            raise InvalidParameter(message, field="mesh")
        region, flat = self._layout.region, [total.view(-1) for total in totals]

        def add(i: int, at: slice, drawn: torch.Tensor) -> None:
            flat[i][at] += drawn.to(flat[i].device)

        self._send(self._sizes, int(region.starts[0]) if region.size else 0, add)

    def _parts(self, values: Iterable[torch.Tensor], divisor: int = 1) -> list[torch.Tensor]:
        """Return this rank's parts of sums or means, which the auditor has let pass."""
        parts, norm = self._released.parts_of(values)
        if self._auditor is not None:
            self._auditor.check_release(self.step, divisor * norm, self.calibration.clip_norm, noise=self.commitment)
        return parts

    def skip(self, steps: int = 1) -> None:
        """Go on without the noise of the next `steps` steps, which then must not be released.

        Raises:
            InvalidParameter: there are fewer than 0 steps, or more than are left.
        """
        self._made.skip(steps)

    def state_dict(self, *, arrays: bool = True) -> dict[str, Any]:
        """Return the state for a checkpoint, without the seed; see `factorize.client.NoiseGenerator`.

        Args:
            arrays: whether to include the state's vectors, as a tensor that is as secret as the seed; without them a
                restart makes all earlier steps again. For sharded noise they are DTensors, for
                torch.distributed.checkpoint, and all ranks must call this.
        """
        if self._ranks:
            return self._layout.saved(self._made, arrays=arrays)
        return with_tensors(self._made.state_dict(arrays=arrays))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a checkpoint, whose model must be restored with it.

        Raises:
            InvalidParameter: the state is damaged, or of another seed, factorization, scale, size, shard or generator.
        """
        if self._ranks:
            self._layout.restore(self._made, state)
        else:
            refuse_other_types(state)
            self._made.load_state_dict(with_arrays(state))

    def close(self) -> None:
        """End threads, and let another generator make the same noise; see `factorize.client.NoiseGenerator`."""
        self._made.close()


def with_tensors(state: Mapping[str, object]) -> JsonObject:
    """Return a state with tensors in place of its arrays, which `torch.load` reads without more."""
    return {key: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for key, value in state.items()}


def with_arrays(state: Mapping[str, object]) -> JsonObject:
    """Return the state of which `with_tensors` made one."""
    return {key: value.cpu().numpy() if isinstance(value, torch.Tensor) else value for key, value in state.items()}


NoiseGenerator = TorchNoiseGenerator
"""The name in the documents: in this module every noise is torch's."""
