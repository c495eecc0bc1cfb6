"""The data that a torch job gives: a data set or a loader, used as it is or refused by name in advance."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler, UniformWithReplacementSampler
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from factorize.adapters.data.altered_batches import Randomness, tensors_of
from factorize.adapters.data.repeated_data import refuse_repeats
from factorize.errors import InvalidParameter, InvalidParticipation

_KEPT_SETTINGS = (
    *("collate_fn", "num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context"),
    *("generator", "prefetch_factor", "persistent_workers", "in_order"),
)


@dataclass(frozen=True)
class GivenData:
    """The data of a job.

    Attributes:
        dataset: the data set, with `__len__` and `__getitem__`.
        batch_size: examples per step.
        loading: arguments of the loader that fetches them.
        replaced: a sentence for each setting of the caller's loader that the job's order replaces.
    """

    dataset: Any
    batch_size: int
    loading: dict[str, Any]
    replaced: tuple[str, ...] = ()

    @classmethod
    def read(cls, data: Any, batch_size: int | None, *, sampling: str, remainder: str) -> GivenData:
        """Return the data of a loader, or a data set with a batch size.

        Args:
            data: the caller's data.
            batch_size: the caller's batch size.
            sampling: sampling of the job.
            remainder: the remainder of the job's order.

        Raises:
            InvalidParameter: no batch size or two, data without a length, or a loader that contradicts the job.
            InvalidParticipation: the loader's sampler chooses other examples than the job's order.
        """
        if not isinstance(data, DataLoader):
            _check_dataset(data)
            if batch_size is None:
                message = "a data set needs batch_size=; give it, or give a DataLoader"
                raise InvalidParameter(message, field="batch_size")
            return cls(data, batch_size, {})
        _check_dataset(data.dataset)
        batches = _plain_batches(data)
        if batch_size is not None and batch_size != batches.batch_size:
            message = (
                f"batch_size={batch_size} differs from the loader's {batches.batch_size}; leave batch_size out, or "
                "give the data set instead of the loader"
            )
            raise InvalidParameter(message, field="batch_size")
        if batches.drop_last and remainder == "pad":
            message = "the loader's drop_last=True contradicts remainder='pad'; leave one out"
            raise InvalidParameter(message, field="remainder")
        kept = {name: getattr(data, name) for name in _KEPT_SETTINGS if hasattr(data, name)}
        return cls(data.dataset, batches.batch_size, kept, tuple(_replaced(batches, sampling)))

    @Randomness.keep()
    def refuse_layouts(self) -> None:
        """Refuse sparse and nested tensors, whose rows neither torch nor a rehearsal can replace.

        Raises:
            InvalidParameter: an item has one, or a batch that the collation makes.
        """
        item = self.dataset[0]
        given = tensors_of(item)
        with suppress(Exception):  # a collation that takes no single item says so where it is used
            given += tensors_of((self.loading.get("collate_fn") or default_collate)([item]))
        if any(each.is_nested or each.layout is not torch.strided for each in given):
            raise InvalidParameter(
                "the data have sparse or nested tensors, in an item or in what the collation makes of it, whose "
                "examples cannot be told apart; return them dense (to_dense()), and make them sparse in the loop",
                field="data",
            )


def refuse_sampling(loader: Any) -> None:
    """Refuse a data loader with another order than that of its data, if nobody audits the batches.

    `PrivacyEngine` draws Poisson samples by default, and `shuffle=True` draws a new order in every epoch: then the
    steps of an example may be neighbours, and the sensitivity of fixed epochs does not cover them.

    Raises:
        InvalidParticipation: the loader samples, shuffles, or leaves examples out, or its data name some twice.
    """
    if isinstance(_plain_batches(loader).sampler, RandomSampler):
        raise InvalidParticipation(
            "the loader's shuffle=True draws a new order in every epoch, but the sensitivity assumes that every epoch "
            "repeats one order; shuffle once (torch.utils.data.Subset(data, permutation)), give the optimizer an "
            "auditor, or use make_private, which makes the order",
            field="data",
        )
    refuse_repeats(loader.dataset)


def _plain_batches(loader: Any) -> BatchSampler:
    """Return the sampler of a loader's batches, if every epoch takes every example once.

    Raises:
        InvalidParticipation: an epoch does not.
    """
    batches, examples = getattr(loader, "batch_sampler", None), len(loader.dataset)
    if isinstance(batches, (UniformWithReplacementSampler, DistributedUniformWithReplacementSampler)):
        raise InvalidParticipation(
            f"the loader's {type(batches).__name__} draws Poisson samples, but correlated noise needs a fixed order; "
            "use poisson_sampling=False, or make_private(data set, sampling='cyclic_poisson') with a banded C",
            field="data",
        )
    if batches is None:
        message = "the loader has batch_size=None, so one item may be any number of examples; give it a batch size"
        raise InvalidParameter(message, field="batch_size")
    own = type(loader).__iter__ is not DataLoader.__iter__
    sampler: Any = getattr(batches, "sampler", None)
    random = type(sampler) is RandomSampler and not sampler.replacement and len(sampler.data_source) == examples
    whole = (random or type(sampler) is SequentialSampler) and len(sampler) == examples
    if type(batches) is BatchSampler and whole and not own:
        return batches
    maker = loader if own else batches if type(batches) is not BatchSampler else sampler
    raise InvalidParticipation(
        f"the loader's {type(maker).__name__} decides which of the {examples} examples take part and when, but the "
        "sensitivity assumes an order of all of them. To use part of the data, give torch.utils.data.Subset(data, "
        "indices). Leave a DistributedSampler out, since every rank gets its share of each batch. Otherwise give the "
        "data set with batch_size=",
        field="data",
    )


def _replaced(batches: BatchSampler, sampling: str) -> Iterable[str]:
    """Yield a sentence for each setting of a loader that the job's order replaces."""
    order = "one public permutation (order_seed), which every epoch repeats" if sampling == "fixed" else sampling
    if isinstance(batches.sampler, RandomSampler):
        yield f"The loader's shuffle=True was replaced by {order}."
    if batches.drop_last and sampling != "fixed":
        yield f"The loader's drop_last=True was replaced by {order}, which draws batches of random sizes."


def _check_dataset(dataset: object) -> None:
    """Refuse data without an order of their own."""
    kind = type(dataset).__name__
    if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        way_out = "a data set with __len__ and __getitem__ (list(stream), if it fits into memory)"
        if hasattr(dataset, "dataset"):  # as a loader of Fabric, fastai or grain may have
            way_out = "its .dataset with batch_size=, or torch's own DataLoader of it"
        message = f"{kind} has no length or no index, so nobody can tell which examples a step uses; give {way_out}"
        raise InvalidParameter(message, field="data")
    if not len(dataset):
        message = f"the {kind} has no example; look at the path or the filter that it was made by"
        raise InvalidParameter(message, field="data")
    if hasattr(dataset, "keys"):
        try:
            dataset[0]
        except (KeyError, IndexError, TypeError, AttributeError):
            names = ", ".join(str(each)[:20] for each in list(dataset.keys())[:3])
            message = (
                f"the {kind} has {names} in place of examples 0, 1, 2, ...; give one of these, or a list of its rows"
            )
            raise InvalidParameter(message, field="data") from None
