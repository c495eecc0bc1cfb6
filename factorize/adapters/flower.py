"""A strategy of Flower around another one, which adds correlated noise to the joint release of the clients' updates.

It wraps a strategy as Flower's own `DifferentialPrivacyServerSideFixedClipping` does. The wrapped strategy sees one
reply in each round, the model with the noisy mean update, so that all that it computes from it has the guarantee.
"""

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from copy import copy, deepcopy
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy
from flwr.serverapp.strategy.strategy_utils import sample_nodes

from factorize.adapters.federated import FederatedRounds
from factorize.adapters.rounds.client_ids import ClientId, client_id
from factorize.encoding import in_one_line
from factorize.errors import InvalidParameter, InvalidParticipation
from factorize.numbers.scalars import check_type, finite_real

_QUESTION = f"{MessageType.QUERY}.client_id"
_log = logging.getLogger(__name__)


def authenticated_node(node: int) -> int:
    """Return a node's id as the id of its client, for a SuperLink that knows its SuperNodes by their registered keys.

    Without `--enable-supernode-auth` a SuperNode that restarts has another id.
    """
    return node


class CorrelatedNoise(Strategy):
    """Client-level differential privacy with correlated noise around a strategy that averages models.

    Clients are chosen by the timers of `rounds`, among all connected nodes, as soon as there are the wrapped strategy's
    `min_available_nodes` and `min_train_nodes`; its sampling is switched off. Clients' measurements have no noise, so
    their metrics are dropped and no client evaluates: give `start` an `evaluate_fn`.

    Args:
        strategy: `FedAvg`, or one derived from it whose replies are arrays: `FedProx`, `FedAvgM`, `FedAdam`.
        rounds: the rounds of the run, made for the arrays of the model, in their order.
        client_id: the id of a client, which it keeps when its SuperNode restarts under another node id. Either the name
            under which clients answer `query.client_id` with it: each node is asked before each round, and takes no
            part without an answer. Or a function of the node's id, such as `authenticated_node`.
        seconds: seconds for which a round waits until enough clients have answered.

    Raises:
        InvalidParameter: a strategy that is not derived from `FedAvg`, or one that samples clients; or a run whose
            clients are known by another id.
    """

    def __init__(
        self,
        strategy: Strategy,
        rounds: FederatedRounds,
        *,
        client_id: str | Callable[[int], ClientId] = "client-id",
        seconds: float = 60.0,
    ) -> None:
        if not isinstance(strategy, FedAvg):
            message = (
                f"{type(strategy).__name__} of {type(strategy).__module__} is not a subclass of FedAvg of "
                "flwr.serverapp.strategy, so replies may be no models; wrap one that is"
            )
            raise InvalidParameter(message, field="strategy")
        if strategy.fraction_train != 1.0 or strategy.fraction_evaluate not in (0.0, 1.0):
            message = (
                f"fraction_train={strategy.fraction_train} and fraction_evaluate={strategy.fraction_evaluate} have no "
                f"effect: {rounds.clients_a_round} clients train in each round and none evaluates. Leave both out"
            )
            raise InvalidParameter(message, field="strategy")
        if not callable(client_id) and not (isinstance(client_id, str) and client_id):
            message = (
                f"client_id={client_id!r} names no id. A restarted SuperNode has another node id, so its client would "
                "take part too often; give the key of the clients' answers, or a function of the node's id"
            )
            raise InvalidParameter(message, field="client_id")
        check_type("rounds", rounds, FederatedRounds, remedy="give FederatedRounds(...)")
        self._known_by = client_id if isinstance(client_id, str) else getattr(client_id, "__name__", "function")
        rounds.fleet.name(self._known_by)
        self.strategy, self.rounds, self._client_id = strategy, rounds, client_id
        limited = 0.0 if seconds == float("inf") else seconds  # for ever
        finite_real("seconds", limited, strict=False, remedy="give the seconds that a round waits")
        self._seconds = seconds
        self._names: dict[int, ClientId] = {}  # the ids of the nodes that are asked
        self._asked: int | None = None  # the round for which they are asked
        least = max(strategy.min_available_nodes, strategy.min_train_nodes)
        # A strategy that was wrapped before, by a notebook's cell for example, has lost its own numbers.
        self._available = vars(strategy)["_least_nodes"] = max(1, least or vars(strategy).get("_least_nodes", 0))
        strategy.min_train_nodes, strategy.min_available_nodes = 0, 0
        self._arrays = ArrayRecord()

    def resumed(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return the model to continue with: that of the last released round, or these arrays before the first.

        Give it to `start` as `initial_arrays`, together with the rounds that are left. It is the state of `FedAvg` and
        `FedProx`; for a strategy with another state, such as the moments of `FedAdam`, keep the model and the state
        yourself.
        """
        if self.rounds.last is None:
            return arrays
        return _moved(arrays, *self.rounds.last)

    def summary(self) -> None:
        """Log the guarantee and the wrapped strategy."""
        _log.info("%s", self.rounds.statement)
        self.strategy.summary()

    def start(self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, *given: Any, **options: Any) -> Any:
        """Run this number of rounds; see Flower.

        Raises:
            InvalidParticipation: fewer rounds are left.
            InvalidParameter: the arrays have other shapes than the model of the rounds; or the wrapped strategy does
                not ask the chosen clients, or makes no model of the noisy mean alone.
        """
        check_type("initial_arrays", initial_arrays, ArrayRecord, remedy="give ArrayRecord(...)")
        self.rounds.check_ahead(num_rounds, initial_arrays.to_numpy_ndarrays())
        self._try(grid, initial_arrays)
        result = super().start(grid, initial_arrays, num_rounds, *given, **options)
        result.arrays = result.arrays or initial_arrays  # where a server was killed after its last round
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask the clients whose timers allow it.

        Raises:
            InvalidParticipation: the round would exceed the budget; or too few clients answer, and nothing was spent.
            InvalidParameter: another strategy is around this one, such as Flower's adaptive clipping.
        """
        around = sys._getframe(1).f_locals.get("self")
        if isinstance(around, Strategy) and around is not self:
            raise InvalidParameter(
                f"{type(around).__name__} is around CorrelatedNoise and sees the clients' replies before they have "
                "noise, from which Flower's adaptive clipping sets its norm. Nobody was asked; leave it out, and call "
                f"start of CorrelatedNoise, which clips by {self.rounds.calibration.clip_norm:g} and adds the noise",
                field="strategy",
            )
        self._arrays, self._asked = arrays, self.rounds.step
        nodes = self._connect(grid)
        self._names = {nodes[name]: name for name in self.rounds.choose(nodes)}
        return self.strategy.configure_train(server_round, arrays, config, _Chosen(grid, list(self._names)))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the wrapped strategy's answer to the noisy mean update; wrong replies count as zeros."""
        current = self._arrays.to_numpy_ndarrays()
        for reply in sorted(replies, key=lambda reply: reply.metadata.src_node_id):
            name = self._names.get(reply.metadata.src_node_id, f"node {reply.metadata.src_node_id}")
            if reply.has_error():
                _log.warning("round %d: client %r counts as zeros, since %s", self.rounds.step, name, _failure(reply))
            else:
                self.rounds.add(name, self._update(reply, current))
        moved = _moved(self._arrays, current, self.rounds.close(current))
        return _aggregated(self.strategy, server_round, moved), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask no client, since clients' measurements have no noise.

        Raises:
            InvalidParticipation: clients have trained in this round, and a subclass has aggregated their replies alone.
        """
        if self._asked == self.rounds.step:
            raise InvalidParticipation(
                f"the replies of round {self._asked} did not come to CorrelatedNoise.aggregate_train, so the model of "
                f"{type(self).__name__} has no noise: release nothing of it, and let its aggregate_train return what "
                "super().aggregate_train(server_round, replies) returns"
            )
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return nothing; see `configure_evaluate`."""
        return None

    def _try(self, grid: Grid, arrays: ArrayRecord) -> None:
        """Take round 1 of a copy of the wrapped strategy, as what fails in a real one would fail after it was spent.

        Raises:
            InvalidParameter: it asks other clients than the chosen ones, or makes no model of one reply without losses.
        """
        name, current = type(self.strategy).__name__, arrays.to_numpy_ndarrays()
        chosen = [*range(1, self.rounds.clients_a_round + 1)]
        before, after = (_moved(arrays, current, [np.full_like(part, by) for part in current]) for by in (0, 1))
        try:
            tried = deepcopy(self.strategy)
        except Exception:  # it holds what has no copy, such as a lock or an open file
            tried = copy(self.strategy)
        fault = "its answer is not a model with the same arrays"
        try:
            messages = tried.configure_train(1, before, ConfigRecord(), _Chosen(grid, chosen))
            asked = sorted(message.metadata.dst_node_id for message in messages)
            found = _aggregated(tried, 1, after)
        except Exception as reason:
            fault, asked, found = f"{type(reason).__name__}: {str(reason)[:200]}", chosen, None
        if asked != chosen:
            raise InvalidParameter(
                f"{name} asks {len(asked)} clients where {len(chosen)} are chosen, but the timers of all of them start;"
                " wrap a strategy that asks every node of its grid, such as FedAvg or FedAdam",
                field="strategy",
            )
        if found is None or [(key, part.shape) for key, part in found.items()] != [
            (key, part.shape) for key, part in arrays.items()
        ]:
            raise InvalidParameter(
                f"{name} makes no model of the noisy mean, which comes as the one reply of a round, without losses "
                f"({fault}). No round was spent; wrap a strategy that needs no more, such as FedAvg, FedProx, FedAvgM "
                "or FedAdam",
                field="strategy",
            )

    def _connect(self, grid: Grid) -> dict[ClientId, int]:
        """Wait for enough clients, and return their nodes by their ids; a node without an id is refused by name.

        Raises:
            InvalidParticipation: there are too few clients. None was asked to train, and nothing of the budget was
                spent.
        """
        end = time.monotonic() + self._seconds
        while True:
            _, nodes = sample_nodes(grid, self._available, 0)
            named, refused = self._name(sorted(nodes), grid)
            enough, late = len(named) >= self._available, time.monotonic() >= end
            if enough or late:
                break
            time.sleep(min(1.0, self._seconds))
        for node, reason, why in refused:
            self.rounds.refuse(f"node {node}", reason, why)
        if not enough:
            example = f" (node {refused[0][0]}: {refused[0][2]})" if refused else ""
            raise InvalidParticipation(
                f"{len(named)} of {len(nodes)} connected nodes sent a client id within {self._seconds:g} s, but a "
                f"round needs {self._available} (min_available_nodes, min_train_nodes){example}. Nobody trained and "
                "no round was spent; let clients answer query.client_id (docs/federated.md), and start again"
            )
        return named

    def _name(self, nodes: list[int], grid: Grid) -> tuple[dict[ClientId, int], list[tuple[int, str, str]]]:
        """Return nodes by the ids of their clients, and (node, reason, why) of the refused ones."""
        told: dict[int, object]
        failed: dict[int, str] = {}
        if isinstance(self._client_id, str):
            questions = [Message(RecordDict(), message_type=_QUESTION, dst_node_id=node) for node in nodes]
            replies = list(grid.send_and_receive(questions, timeout=self._seconds))
            failed = {reply.metadata.src_node_id: _failure(reply) for reply in replies if reply.has_error()}
            told = {reply.metadata.src_node_id: _value(reply, self._client_id) for reply in replies}
        else:
            told = {node: self._client_id(node) for node in nodes}
        named, refused = dict[ClientId, int](), list[tuple[int, str, str]]()
        for node in nodes:
            try:
                known = client_id(told.get(node))
            except InvalidParameter as reason:
                refused.append((node, "no client id", f"it sent no valid {self._known_by}: {failed.get(node, reason)}"))
                continue
            if known in named:
                refused.append((node, "same client id", f"it has the same id {known!r} as node {named[known]}"))
            else:
                named[known] = node
        return named, refused

    def _update(self, reply: Message, current: list[np.ndarray]) -> Iterator[np.ndarray]:
        """Yield a client's model minus the given one, for the names of the model; whatever else it sends is left out.

        Raises:
            ValueError: the reply has no record of arrays with the model's names, or several records.
        """
        records = list(reply.content.array_records.values())
        if len(records) != 1 or not set(records[0]) >= set(self._arrays):
            raise ValueError(f"one record with the model's names is needed, not {[*map(list, records)]}")
        for name, old in zip(self._arrays, current, strict=True):
            new = np.asarray(records[0][name].numpy())
            if np.issubdtype(new.dtype, np.floating) and new.shape == old.shape:
                with np.errstate(over="ignore", invalid="ignore"):  # entries that are not finite are refused by name
                    new = new.astype(np.float64) - old
            yield new


class _Chosen:
    """A grid that has the chosen nodes only, so that the wrapped strategy asks all of them."""

    def __init__(self, grid: Grid, nodes: list[int]) -> None:
        self._grid, self._nodes = grid, nodes

    def get_node_ids(self) -> list[int]:
        """Return the chosen nodes."""
        return self._nodes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)


