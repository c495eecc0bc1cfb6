"""The noise of each training step: row t of C^-1 Z, in as little memory as C allows.

A job that adds this to the sum of clipped gradients of step t releases C^-1 (C G + Z), a function of one Gaussian
mechanism; so does one that adds it, divided by a public constant, to their mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Literal, TypedDict

import numpy as np

from factorize.errors import InvalidParameter
from factorize.noise.allowances import ROW_SUM_ALLOWANCE, choose_precision, raised
from factorize.noise.checkpoints import Checkpointed
from factorize.noise.engines import Engine, RowSums, Sink, Streaming, Workers
from factorize.noise.normals import commitment, make_normals
from factorize.noise.regions import Region
from factorize.noise.single_use import NoiseUse
from factorize.noise.source import ComputedRows, Streamable
from factorize.numbers.masked_entries import refuse_masked
from factorize.numbers.scalars import check_choice, whole_number
from factorize.privacy import Calibration, refuse_infinite
from factorize.privacy.calibration import BatchAuditor

MEMORY_BYTES = 1 << 28
"""The largest Z that is kept in memory where C has no structure; rows of a larger one are drawn again."""
MAX_ENTRIES = 1 << 48
"""The most entries, a hundred times the largest model; more is a mistake in units, and would overflow 64 bits."""

PRECISIONS: dict[str, type[np.floating[Any]]] = {"float32": np.float32, "float64": np.float64}
_STATE_VERSION = 3


class NoiseOptions(TypedDict, total=False):
    """The options of a `NoiseGenerator`, for functions that pass them on."""

    shard: tuple[int, int] | Region | None
    generator: Literal["sfc64", "shake128"]
    precision: Literal["float32", "float64"] | None
    memory_bytes: int
    threads: int
    auditor: BatchAuditor | Literal["not_looked_at"] | None


class NoiseGenerator(Checkpointed):
    """Correlated noise, one step at a time: sigma * (row t of C^-1 Z), for sums of clipped contributions.

    Every entry is a function of (seed, factorization, step, position): a job that restarts goes on with the same noise,
    and workers that each make their own shard hold, together, the bits that one worker would have made.

    Args:
        source: the source made from C (`source_of`): a `Streamable`, which needs a few vectors of memory, or
            `ComputedRows` of C^-1. No proof covers rows from anywhere else.
        calibration: the result of `Factors.calibrate`, for the sensitivity of this very C, never a bare number.
        shape: shape of the noise, which is that of the (flattened) parameters.
        seed: a secret integer, `secrets.randbits(128)`. Never use it for a second run of the same factorization.
        shard: (first, last) makes only these entries of the flattened noise, first <= i < last; see `even_shard`. Use
            a `Region` for entries that are no neighbours.
        generator: `sfc64` (fast, statistical) or `shake128` (cryptographic, about 6 times slower).
        precision: precision of a recurrence's state; coefficients, arithmetic and sums of rows are always float64, and
            the noise itself is float32. None means float32 if its roundings cost at most 1e-3 of sigma, else float64.
        memory_bytes: memory for sources without structure, see `MEMORY_BYTES`.
        threads: number of threads that make noise; the bits do not depend on it.
        auditor: the auditor of the job's batches. Each row is then for the step that it recorded last, and a sum is
            refused if it exceeds what the clipped gradients of that step can add up to. Without it the caller promises
            both, and has to pass `not_looked_at` where epsilon counts on sampling.

    Attributes:
        step: the step whose noise `next` returns, from 0.
        steps: n, the steps after which it refuses.
        precision: precision of the state.
        allowance: extra noise for the roundings, as a share (allowances.py, docs/training.md).
        sigma: standard deviation of Z as it is drawn, calibration.sigma_of_sums (1 + allowance).
        shape: shape of the result of `next`.

    Raises:
        InvalidParameter: there is no `Calibration`, another source, an empty shape, a shard outside it, a precision
            whose roundings cannot be bounded by 1e-2 of sigma (allowances.py), or no auditor of the batches that
            epsilon counts on.
    """

    def __init__(
        self,
        source: Streamable | ComputedRows,
        calibration: Calibration,
        shape: int | Sequence[int],
        *,
        seed: int,
        shard: tuple[int, int] | Region | None = None,
        generator: Literal["sfc64", "shake128"] = "sfc64",
        precision: Literal["float32", "float64"] | None = None,
        memory_bytes: int = MEMORY_BYTES,
        threads: int = 1,
        auditor: BatchAuditor | Literal["not_looked_at"] | None = None,
    ) -> None:
        if not isinstance(calibration, Calibration):
            raise InvalidParameter(
                f"the noise scale is a plain {type(calibration).__name__}; pass the Calibration that "
                "factorize.privacy.calibrate makes from a certified sensitivity and a privacy target",
                field="calibration",
            )
        if not isinstance(source, Streamable | ComputedRows):
            raise InvalidParameter(
                f"a {type(source).__name__} is not a source of noise, since nothing proves that its rows are those of "
                "C^-1; use factors.noise, which makes the noise from the certified C",
                field="source",
            )
        if precision is not None:
            check_choice("precision", precision, PRECISIONS)
        memory_bytes = whole_number("memory_bytes", memory_bytes, low=0)
        self._whole = _checked_shape(shape)
        region = checked_region(shard, math.prod(self._whole))
        _refuse_beyond_memory(region)
        self.shape = self._whole if shard is None else (region.size,)
        self.calibration = calibration
        self._normals = make_normals(generator, seed, source.digest)
        workers = Workers(region, threads)
        self._engine: Engine
        if isinstance(source, Streamable):
            recurrence = source.recurrence()
            self.precision, self.allowance = choose_precision(recurrence, calibration, precision)
            self.sigma = raised(calibration.sigma_of_sums, self.allowance)
            self._engine = Streaming(recurrence, self._normals, self.sigma, workers, PRECISIONS[self.precision])
        else:
            self.precision, self.allowance = "float64", ROW_SUM_ALLOWANCE
            self.sigma = raised(calibration.sigma_of_sums, self.allowance)
            self._engine = RowSums(source, self._normals, self.sigma, workers, memory_bytes)
        self.steps = self._engine.steps
        self._auditor = calibration.accept_auditor(auditor, self.steps)
        self._stated = {
            "version": _STATE_VERSION,
            "steps": self.steps,
            "shape": list(self._whole),
            "sigma": self.sigma.hex(),
            "commitment": commitment(self._normals),
            "factorization": source.digest,
            "generator": generator,
            "shard": region.document(),
            **({} if self._engine.state is None else {"precision": self.precision}),
        }
        self._use = NoiseUse(self._stated["commitment"], region)

    def __iter__(self) -> Iterator[np.ndarray]:
        """Yield the noise of every step that is left."""
        while self.step < self.steps:
            yield self.next()

    def add_to_sum(self, total: np.ndarray) -> np.ndarray:
        """Return a sum of clipped contributions with the noise of this step, float32, and go on to the next.

        Args:
            total: the sum, in the noise's shape, with at least the digits of float32.

        Raises:
            InvalidParameter: it has another shape, fewer digits or a number that is not finite, or all n steps were
                taken.
            InvalidParticipation: the auditor has not seen this step's examples, or they cannot have this sum.
        """
        values = self._accept("total", total)
        return np.asarray(values + self.next(), dtype=np.float32)

    def add_to_mean(self, mean: np.ndarray) -> np.ndarray:
        """Return a sum of clipped contributions over the calibration's divisor with noise, and go on to the next step.

        Args:
            mean: the mean, in the noise's shape, with at least the digits of float32.

        Raises:
            InvalidParameter: see `add_to_sum`; or the calibration has no divisor, or the norm is that of a sum.
            InvalidParticipation: see `add_to_sum`.
        """
        divisor = self.calibration.divisor_of_means()
        values = self._accept("mean", mean, divisor)
        self.calibration.check_mean(float(np.linalg.norm(values)))
        return np.asarray(values + self.next().astype(np.float64) / divisor, dtype=np.float32)

    def next(self, out: np.ndarray | None = None) -> np.ndarray:
        """Return the noise of this step for sums, float32, and go on to the next.

        Args:
            out: array to write to, contiguous float32 of the shape; a new array by default.

        Raises:
            InvalidParameter: all n steps were taken, or `out` is another array.
            InvalidParticipation: the auditor has not seen this step's examples.
        """
        if out is None:
            out = np.empty(self.shape, dtype=np.float32)
        elif out.shape != self.shape or out.dtype != np.float32 or not out.flags.c_contiguous:
            raise InvalidParameter(f"out must be a contiguous float32 array of shape {self.shape}", field="out")
        self.send(out.reshape(-1))
        return out

    def send(self, sink: Sink) -> None:
        """Make the noise of this step where it is used, piece by piece while it is in a cache, and go on to the next.

        Args:
            sink: receiver of the noise; see `factorize.noise.engines.Sink`.

        Raises:
            InvalidParameter: all n steps were taken, or this one was begun and not finished.
            InvalidParticipation: the auditor has not seen this step's examples.
        """
        self.refuse_half()
        self._refuse_past(self.step + 1)
        if self._auditor is not None:
            self._auditor.check_release(self.step, noise=self.commitment)
        self._use.take(self.step)
        self._half = True
        self._engine.step(self.step, sink)
        self.step += 1
        self._half = False
        if self.step == self.steps:
            self._engine.close()

    @property
    def vectors(self) -> np.ndarray | None:
        """The memory of the state, shape (vectors, entries), as secret as the seed; None where all is drawn again."""
        return self._engine.state

    def _begin(self, vectors: np.ndarray | None) -> None:
        self._engine.begin(vectors)

    def _move(self, step: int) -> None:
        self._engine.step(step, None)

    def close(self, kept: int = 0) -> None:
        """End threads, and let another generator make the same noise; see `Checkpointed`."""
        super().close(kept)
        self._engine.close()

    def _accept(self, name: str, values: np.ndarray, divisor: int = 1) -> np.ndarray:
        """Return a sum or a mean after checking its shape, its digits, and that clipped gradients can have it."""
        refuse_masked(name, values)
        array = np.asarray(values)
        if array.shape != self.shape or array.dtype not in (np.float32, np.float64):
            raise InvalidParameter(
                f"the {name} has shape {array.shape} and type {array.dtype}, but the noise has shape {self.shape}; "
                "clip and add up in that shape, in float32 or float64",
                field=name,
            )
        refuse_infinite(name, finite=bool(np.isfinite(array).all()))
        if self._auditor is not None:
            norm = float(np.linalg.norm(array.astype(np.float64, copy=False).reshape(-1))) * divisor
            self._auditor.check_release(self.step, norm, self.calibration.clip_norm, noise=self.commitment)
        return array


def even_shard(size: int, rank: int, count: int) -> tuple[int, int]:
    """Return (first, last) of the part of a flattened vector that worker `rank` of `count` makes; sizes differ by 1.

    Raises:
        InvalidParameter: `rank` or `count` is out of range.
    """
    size, count = whole_number("size", size, low=0), whole_number("count", count)
    rank = whole_number("rank", rank, low=0, high=count - 1)
    return size * rank // count, size * (rank + 1) // count


def _checked_shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    sides = shape if isinstance(shape, Iterable) and not isinstance(shape, Set | Mapping | bytes) else (shape,)
    whole = tuple(whole_number("shape", side, remedy="give the parameters' shape") for side in sides)
    if math.prod(whole) > MAX_ENTRIES:
        message = f"shape={whole} has more than {MAX_ENTRIES} entries; give the parameters' shape"
        raise InvalidParameter(message, field="shape")
    return whole


def _refuse_beyond_memory(region: Region) -> None:
    """Raise where not even one step's noise fits into memory, before listing its blocks takes minutes."""
    try:
        np.empty(region.size, dtype=np.float32)
    except MemoryError:
        raise InvalidParameter(
            f"one step's noise of {region.size} entries takes {region.size / 2**28:.3g} GiB, more than this machine "
            "has; give the parameters' shape, or a shard to each of several workers (even_shard)",
            field="shape",
        ) from None


def checked_region(shard: tuple[int, int] | Region | None, size: int) -> Region:
    """Return the entries of a shard.

    Raises:
        InvalidParameter: the shard is no part of a vector of `size` entries.
    """
    if isinstance(shard, Region):
        if shard.stop > size:
            message = (
                f"the shard has entry {shard.stop - 1}, and the noise has entries 0 to {size - 1}; give a part of them"
            )
            raise InvalidParameter(message, field="shard")
        return shard
    ends = (0, size) if shard is None else shard
    if not isinstance(ends, tuple | list | np.ndarray) or np.shape(ends) != (2,):
        message = f"shard={str(shard)[:40]!r} is no part of a vector; give its ends, (first, last), or a Region"
        raise InvalidParameter(message, field="shard")
    first, last = (whole_number("shard", end, low=0, remedy=f"give 0 <= first < last <= {size}") for end in ends)
    if not first < last <= size:
        message = f"shard {first}:{last} is not a part of the {size} entries; give 0 <= first < last <= {size}"
        raise InvalidParameter(message, field="shard")
    return Region.of([(first, last)])
