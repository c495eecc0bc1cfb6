"""Placements of a job's parameters on its ranks: which entries of the flattened parameters this rank holds.

Everything follows from the tensors: a DTensor knows its mesh and how each side is cut. Nothing is configured, so
nothing can be configured wrongly.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from factorize.adapters.ranks.agreement import agree, own_rank, settle
from factorize.encoding import JsonObject
from factorize.errors import InvalidParameter
from factorize.noise.checkpoints import Checkpointed, refuse_vectors
from factorize.noise.regions import Region

if TYPE_CHECKING:  # if torch is built without them, nothing is sharded
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Placement

_MASK = (1 << 64) - 1
"""A mask of the 64 bits of a word."""
_MARKS_OF_PARTS = {
    "_fsdp_flattened": "FSDP1",
    "_is_flat_param": "FSDP1",
    "ds_id": "DeepSpeed's ZeRO-3",
    "tensor_model_parallel": "Megatron's tensor parallelism",
}
"""The attributes of parameters that are this rank's part of a tensor and do not tell which, by who sets them."""


@dataclass(frozen=True)
class Placed:
    """The position of one tensor on the ranks.

    Attributes:
        shape: shape of the whole tensor.
        kept: indices of each side that are on this rank.
        mesh: a DeviceMesh, None for a tensor that every rank holds whole.
        placements: placements by dimension of the mesh.
    """

    shape: tuple[int, ...]
    kept: tuple[range | np.ndarray, ...]
    mesh: DeviceMesh | None = None
    placements: tuple[Placement, ...] = ()

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Placed:
        """Return the position of a tensor.

        Raises:
            InvalidParameter: a placement that is not known here, or a part that contradicts the placements.
        """
        shape = tuple(tensor.shape)
        if not is_sharded(tensor):
            return cls(shape, tuple(range(side) for side in shape))
        return cls.on(shape, tensor.device_mesh, tensor.placements, tuple(tensor.to_local().shape))

    @classmethod
    def on(
        cls, shape: tuple[int, ...], mesh: DeviceMesh, placements: Sequence[Placement], local: tuple[int, ...] | None
    ) -> Placed:
        """Return the position of a tensor of a shape on a mesh; `local` is the shape of this rank's part, if known."""
        kept: list[range | np.ndarray] = [range(side) for side in shape]
        coordinate = mesh.get_coordinate()
        if coordinate is None:
            raise InvalidParameter(
                f"rank {own_rank()} is not in the mesh of a parameter, as in pipeline parallelism; shard every "
                "parameter over a mesh of all ranks",
                field="parameters",
            )
        for place, count, index in zip(placements, mesh.shape, coordinate, strict=True):
            side = _side(place, len(shape))
            if side is not None:
                kept[side] = _chunk(kept[side], count, index, place)
        placed = cls(shape, tuple(kept), mesh, tuple(placements))
        if local is not None and placed.local != local:
            raise InvalidParameter(
                f"a parameter of shape {shape} has {local} on rank {own_rank()}, but {tuple(placements)} implies "
                f"{placed.local}; shard with torch's own fully_shard, distribute_tensor or parallelize_module",
                field="parameters",
            )
        return placed

    @property
    def local(self) -> tuple[int, ...]:
        """The shape of this rank's part."""
        return tuple(len(each) for each in self.kept)

    @property
    def first_replica(self) -> bool:
        """Whether no rank before this one holds the same entries."""
        if self.mesh is None:
            return own_rank() == 0
        pairs = zip(self.placements, self.mesh.get_coordinate(), strict=True)
        return all(index == 0 for place, index in pairs if place.is_replicate())

    def stacked(self, count: int) -> Placed:
        """Return the position of this many vectors that each lie as this tensor does; shape (count, *shape)."""
        placements = tuple(_later(place) for place in self.placements)
        return Placed((count, *self.shape), (range(count), *self.kept), self.mesh, placements)

    def tensor(self, local: torch.Tensor) -> torch.Tensor:
        """Return the distributed tensor of which this is the local part."""
        part = local.reshape(self.local)
        if self.mesh is None:
            return part
        from torch.distributed.tensor import DTensor

        stride = tuple(int(s) for s in np.cumprod([1, *reversed(self.shape[1:])])[::-1]) if self.shape else ()
        whole = {"shape": torch.Size(self.shape), "stride": stride}
        return DTensor.from_local(part.contiguous(), self.mesh, self.placements, run_check=False, **whole)

    def part_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the local part of a tensor that lies in the same way.

        Raises:
            InvalidParameter: the tensor lies otherwise.
        """
        if is_sharded(tensor):
            part = tensor.to_local()
            same = (tuple(tensor.shape), tuple(tensor.placements)) == (self.shape, self.placements)
            same = same and self.mesh is not None and torch.equal(tensor.device_mesh.mesh, self.mesh.mesh)
        else:
            part, same = tensor, tuple(tensor.shape) == self.local
        if not same:
            where = "one part"
            if is_sharded(tensor):
                where = f"{tuple(tensor.placements)} on ranks {tensor.device_mesh.mesh.tolist()}"
            raise InvalidParameter(
                f"a sum of shape {tuple(tensor.shape)} ({where}) does not match its parameter of shape {self.shape} "
                f"({self.placements or 'whole'}); give sums that are placed like the parameters: redistribute() them, "
                "which also adds up what is Partial",
                field="parameters",
            )
        return part


@dataclass(frozen=True)
class ShardLayout:
    """The position of the flattened parameters on the ranks.

    Attributes:
        parts: the tensors, in order.
        region: this rank's part of them together.
    """

    parts: tuple[Placed, ...]
    region: Region

    @classmethod
    def of(cls, tensors: Iterable[torch.Tensor]) -> ShardLayout:
        """Return the layout of tensors.

        Raises:
            InvalidParameter: see `Placed.of`.
        """
        return cls.join([Placed.of(tensor) for tensor in tensors])

    @classmethod
    def evenly(cls, size: int, mesh: DeviceMesh) -> ShardLayout:
        """Return the layout in which replicas of all parameters share the work, each with its part of the vector."""
        from torch.distributed.tensor import Shard

        return cls.join([Placed.on((size,), mesh, (Shard(0),), None)])

    @classmethod
    def flat(cls, region: Region) -> ShardLayout:
        """Return the layout of some entries in one flat tensor, on this rank alone."""
        return cls((Placed((region.size,), (range(region.size),)),), region)

    @classmethod
    def join(cls, parts: Sequence[Placed]) -> ShardLayout:
        """Return the layout of some tensors one after another."""
        regions, offset = [], 0
        for part in parts:
            regions.append(Region.of_slices(offset, part.shape, part.kept))
            offset += math.prod(part.shape)
        return cls(tuple(parts), Region.together(regions))

    @property
    def sizes(self) -> list[int]:
        """The number of entries of each tensor on this rank."""
        return [math.prod(part.local) for part in self.parts]

    def compare_replicas(self, parts: Sequence[torch.Tensor]) -> None:
        """Refuse sums that differ on ranks which hold the same entries; all ranks call it, where there are replicas.

        They may differ by rounding, as on devices whose sums have no fixed order.

        Raises:
            InvalidParameter: they differ by more than a thousandth of their norm, or a rank does not come.
        """
        held = dict[str, list[float]]()
        for placed, part in zip(self.parts, parts, strict=True):
            pairs = zip(placed.placements, placed.mesh.get_coordinate() if placed.mesh else (), strict=True)
            place = [None if placement.is_replicate() else index for placement, index in pairs]
            if None in place:
                own = held.setdefault(f"{placed.placements} {place}", [0.0, 0.0])
                own[0] += float(part.sum(dtype=torch.float64))
                own[1] = math.hypot(own[1], float(torch.linalg.vector_norm(part, dtype=torch.float64)))
        if held:  # on all ranks or on none, since placements are the same
            settle("the sums", {"sums": held}, _refuse_other_sums)

    def document(self) -> JsonObject:
        """Return the values that must be the same on all ranks, as plain JSON."""
        meshes = {tuple(part.mesh.mesh.flatten().tolist()) for part in self.parts if part.mesh is not None}
        return {
            "parameters": [[*part.shape, str(part.placements)] for part in self.parts],
            "mesh": sorted(sorted(ranks) for ranks in meshes),
        }

    def checksum(self, step: int, vectors: np.ndarray) -> int:
        """Return a sum over the local entries that, added up over the ranks, is the same for every layout.

        Each word is multiplied by a hash of its place in the whole, so that damage, exchanged vectors and another step
        change the sum. Replicas count once.

        Args:
            step: step of the state.
            vectors: shape (vectors, local entries).
        """
        total, at = 0, 0
        offset, words = 0, vectors.view(f"u{vectors.itemsize}")
        for part, size in zip(self.parts, self.sizes, strict=True):
            if part.first_replica:
                total += _weighted_sum(Region.of_slices(offset, part.shape, part.kept), words[:, at : at + size], step)
            at, offset = at + size, offset + math.prod(part.shape)
        return total & _MASK

    def header_of(self, source: Checkpointed) -> dict[str, object]:
        """Return the header of a checkpoint, which is the same in any layout of the same noise."""
        return {**source.header(source.step), "shard": self._shapes}

    def saved(self, source: Checkpointed, *, arrays: bool) -> dict[str, object]:
        """Return the state of sharded noise; all ranks call it.

        Args:
            source: source of this rank's noise.
            arrays: whether to include the vectors, one DTensor for each tensor, which torch.distributed.checkpoint cuts
                anew.
        """
        state, vectors = self.header_of(source), source.read_vectors() if arrays else None
        if vectors is None:
            return state
        state["state_sum"] = self._sum(source.step, vectors)
        columns = zip(self.parts, torch.from_numpy(vectors).split(self.sizes, dim=1), strict=True)
        count = len(vectors)
        state["state"] = {str(i): part.stacked(count).tensor(held) for i, (part, held) in enumerate(columns)}
        return state

    def restore(self, source: Checkpointed, state: Mapping[str, object]) -> None:
        """Go to the position of a checkpoint; all ranks call it.

        Raises:
            InvalidParameter: the checkpoint is damaged, of another noise, or not the same on all ranks.
        """
        step, kept = agree("load_state_dict", lambda: self._checked(source, state))
        if kept is not None:
            own = {"sum": self._sum(step, kept) == state.get("state_sum")}
            if not settle("load_state_dict", own, lambda ranks: all(each.get("sum") for each in ranks)):
                refuse_vectors(step)
        source.restore(step, kept)

    def _checked(
        self, source: Checkpointed, state: Mapping[str, Any]
    ) -> tuple[tuple[int, np.ndarray | None], JsonObject]:
        """Return a checkpoint's step and this rank's part of its vectors, and the values that all ranks must share."""
        stored, own = state.get("state"), source.vectors
        if isinstance(stored, torch.Tensor | np.ndarray):  # the checkpoint is that of one process
            stored = None
        step = source.check_step({**state, "state": stored}, shard=self._shapes)
        common = {"step": step, "arrays": stored is not None}
        if stored is None or own is None:
            return (step, None), common
        try:
            parts = [part.stacked(len(own)).part_of(stored[str(i)]) for i, part in enumerate(self.parts)]
            arrays = [part.cpu().numpy().reshape(len(own), -1) for part in parts]
        except (InvalidParameter, LookupError, AttributeError):
            raise InvalidParameter(
                "the checkpoint's vectors are not sharded like the parameters; fill a new state_dict() with "
                "torch.distributed.checkpoint.load, which shards them again",
                field="state",
            ) from None
        if any(array.dtype != own.dtype for array in arrays):
            raise InvalidParameter(f"the checkpoint does not have {len(own)} vectors of {own.dtype}", field="state")
        return (step, np.concatenate(arrays, axis=1)), common

    @property
    def _shapes(self) -> list[list[int]]:
        return [list(part.shape) for part in self.parts]

    def _sum(self, step: int, vectors: np.ndarray) -> str:
        """Return the checksum over the entries of all ranks."""
        own = {"sum": self.checksum(step, np.ascontiguousarray(vectors))}
        total = settle("checksum", own, lambda ranks: sum(each["sum"] for each in ranks) & _MASK)
        return f"{total:016x}"


def is_sharded(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a DTensor."""
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "placements")


