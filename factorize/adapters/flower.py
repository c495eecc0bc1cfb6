"""A strategy of Flower around another one: correlated noise on what the clients' updates release together.

It wraps a strategy as Flower's own `DifferentialPrivacyServerSideFixedClipping` does. The wrapped strategy sees one
reply in each round, the model with the noisy mean update, so that whatever it computes of it has the guarantee.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy
from flwr.serverapp.strategy.strategy_utils import sample_nodes

from factorize.adapters.federated import FederatedRounds
from factorize.errors import InvalidParameter

_QUESTION = f"{MessageType.QUERY}.client_id"
_log = logging.getLogger(__name__)


class CorrelatedNoise(Strategy):
    """Client-level differential privacy with correlated noise around a strategy that averages models.

    Clients are chosen by the timers of `rounds`, among all connected nodes, as soon as there are the wrapped strategy's
    `min_available_nodes`; its sampling is switched off. What clients measure is not covered, so their metrics are
    dropped and no client evaluates: give `start` an `evaluate_fn`.

    Args:
        strategy: `FedAvg`, or one derived from it whose replies are arrays: `FedProx`, `FedAvgM`, `FedAdam`.
        rounds: of the run; made for the arrays of the model, in their order.
        client_id: the name under which clients answer `query.client_id` with an id that they keep. Each node is asked
            before each round, and takes no part without one. By default a client is known by the id of its node.
        seconds: that a round waits for these answers.

    Raises:
        InvalidParameter: a strategy that is not derived from `FedAvg`; or a run whose clients are known by another id.
    """

    def __init__(
        self, strategy: Strategy, rounds: FederatedRounds, *, client_id: str | None = None, seconds: float = 60.0
    ) -> None:
        if not isinstance(strategy, FedAvg):
            message = (
                f"{type(strategy).__name__} is not derived from FedAvg, whose replies are models; wrap one that is"
            )
            raise InvalidParameter(message, field="strategy")
        self._prefix = "node " if client_id is None else f"{client_id}="
        other = next((client for client in rounds.known if not client.startswith(self._prefix)), None)
        if other is not None:
            message = f"the run knows a client as {other!r}, not as {self._prefix}...; name clients as when it began"
            raise InvalidParameter(message, field="client_id")
        self.strategy, self.rounds, self._client_id, self._seconds = strategy, rounds, client_id, seconds
        self._names: dict[int, str] = {}  # of the nodes that are asked
        self._available = strategy.min_available_nodes
        strategy.fraction_train, strategy.min_train_nodes, strategy.min_available_nodes = 1.0, 0, 0
        self._arrays = ArrayRecord()

    def resumed(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return the model to go on with: that of the last released round, or these arrays before the first.

        Give it to `start` as `initial_arrays`, and the rounds that are left. It is what `FedAvg` and `FedProx` had; of
        a strategy with a state of its own, as the moments of `FedAdam`, keep the model and the state yourself.
        """
        if self.rounds.last is None:
            return arrays
        return _moved(arrays, *self.rounds.last)

    def summary(self) -> None:
        """Log the guarantee and the wrapped strategy."""
        _log.info("%s", self.rounds.statement)
        self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask the clients whose timers allow it.

        Raises:
            InvalidParticipation: the round would exceed the budget.
        """
        self._arrays = arrays
        nodes = self._named(grid)
        self._names = {nodes[name]: name for name in self.rounds.choose(nodes)}
        return self.strategy.configure_train(server_round, arrays, config, _Chosen(grid, list(self._names)))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return what the wrapped strategy makes of the noisy mean update; wrong replies count as zeros."""
        current = self._arrays.to_numpy_ndarrays()
        for reply in sorted(replies, key=lambda reply: reply.metadata.src_node_id):
            if not reply.has_error():
                name = self._names.get(reply.metadata.src_node_id, f"node {reply.metadata.src_node_id}, not asked")
                self.rounds.add(name, self._update(reply, current))
        moved = _moved(self._arrays, current, self.rounds.close(current))
        metrics = MetricRecord({self.strategy.weighted_by_key: 1.0})
        content = RecordDict({self.strategy.arrayrecord_key: moved, "metrics": metrics})
        arrays, _ = self.strategy.aggregate_train(server_round, [Message(content, 1, MessageType.TRAIN)])
        return arrays, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask nobody: what clients measure has no noise."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return nothing; see `configure_evaluate`."""
        return None

    def _named(self, grid: Grid) -> dict[str, int]:
        """Return the connected nodes by the names of their clients; without a name of its own a node is left out."""
        _, nodes = sample_nodes(grid, self._available, 0)
        if self._client_id is None:
            return {f"{self._prefix}{node}": node for node in nodes}
        questions = [Message(RecordDict(), message_type=_QUESTION, dst_node_id=node) for node in nodes]
        replies = {
            reply.metadata.src_node_id: reply for reply in grid.send_and_receive(questions, timeout=self._seconds)
        }
        named = dict[str, int]()
        for node in sorted(nodes):
            value = self._answered(replies.get(node))
            if value is None:
                self.rounds.refuse(f"node {node}", "no client id", f"it answered {_QUESTION} with no {self._client_id}")
            elif value in named:
                self.rounds.refuse(value, "same client id", f"node {node} has the id of node {named[value]}")
            else:
                named[value] = node
        return named

    def _answered(self, reply: Message | None) -> str | None:
        """Return the name of a client from its answer; None where there is none."""
        if reply is None or reply.has_error():
            return None
        records = reply.content.config_records.values()
        values = [record[self._client_id] for record in records if self._client_id in record]
        valid = len(values) == 1 and isinstance(values[0], str | int) and str(values[0])
        return f"{self._prefix}{values[0]}" if valid else None

    def _update(self, reply: Message, current: list[np.ndarray]) -> list[np.ndarray]:
        """Return a client's model less the one that it was given; nothing where its arrays cannot be read as such."""
        records = list(reply.content.array_records.values())
        if len(records) != 1 or list(records[0]) != list(self._arrays):
            return []
        try:
            arrays = records[0].to_numpy_ndarrays()
        except (ValueError, TypeError, OSError, EOFError) as reason:
            _log.warning("arrays of node %d cannot be read: %s", reply.metadata.src_node_id, str(reason)[:200])
            return []
        if any(new.dtype.kind != "f" or new.shape != old.shape for new, old in zip(arrays, current, strict=True)):
            return arrays
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused by name
            return [new.astype(np.float64) - old for new, old in zip(arrays, current, strict=True)]


class _Chosen:
    """A grid that has the chosen nodes only, so that the wrapped strategy asks all of them."""

    def __init__(self, grid: Grid, nodes: list[int]) -> None:
        self._grid, self._nodes = grid, nodes

    def get_node_ids(self) -> list[int]:
        """Return the chosen nodes."""
        return self._nodes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)


def _moved(like: ArrayRecord, model: list[np.ndarray], mean: list[np.ndarray]) -> ArrayRecord:
    """Return a model and a mean update together, under the names of a record."""
    parts = zip(like, model, mean, strict=True)
    return ArrayRecord({name: Array(np.asarray(old + step)) for name, old, step in parts})
