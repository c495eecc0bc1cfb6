"""The open round of federated training: the clients that were admitted to it, their answers, and the sum of these."""

import math
from collections.abc import Collection, Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from factorize.adapters.gradients.clipped_sums import GroupedSum, clipped, host_array
from factorize.adapters.rounds.client_ids import ClientId
from factorize.errors import InvalidParameter
from factorize.numbers.masked_entries import refuse_masked


class OpenRound:
    """The round that is open.

    Args:
        shapes: the shapes of the arrays of an update.
        clip_norm: bound on an update over all arrays together.
        lost: clients whose answers an ended process has asked for.

    Attributes:
        clients: the clients that were admitted.
        lost: see above.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]], clip_norm: float, *, lost: Iterable[ClientId] = ()) -> None:
        self.lost = frozenset(lost)
        self.clients, self._answered = {*self.lost}, set[ClientId]()
        self._shapes, self._clip_norm = [*shapes], clip_norm
        self._sum = GroupedSum(sum(map(math.prod, self._shapes)))

    @property
    def total(self) -> np.ndarray:
        """The sum of the updates that count, shape (size,)."""
        return self._sum.total

    def free_places(self, planned: int, here: Collection[ClientId]) -> int:
        """Return how many clients are missing, if those of an ended process that are not here do not come back."""
        return max(0, planned - len(self.clients - self.lost.difference(here)))

    def add(self, client: ClientId | None, update: Iterable[ArrayLike]) -> tuple[str, str] | None:
        """Add a client's clipped update, or return the reason of its refusal and an explanation; it counts as zeros.

        Args:
            client: its id, None for a client that may not take part.
            update: the arrays of the update, in the order of the model's.
        """
        if client is None or client not in self.clients:
            return "not admitted", "it was not admitted to this round"
        if client in self._answered:
            return "twice", "it has already answered in this round"
        self._answered.add(client)
        try:
            parts = [*update]
            for part in parts:
                refuse_masked("update", part)
            arrays = [*map(host_array, parts)]
        except Exception as reason:  # what a client has sent may break its reader in any way
            return "shape", f"its update is not a list of arrays: {str(reason)[:80]}"
        shapes = [part.shape for part in arrays]
        if shapes != self._shapes:
            return "shape", f"its arrays have shapes {str(shapes)[:80]}, which are not the model's"
        try:
            vector = clipped(arrays, self._clip_norm)
        except InvalidParameter as reason:
            return "type", str(reason)
        if vector is None:
            return "not finite", "it has entries that are NaN or infinite"
        self._sum.add(vector)
        return None