def refuse_unknown_parts(tensors: Iterable[torch.Tensor]) -> None:
    """Refuse parts of tensors that look whole: every rank would make the noise of the same entries for its own part.

    Raises:
        InvalidParameter: a tensor is such a part.
    """
    for tensor in tensors:
        maker = next(
            (each for mark, each in _MARKS_OF_PARTS.items() if getattr(tensor, mark, False) is not False), None
        )
        if maker is not None:
            raise InvalidParameter(
                f"a parameter of shape {tuple(tensor.shape)} is a part that {maker} made, and does not tell which, so "
                "all ranks would add the same noise to different parts, whose differences reveal the data; shard with "
                "fully_shard or parallelize_module, whose DTensors tell it",
                field="parameters",
            )


def values_sum(tensors: Iterable[torch.Tensor]) -> str:
    """Return a hash of sums of the tensors' bits, which replicas share and the stages of a pipeline do not."""
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    sums = [int(t.detach().contiguous().view(words[t.element_size()]).sum(dtype=torch.int64)) for t in tensors]
    return hashlib.sha256(repr(sums).encode()).hexdigest()


def _refuse_other_sums(told: Sequence[Mapping[str, Mapping[str, list[float]]]]) -> None:
    """Refuse (sum, norm) of the same entries that differ."""
    for name in {name for each in told for name in each["sums"]}:
        found = np.array([each["sums"][name] for each in told if name in each["sums"]])
        if (np.ptp(found, axis=0) > 1e-3 * found[:, 1].max()).any():
            raise InvalidParameter(
                "ranks that hold the same entries have different sums, and all would add the same noise, so their "
                "differences would have none; add them up over the replicas first (all_reduce, or redistribute() "
                "from Partial)",
                field="parameters",
            )


