"""The noise of each training step: row t of C^-1 Z, in as little memory as C allows.

A job that adds this to the sum of clipped gradients of step t releases C^-1 (C G + Z), a function of one Gaussian
mechanism; so does one that adds it, divided by a public constant, to their mean.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack

import numpy as np

from factorize.client.allowances import ROWS, choose_precision, raised
from factorize.client.engines import Engine, RowSource, RowSums, Streaming, Workers
from factorize.client.noise_source import Streamable, source_of
from factorize.client.normals import commitment, make_normals
from factorize.client.regions import Region
from factorize.client.rows import Rows
from factorize.encoding import canonical_json
from factorize.errors import InvalidParameter
from factorize.format.claims import CertifiedFactors
from factorize.privacy import Calibration, check_own

MEMORY_BYTES = 1 << 28
"""Where C has no structure: Z is kept if it takes at most this much; otherwise its rows are drawn again."""

PRECISIONS: dict[str, type[np.floating[Any]]] = {"float32": np.float32, "float64": np.float64}
_STATE_VERSION = 3


class NoiseOptions(TypedDict, total=False):
    """Options of a `NoiseGenerator`, for what passes them on."""

    shard: tuple[int, int] | Region | None
    generator: Literal["sfc64", "shake128"]
    precision: Literal["float32", "float64"] | None
    memory_bytes: int
    threads: int


class ArrayRows:
    """Rows of a C^-1 that is in memory.

    Args:
        array: shape (n, n), float64.
        digest: of the factorization that it belongs to.
    """

    def __init__(self, array: np.ndarray, digest: str = "") -> None:
        self._array = np.asarray(array, dtype=np.float64)
        if self._array.ndim != 2 or self._array.shape[0] != self._array.shape[1]:
            raise InvalidParameter(f"C^-1 is square; got shape {self._array.shape}", field="array")
        self.shape: tuple[int, int] = self._array.shape
        self.digest = digest

    def iterate(self, start: int = 0) -> Generator[np.ndarray, None, None]:
        """Yield the rows from `start` on."""
        yield from self._array[start:]


class NoiseGenerator:
    """Correlated noise, one step at a time: sigma * (row t of C^-1 Z), for sums of clipped contributions.

    Every entry is a function of (seed, factorization, step, position): a job that restarts goes on with the same noise,
    and workers that each make their own shard hold, together, the bits that one worker would have made.

    Args:
        source: what C is: a `Streamable`, which needs a few vectors of memory, or rows of C^-1 (`ComputedRows`, or an
            array of the caller's own as `ArrayRows`; not a stream, whose rows no proof is about).
        calibration: from `Factors.calibrate`, for the sensitivity of this very C. Never a bare number.
        shape: of the noise, the shape of the (flattened) parameters.
        seed: a secret integer, `secrets.randbits(128)`. Never use it for a second run of the same factorization.
        shard: (first, last): make only these entries of the flattened noise, first <= i < last; see `even_shard`. A
            `Region` where they are no neighbours.
        generator: `sfc64` (fast, statistical) or `shake128` (cryptographic, about 6 times slower).
        precision: of a recurrence's state; coefficients, arithmetic and sums of rows are always float64, and the noise
            itself is float32. None takes float32 where its roundings cost at most 1e-3 of sigma, else float64.
        memory_bytes: for sources without structure, see `MEMORY_BYTES`.
        threads: that make noise; the bits do not depend on it.

    Attributes:
        step: the step whose noise `next` returns, from 0.
        steps: n, after which it refuses.
        precision: of the state.
        allowance: what the noise is multiplied by beyond 1 for the roundings (allowances.py, docs/training.md).
        sigma: standard deviation of Z as it is drawn, calibration.sigma_of_sums (1 + allowance).
        shape: of what `next` returns.

    Raises:
        InvalidParameter: no `Calibration`, rows from a service, an empty shape, a shard outside it, rows that are
            not square, or a precision whose roundings cannot be bounded by 1e-2 of sigma (allowances.py).
    """

    def __init__(
        self,
        source: RowSource | Streamable,
        calibration: Calibration,
        shape: int | Sequence[int],
        *,
        seed: int,
        shard: tuple[int, int] | Region | None = None,
        generator: Literal["sfc64", "shake128"] = "sfc64",
        precision: Literal["float32", "float64"] | None = None,
        memory_bytes: int = MEMORY_BYTES,
        threads: int = 1,
    ) -> None:
        if not isinstance(calibration, Calibration):
            raise InvalidParameter(
                f"the scale of the noise is a bare {type(calibration).__name__}; pass the Calibration that "
                "factorize.privacy.calibrate makes from a certified sensitivity and a privacy target",
                field="calibration",
            )
        if isinstance(source, Rows):
            raise InvalidParameter(
                f"a {type(source).__name__} is no source of noise: no proof is about rows of C^-1 that were streamed "
                "or read apart from C; use Factors.noise, which makes them from the certified C",
                field="source",
            )
        if precision is not None and precision not in PRECISIONS:
            message = f"precision {str(precision)[:20]!r} is not one of {', '.join(PRECISIONS)}"
            raise InvalidParameter(message, field="precision")
        self._whole = _checked_shape(shape)
        region = checked_region(shard, math.prod(self._whole))
        self.shape = self._whole if shard is None else (region.size,)
        self.calibration = calibration
        self.step = 0
        self._belongs = {"factorization": source.digest, "generator": generator, "shard": region.document()}
        self._normals = make_normals(generator, seed, source.digest)
        workers = Workers(region, threads)
        self._engine: Engine
        if isinstance(source, Streamable):
            recurrence = source.recurrence()
            self.precision, self.allowance = choose_precision(recurrence, calibration, precision)
            self.sigma = raised(calibration.sigma_of_sums, self.allowance)
            self._engine = Streaming(recurrence, self._normals, self.sigma, workers, PRECISIONS[self.precision])
            self._belongs["precision"] = self.precision
        else:
            self.precision, self.allowance = "float64", ROWS
            self.sigma = raised(calibration.sigma_of_sums, self.allowance)
            self._engine = RowSums(source, self._normals, self.sigma, workers, memory_bytes)
        self.steps = self._engine.steps

    def __iter__(self) -> Iterator[np.ndarray]:
        """Yield the noise of every step that is left."""
        while self.step < self.steps:
            yield self.next()

    def add_to_sum(self, total: np.ndarray) -> np.ndarray:
        """Return a sum of clipped contributions with the noise of this step, float32, and go on to the next.

        Args:
            total: of the shape, with at least the digits of float32.

        Raises:
            InvalidParameter: another shape, fewer digits, or all n steps were taken.
        """
        values = self._checked("total", total)
        return np.asarray(values + self.next(), dtype=np.float32)

    def add_to_mean(self, mean: np.ndarray) -> np.ndarray:
        """Return a sum of clipped contributions over the calibration's divisor with noise, and go on to the next step.

        Args:
            mean: of the shape, with at least the digits of float32.

        Raises:
            InvalidParameter: as of `add_to_sum`; the calibration has no divisor, or the norm is that of a sum.
        """
        divisor, values = self.calibration.divisor_of_means(), self._checked("mean", mean)
        self.calibration.check_mean(float(np.linalg.norm(values)))
        return np.asarray(values + self.next().astype(np.float64) / divisor, dtype=np.float32)

    def next(self, out: np.ndarray | None = None) -> np.ndarray:
        """Return the noise of this step for sums, float32, and go on to the next.

        Args:
            out: where to write it: contiguous float32 of the shape; a new array by default.

        Raises:
            InvalidParameter: all n steps were taken, or the row is not one of an inverse strategy matrix.
            ServiceError, ServiceUnreachable: the row did not come.
        """
        self._refuse_past(self.step + 1)
        if out is None:
            out = np.empty(self.shape, dtype=np.float32)
        elif out.shape != self.shape or out.dtype != np.float32 or not out.flags.c_contiguous:
            raise InvalidParameter(f"out is not a contiguous float32 array of shape {self.shape}", field="out")
        self._engine.step(self.step, out.reshape(-1))
        self.step += 1
        if self.step == self.steps:
            self.close()
        return out

    def skip(self, steps: int = 1) -> None:
        """Go on without the noise of the next `steps` steps, which then must not be released.

        Free where rows of C^-1 are used; a recurrence still draws every row.

        Raises:
            InvalidParameter: fewer than 0 steps, or beyond n.
        """
        if steps < 0:
            raise InvalidParameter(f"steps={steps} would go back, and release the same noise twice", field="steps")
        self._refuse_past(self.step + steps)
        self._advance_to(self.step + steps)

    def state_dict(self, *, arrays: bool = True) -> dict[str, Any]:
        """Return what a checkpoint needs beside the seed.

        Args:
            arrays: with the state's vectors, so that restarting costs nothing. These are sums of the noise: as secret
                as the seed. Without them it is plain data that tells nothing of the noise, and restarting draws the
                rows of all earlier steps again, with the same bits.
        """
        state = self._header(self.step)
        if arrays and self._engine.state is not None:
            state["state"] = self._engine.state.copy()
            state["state_sha256"] = _state_digest(state)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a checkpoint, whose model must be restored with it.

        Raises:
            InvalidParameter: the state is damaged, or of another seed, factorization, scale, shape, shard, precision or
                generator of random numbers.
        """
        step = state.get("step")
        if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step <= self.steps:
            raise InvalidParameter(f"the checkpoint's step {str(step)[:20]} is outside 0..{self.steps}", field="step")
        refuse_version(state, _STATE_VERSION)
        mine = self._header(step)
        wrong = [key for key in mine if state.get(key) != mine[key]]
        if wrong:
            theirs, ours = str(state.get(wrong[0]))[:80], str(mine[wrong[0]])[:80]
            raise InvalidParameter(
                f"the checkpoint's {wrong[0]} is {theirs}, here it is {ours}; the noise would not go on where it "
                "stopped: restore seed, factorization and library versions",
                field=wrong[0],
            )
        given, own = state.get("state"), self._engine.state
        if given is None or own is None:
            self.restore(step, None)
            return
        array = np.asarray(given)
        same = array.shape == own.shape and array.dtype == own.dtype
        if not same or state.get("state_sha256") != _state_digest({**state, "state": array}):
            raise InvalidParameter(
                f"the checkpoint's vectors are not those of step {step}: damaged, or of another step; leave out "
                "`state` to have them made again",
                field="state",
            )
        self.restore(step, array)

    @property
    def vectors(self) -> np.ndarray | None:
        """The state's own memory, shape (vectors, entries), as secret as the seed; None where all is drawn again."""
        return self._engine.state

    def restore(self, step: int, vectors: np.ndarray | None) -> None:
        """Go to a step with vectors that were checked to be its state; None makes them again."""
        self.close()
        self.step = 0
        self._engine.move(0)
        if vectors is None or self._engine.state is None:
            self._advance_to(step)
            return
        self._engine.state[...] = vectors
        self.step = step

    def close(self) -> None:
        """Close the stream of rows and end the threads; the next step opens them again."""
        self._engine.close()

    def _checked(self, name: str, values: np.ndarray) -> np.ndarray:
        """Return a sum or a mean that has the noise's shape and digits."""
        found = np.asarray(values)
        if found.shape != self.shape or found.dtype not in (np.float32, np.float64):
            raise InvalidParameter(
                f"the {name} has shape {found.shape} and type {found.dtype}, and the noise {self.shape} and float32; "
                "clip and add up in float32 or float64, in the noise's shape",
                field=name,
            )
        return found

    def _header(self, step: int) -> dict[str, Any]:
        return {
            "version": _STATE_VERSION,
            "step": step,
            "steps": self.steps,
            "shape": list(self._whole),
            "sigma": self.sigma.hex(),
            "commitment": commitment(self._normals),
            **self._belongs,
        }

    def _advance_to(self, step: int) -> None:
        if self._engine.state is None:
            if step != self.step:
                self._engine.move(step)
            self.step = step
        while self.step < step:
            self._engine.step(self.step, None)
            self.step += 1

    def _refuse_past(self, step: int) -> None:
        if step > self.steps:
            raise InvalidParameter(
                f"step {step} is past n={self.steps}: no sensitivity covers it; stop, or factor a larger n",
                field="step",
            )


def refuse_version(state: Mapping[str, Any], mine: int) -> None:
    """Refuse a checkpoint of a release that made other bits from the same seed.

    Raises:
        InvalidParameter: it is one, or none at all.
    """
    version = state.get("version")
    if version != mine:
        raise InvalidParameter(
            f"the checkpoint's version is {str(version)[:20]}, this release writes {mine} and makes other bits of "
            "noise from the same seed, which must not be mixed in one run; finish the run with the release that wrote "
            "it, or begin another with a new seed and a new privacy budget",
            field="version",
        )


def even_shard(size: int, rank: int, count: int) -> tuple[int, int]:
    """Return (first, last) of the part of a flattened vector that worker `rank` of `count` makes; sizes differ by 1.

    Raises:
        InvalidParameter: rank or count out of range.
    """
    if not 0 <= rank < count:
        raise InvalidParameter(f"rank={rank} is not in 0..{count - 1}", field="rank")
    return size * rank // count, size * (rank + 1) // count


def _checked_shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    sides = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(int(side) for side in shape)
    if min(sides, default=1) < 1:
        raise InvalidParameter(f"shape {sides} has a side below 1; give the parameters' shape", field="shape")
    return sides


def checked_region(shard: tuple[int, int] | Region | None, size: int) -> Region:
    """Return the entries of a shard.

    Raises:
        InvalidParameter: it is not a part of a vector of so many entries.
    """
    if isinstance(shard, Region):
        if shard.stop > size:
            message = f"the shard's last entry is {shard.stop - 1}, and the noise has {size}; give parts of it"
            raise InvalidParameter(message, field="shard")
        return shard
    first, last = (0, size) if shard is None else (int(end) for end in shard)
    if not 0 <= first < last <= size:
        message = f"shard {first}:{last} is not a part of the {size} entries; give 0 <= first < last <= {size}"
        raise InvalidParameter(message, field="shard")
    return Region.of([(first, last)])


def _state_digest(state: Mapping[str, Any]) -> str:
    """Return the sha256 of a checkpoint's position and vectors together, so that the two cannot be mixed up."""
    plain = {key: value for key, value in state.items() if key not in ("state", "state_sha256")}
    digest = hashlib.sha256(canonical_json(plain))
    digest.update(np.ascontiguousarray(state["state"]).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def noise_of(
    factors: CertifiedFactors,
    calibration: Calibration,
    shape: int | Sequence[int],
    *,
    seed: int,
    **options: Unpack[NoiseOptions],
) -> NoiseGenerator:
    """Return the noise of a factorization, wherever it is; see `factorize.client.Factors.noise`.

    Raises:
        InvalidParameter: the calibration is for another sensitivity than this factorization's.
    """
    if isinstance(calibration, Calibration):
        check_own(calibration, factors)
    return NoiseGenerator(source_of(factors), calibration, shape, seed=seed, **options)
