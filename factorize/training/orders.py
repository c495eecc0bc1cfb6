"""Orders of examples, and the check that the sensitivity was computed for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from factorize.encoding import JsonObject
from factorize.errors import InvalidParameter
from factorize.noise.single_use import Secret
from factorize.numbers.scalars import check_choice, check_type, whole_number
from factorize.participation import example_indices, read_participation
from factorize.training.auditor import numbered_users
from factorize.training.batches import Batches, MicroBatches, epochs_of
from factorize.training.bins_order import BallsInBins, RandomAllocation


class Order(Batches):
    """The batches of one run: a public sequence of arrays of indices of examples.

    Args:
        batches: one array of indices for each step of an epoch.
        epochs: number of times that the sequence is repeated.
        participation: the spec's participation that it is made for; by default that of fixed epochs.

    Raises:
        InvalidParameter: no batches, fewer than one epoch, an index twice in one batch, or one that is no integer >= 0.
    """

    sampling = "fixed"
    drawn = False

    def __init__(
        self, batches: Sequence[np.ndarray], *, epochs: int = 1, participation: Mapping[str, object] | None = None
    ) -> None:
        self._batches = [example_indices(batch, field="batches") for batch in batches]
        self.epochs = whole_number("epochs", epochs)
        self._made_for = None if participation is None else dict(participation)
        if not self._batches:
            raise InvalidParameter("an order without batches is empty; give at least 1", field="batches")
        twice = next((t for t, batch in enumerate(self._batches) if len(np.unique(batch)) < len(batch)), None)
        if twice is not None:
            raise InvalidParameter(f"batch {twice} contains an example twice; list each one once", field="batches")

    def __len__(self) -> int:
        """Return the number of steps, n."""
        return len(self._batches) * self.epochs

    def batch(self, step: int) -> np.ndarray:
        """Return the batch of the step's place in its epoch."""
        return self._batches[step % len(self._batches)]

    def used(self, examples: int) -> int:
        """Return the number of examples that take part."""
        return len(np.unique(np.concatenate(self._batches)))

    @property
    def participation(self) -> JsonObject:
        """The spec's participation for this order: fixed epochs, if no example is in two batches of one epoch."""
        return epochs_of(self.epochs) if self._made_for is None else dict(self._made_for)

    def breach(self, participation: Mapping[str, object], n: int) -> str | None:
        """Return the participation's objection to the distances and the number of an example's steps, or None."""
        gaps, most = self._gaps()
        reason = read_participation(participation).violation(n, gaps, most)
        return reason and f"{reason}; solve for {self.participation}, or for min_sep, and calibrate again"

    def _gaps(self) -> tuple[np.ndarray, int]:
        """Return the distances between neighbouring steps of one example, and the largest number of steps of one.

        One epoch is examined: the next begins after its last batch, with the same steps.
        """
        index = np.concatenate(self._batches)
        step = np.repeat(np.arange(len(self._batches)), [len(batch) for batch in self._batches])
        by_example = np.lexsort((step, index))
        index, step = index[by_example], step[by_example]
        gaps = np.diff(step)[index[1:] == index[:-1]]
        _, first, counts = np.unique(index, return_index=True, return_counts=True)
        if self.epochs > 1:
            gaps = np.concatenate([gaps, len(self._batches) + step[first] - step[first + counts - 1]])
        return gaps, self.epochs * int(counts.max(initial=0))


def fixed_order(
    examples: int,
    batch_size: int,
    *,
    epochs: int = 1,
    batches: int | None = None,
    seed: int | None = None,
    remainder: Literal["drop", "pad"] = "drop",
) -> Order:
    """Return batches in one public order that every epoch repeats, so that n = epochs x batches exactly.

    Args:
        examples: number of examples.
        batch_size: examples per step.
        epochs: passes, all in the same order, as the sensitivity for `fixed_epochs` assumes.
        batches: number of batches of one epoch, if not all full ones are wanted (n = epochs x batches).
        seed: public seed of a permutation that is drawn once; None keeps the order of the data.
        remainder: `drop` leaves out examples that fill no batch; `pad` makes the last batch shorter, as if examples
            with zero gradients filled it. Means keep the divisor `batch_size`.

    Raises:
        InvalidParameter: sizes that are no whole numbers, or more batches than the examples fill.
    """
    examples, batch_size = whole_number("examples", examples), whole_number("batch_size", batch_size)
    over = batch_size - 1 if check_choice("remainder", remainder, ("drop", "pad")) == "pad" else 0
    full = (examples + over) // batch_size
    used = full if batches is None else whole_number("batches", batches)
    if not 1 <= used <= full:
        asked = "" if batches is None else f", so batches={batches} must be from 1 to {full}"
        text = f"{examples} examples make {full} batches of batch_size={batch_size}{asked}"
        raise InvalidParameter(f"{text}; use a batch_size from 1 to {examples}, or fewer batches", field="batch_size")
    indices = np.arange(examples) if seed is None else _public(seed).permutation(examples)
    return Order([indices[j * batch_size : (j + 1) * batch_size] for j in range(used)], epochs=epochs)