def _side(place: Placement, sides: int) -> int | None:
    """Return the side that a placement cuts; None for a replica.

    Raises:
        InvalidParameter: another kind of placement.
    """
    from torch.distributed.tensor import Replicate, Shard

    if isinstance(place, Replicate):
        return None
    if isinstance(place, Shard) or type(place).__name__ == "_StridedShard":
        return int(place.dim) % sides
    raise InvalidParameter(
        f"a parameter has the placement {place}, where no rank has its own entries; redistribute it to Shard or "
        "Replicate before you make the optimizer",
        field="parameters",
    )


def _chunk(indices: range | np.ndarray, count: int, index: int, place: Placement) -> range | np.ndarray:
    """Return the part of one rank, as torch.chunk cuts: equal parts, rounded up, as long as something is left."""
    strides = int(getattr(place, "split_factor", 1))
    if strides > 1:  # fully_shard after tensor parallel cuts each of the parts to come
        if len(indices) % (strides * count):
            raise InvalidParameter(
                f"a side of length {len(indices)} cannot be cut into {strides} x {count} equal parts; use sizes that "
                "both meshes divide",
                field="parameters",
            )
        return np.asarray(indices).reshape(strides, count, -1)[:, index].reshape(-1)
    width = -(-len(indices) // count)
    return indices[index * width : (index + 1) * width]


def _later(place: Placement) -> Placement:
    """Return the placement of vectors, which have one more side before the others."""
    if place.is_replicate():
        return place
    if type(place).__name__ == "_StridedShard":
        return type(place)(place.dim + 1, split_factor=place.split_factor)
    return type(place)(place.dim + 1)


def _weighted_sum(region: Region, words: np.ndarray, step: int) -> int:
    total = 0
    for part in region.parts(1 << 16):
        places = np.arange(1 << 16, dtype=np.uint64)[part.inside] + np.uint64(part.block << 16)
        weights = _hashed(places)
        for i, vector in enumerate(words[:, part.at]):
            factor = int(_hashed(np.array([i + 1 + (step << 20)], dtype=np.uint64))[0]) | 1
            total += int((vector.astype(np.uint64) * weights).sum(dtype=np.uint64)) * factor
    return total & _MASK


def _hashed(numbers: np.ndarray) -> np.ndarray:
    """Return the SplitMix64 hash of each number."""
    z = numbers + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