def _failure(reply: Message) -> str:
    """Return what a client's app says of its failure, such as a mod that does not find what it reads."""
    return f"its app failed: {in_one_line(str(reply.error.reason))[:200]}"


def _value(reply: Message, key: str) -> Any:
    """Return a client's answer under a key; None where there is none, or two."""
    if reply.has_error():
        return None
    values = [record[key] for record in reply.content.config_records.values() if key in record]
    return values[0] if len(values) == 1 else None


def _aggregated(strategy: FedAvg, server_round: int, model: ArrayRecord) -> ArrayRecord | None:
    """Return the answer of a wrapped strategy to a model, which is the only reply that it sees in a round."""
    metrics = MetricRecord({strategy.weighted_by_key: 1.0})
    content = RecordDict({strategy.arrayrecord_key: model, "metrics": metrics})
    arrays, _ = strategy.aggregate_train(server_round, [Message(content, 1, MessageType.TRAIN)])
    return arrays


def _moved(like: ArrayRecord, model: list[np.ndarray], mean: list[np.ndarray]) -> ArrayRecord:
    """Return the sum of a model and a mean update, under the names of a record."""
    parts = zip(like, model, mean, strict=True)
    return ArrayRecord({name: Array(np.asarray(old + step)) for name, old, step in parts})