def min_sep_order(examples: int, batch_size: int, *, min_sep: int, steps: int, seed: int) -> Order:
    """Return an order in which two steps of one example are `min_sep` or more apart, shuffled again on every pass.

    The examples are split once into `min_sep` groups, and step t takes its batch from group t mod min_sep: the next
    examples of a random order of the group, drawn again when fewer than a batch are left. So a group's steps are
    min_sep apart, and no example is in more than one batch of a pass.

    Args:
        examples: number of examples.
        batch_size: examples per step.
        min_sep: smallest distance of two steps of one example.
        steps: n.
        seed: public seed of all permutations.

    Raises:
        InvalidParameter: sizes below 1, or a group has fewer examples than a batch.
    """
    examples, batch_size = whole_number("examples", examples), whole_number("batch_size", batch_size)
    min_sep, steps = whole_number("min_sep", min_sep), whole_number("steps", steps)
    if examples // min_sep < batch_size:
        raise InvalidParameter(
            f"min_sep={min_sep} groups of batch_size={batch_size} must fit into {examples} examples; use smaller "
            "batches or a smaller min_sep",
            field="batch_size",
        )
    rng = _public(seed)
    groups = np.array_split(rng.permutation(examples), min_sep)
    passes = [_passes(group, batch_size, rng) for group in groups]
    visits = (max(0, -(-(steps - g) // min_sep)) for g in range(min_sep))  # number of steps of each group
    most = max(-(-count // (len(group) // batch_size)) for count, group in zip(visits, groups, strict=True))
    participation = {"kind": "min_sep", "min_sep": min_sep, "max_participations": most}
    batches = [next(passes[step % min_sep]) for step in range(steps)]
    return Order(batches, participation={"kind": "single"} if most == 1 else participation)


def _public(seed: int) -> np.random.Generator:
    return np.random.default_rng(whole_number("seed", seed, low=0))


def _passes(group: np.ndarray, batch_size: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield batches of one group for ever; examples that fill no batch at the end of a pass are left out of it."""
    while True:
        shuffled = rng.permutation(group)
        yield from (shuffled[i : i + batch_size] for i in range(0, len(group) - batch_size + 1, batch_size))


class _Owned(NamedTuple):
    """The examples that each user has, in the order of their turns.

    Attributes:
        examples: examples, those of each user together, shape (examples,).
        first: place of each user's first example, shape (users,).
        counts: number of each user's examples, shape (users,).
    """

    examples: np.ndarray
    first: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, users: Sequence[object] | np.ndarray, seed: int) -> _Owned:
        user_of = numbered_users(users)
        shuffled, counts = _public(seed).permutation(len(user_of)), np.bincount(user_of)
        return cls(shuffled[np.argsort(user_of[shuffled], kind="stable")], np.cumsum(counts) - counts, counts)

    def check(self, present: np.ndarray) -> None:
        """Raise InvalidParameter for users who have no example."""
        if present.max(initial=-1) >= len(self.counts):
            message = f"the order has user {present.max()}, but the examples belong to users 0..{len(self.counts) - 1}"
            raise InvalidParameter(f"{message}; make an order of {len(self.counts)} users", field="users")

    def at(self, present: np.ndarray, turn: np.ndarray | int) -> np.ndarray:
        """Return the example that each user gives in a turn of theirs."""
        return self.examples[self.first[present] + turn % self.counts[present]]


def take_turns(order: Batches, users: Sequence[object] | np.ndarray, *, seed: int = 0) -> Order | DrawnTurns:
    """Return the order of examples in which the users of an order take turns through their examples.

    A user gives one example to each step in which it takes part. So the participation is the user's, and for a secret
    order the law, too. Users with fewer examples than turns begin again; users with more do not use all of them.

    Args:
        order: order of users, public or drawn in secret, numbered from 0 as they first appear in `users`.
        users: user of each example: see `factorize.training.auditor.ParticipationAuditor`.
        seed: public seed of the permutation of each user's examples.

    Raises:
        InvalidParameter: users who cannot be told apart, or fewer of them than the order has.
    """
    check_type("order", order, Batches, remedy="give an order of users, such as a fixed_order of their number")
    owned = _Owned.of(users, seed)
    if not isinstance(order, Order):
        return DrawnTurns(order, owned)
    turns, batches = np.zeros(len(owned.counts), dtype=np.intp), []
    for present in order:
        owned.check(present)
        batches.append(owned.at(present, turns[present]))
        turns[present] += 1
    return Order(batches, participation=order.participation)


class DrawnTurns(Batches, Secret):
    """The batches of a secret order of users, each of whom gives the next example after every period of the order.

    The example that a user gives follows from the step alone, never from how often the user took part: for the law it
    is one contribution that is drawn or not.

    Args:
        of_users: the order of users.
        owned: their examples.
    """

    def __init__(self, of_users: Batches, owned: _Owned) -> None:
        self.of_users, self._owned = of_users, owned
        self.sampling, self.physical_batch = of_users.sampling, of_users.physical_batch

    def __len__(self) -> int:
        """Return the number of steps, n."""
        return len(self.of_users)

    def batch(self, step: int) -> np.ndarray:
        """Return the indices of the examples that the users of one step give."""
        present = self.of_users[step]
        self._owned.check(present)
        return self._owned.at(present, step // self.of_users.period)

    def micro_batches(self, step: int) -> MicroBatches:
        """Return one step's batch in parts of `physical_batch`."""
        users, mask = self.of_users.micro_batches(step)
        return MicroBatches(np.where(mask, self._owned.at(users, step // self.of_users.period), 0), mask)

    def used(self, examples: int) -> int:
        """Return the number of examples that may take part."""
        return int(np.minimum(self._owned.counts, -(-len(self) // self.of_users.period)).sum())

    @property
    def participation(self) -> JsonObject:
        """The participation of users."""
        return self.of_users.participation

    def breach(self, participation: Mapping[str, object], n: int) -> str | None:
        """Return the objection of the order of users, if it has one."""
        return self.of_users.breach(participation, n)


def full_batch(examples: int, steps: int) -> Order:
    """Return the order in which every example takes part in every step (participation `fixed_epochs{steps}`)."""
    return Order([np.arange(examples)], epochs=steps)


balls_in_bins = BallsInBins
"""The secret order in which each example draws its bin once."""
random_allocation = RandomAllocation
"""The secret order in which each example draws one step of every epoch anew."""
