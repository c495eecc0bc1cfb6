"""Strategies, settings and restarts of a Flower server as its users write them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from fleet import MODEL, N, rounds_in
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from test_flower import Nodes, record, trained

from factorize.adapters.flower import CorrelatedNoise
from factorize.errors import InvalidParameter, InvalidParticipation


class Decaying(FedAvg):
    """A learning rate that falls with the round, as of Flower's pages on strategies: rounds begin with 1."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        config["lr"] = 0.1 / server_round
        return super().configure_train(server_round, arrays, config, grid)


def test_a_strategy_may_count_on_rounds_that_begin_with_one(tmp_path: Path) -> None:
    rounds, _ = rounds_in(tmp_path)
    assert list(trained(CorrelatedNoise(Decaying(), rounds), Nodes(), 2).arrays) == list(MODEL)


class Halving(FedAvg):
    """A strategy that asks half of the nodes, but two at least."""

    def configure_train(self, *given: Any) -> Iterable[Message]:
        messages = [*super().configure_train(*given)]
        return messages[: max(2, len(messages) // 2)]


def test_a_strategy_that_asks_some_of_the_chosen_clients_is_refused(tmp_path: Path) -> None:
    rounds, _ = rounds_in(tmp_path)
    nodes = Nodes()
    with pytest.raises(InvalidParameter, match="Halving asks 2 clients where 4 are chosen"):
        trained(CorrelatedNoise(Halving(), rounds), nodes, 1)
    assert rounds.step == 0 and not nodes.asked


def test_a_server_that_has_no_round_left_returns_its_model(tmp_path: Path) -> None:
    """It was killed after its last round, before it had saved the model."""
    rounds, _ = rounds_in(tmp_path)
    whole = trained(CorrelatedNoise(FedAvg(), rounds), Nodes(), N).arrays
    rounds.stop()
    rounds, _ = rounds_in(tmp_path)
    strategy = CorrelatedNoise(FedAvg(), rounds)
    again = trained(strategy, Nodes(), N - rounds.step, strategy.resumed(record(MODEL))).arrays
    assert [part.tobytes() for part in again.to_numpy_ndarrays()] == [
        part.tobytes() for part in whole.to_numpy_ndarrays()
    ]


def test_what_is_no_setting_is_refused_by_name(tmp_path: Path) -> None:
    rounds: Any = rounds_in(tmp_path)[0]
    for given, said in (
        ({"rounds": rounds, "seconds": None}, "seconds is of type NoneType"),
        ({"rounds": "rounds"}, "rounds is of type str; give FederatedRounds"),
    ):
        with pytest.raises(InvalidParameter, match=said):
            CorrelatedNoise(FedAvg(), **given)
    assert CorrelatedNoise(FedAvg(), rounds, seconds=float("inf")).rounds is rounds
    several: Any = [*MODEL.values()]
    with pytest.raises(InvalidParameter, match="initial_arrays is of type list; give ArrayRecord"):
        CorrelatedNoise(FedAvg(), rounds).start(Nodes(), several, num_rounds=1)


def test_a_function_that_names_no_client_is_named(tmp_path: Path) -> None:
    def nobody(node: int) -> Any:
        return None

    rounds, _ = rounds_in(tmp_path)
    with pytest.raises(InvalidParticipation, match="it sent no valid nobody: 'None' .NoneType. is not a client id"):
        trained(CorrelatedNoise(FedAvg(), rounds, client_id=nobody, seconds=0.0), Nodes(), 1)
