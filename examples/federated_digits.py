"""Federated training in Flower: correlated noise beside Flower's own fixed clipping, at equal (epsilon, delta).

200 simulated clients hold 7 digits of scikit-learn each and answer in this process, in Flower's own loop. Three ways:

- Flower's `DifferentialPrivacyServerSideFixedClipping`. It samples clients freely, so that each may be in every round.
- Independent noise with timers: a client returns after `--min-sep` rounds at the earliest.
- Correlated noise with the same timers.

Each way takes the clip norm, of a few, that is best on runs of its own; this choice is not private.

    pip install 'factorize[flower,example]' matplotlib
    python examples/federated_digits.py --plot accuracy.png
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg, Strategy
from flwr.supercore.task_identity import TaskIdentity
from sklearn.datasets import load_digits

from factorize import Factorization, Spec, solvers
from factorize.adapters.federated import FederatedRounds
from factorize.adapters.flower import CorrelatedNoise, authenticated_node
from factorize.errors import FactorizeError
from factorize.numbers.gaussian import noise_multiplier_for_epsilon
from factorize.privacy import PrivacyTarget

CLIENTS, EXAMPLES = 200, 7
LOCAL_STEPS, LOCAL_RATE = 3, 1.0
CLIPS = (0.0625, 0.125, 0.25, 0.5, 1.0)
FLOWER, INDEPENDENT, CORRELATED = "Flower's fixed clipping", "independent noise, timers", "correlated noise, timers"


@dataclass(frozen=True)
class Setting:
    """The setting that all ways share."""

    rounds: int
    clients_a_round: int
    min_sep: int
    target: PrivacyTarget

    def factors(self, mechanism: str) -> Factorization:
        """Return the matrix for clients with timers."""
        most = -(-self.rounds // self.min_sep)
        apart = {"kind": "min_sep", "min_sep": self.min_sep, "max_participations": most}
        once = {"kind": "single"}
        spec = {"workload": {"kind": "prefix", "n": self.rounds}, "participation": apart if most > 1 else once}
        return solvers.solve(Spec.model_validate({**spec, "mechanism": {"kind": mechanism}}))


class Fleet(Grid):
    """Clients that train a softmax regression on digits of their own and answer at once."""

    def __init__(self) -> None:
        x, y = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(y))
        x, y = (x[order] / 16).astype(np.float32), y[order]
        used = CLIENTS * EXAMPLES
        self.x, self.y = (
            x[:used].reshape(CLIENTS, EXAMPLES, -1),
            np.eye(10, dtype=np.float32)[y[:used]].reshape(CLIENTS, EXAMPLES, 10),
        )
        self.test_x, self.test_y = x[used:], y[used:]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Return what all who are asked answer."""
        return [self.answer(message) for message in messages]

    def answer(self, message: Message) -> Message:
        """Return the model after a client's local steps."""
        client, arrays = message.metadata.dst_node_id - 1, message.content["arrays"]
        weights, bias = (array.copy() for array in arrays.to_numpy_ndarrays())
        x, y = self.x[client], self.y[client]
        for _ in range(LOCAL_STEPS):
            scores = np.exp(x @ weights + bias)
            slope = (scores / scores.sum(axis=1, keepdims=True) - y) / EXAMPLES
            weights -= LOCAL_RATE * x.T @ slope
            bias -= LOCAL_RATE * slope.sum(axis=0)
        metrics = MetricRecord({"num-examples": EXAMPLES})
        return Message(RecordDict({"arrays": record([weights, bias]), "metrics": metrics}), reply_to=message)

    def accuracy(self, arrays: ArrayRecord) -> float:
        """Return the share of the test images that a model knows."""
        weights, bias = arrays.to_numpy_ndarrays()
        return float(((self.test_x @ weights + bias).argmax(axis=1) == self.test_y).mean())

    def get_node_ids(self) -> list[int]:
        """Return all clients: everybody is connected."""
        return list(range(1, CLIENTS + 1))

    def set_run(self, run: Any) -> None:
        """Refuse: nothing here is run by a service of Flower."""
        raise NotImplementedError("nothing here asks for the run")

    run = property(set_run)

    def create_message(self, *given: Any, **more: Any) -> Message:
        """Refuse, likewise."""
        raise NotImplementedError("strategies make messages")

    push_messages = pull_messages = create_message


def record(arrays: Sequence[np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in zip(("weights", "bias"), arrays, strict=True)})


def initial() -> list[np.ndarray]:
    return [np.zeros((64, 10), np.float32), np.zeros(10, np.float32)]


def flowers_own(setting: Setting) -> Callable[[float, int, Path], Strategy]:
    """Return independent noise, of which every client may have a share in every round."""
    assert setting.target.epsilon is not None and setting.target.delta is not None
    z = noise_multiplier_for_epsilon(setting.target.epsilon, setting.target.delta) * setting.rounds**0.5
    planned = setting.clients_a_round
    sampled = {"fraction_train": planned / CLIENTS, "min_train_nodes": planned, "fraction_evaluate": 0.0}

    def strategy(clip: float, seed: int, folder: Path) -> Strategy:
        np.random.seed(seed)  # this seeds its noise
        return DifferentialPrivacyServerSideFixedClipping(FedAvg(**sampled), z, clip, planned)

    return strategy


def ours(setting: Setting, factors: Factorization) -> Callable[[float, int, Path], Strategy]:
    """Return the noise of factors, and timers."""
    planned = setting.clients_a_round

    def strategy(clip: float, seed: int, folder: Path) -> Strategy:
        settings: dict[str, Any] = {"clients": CLIENTS, "clients_a_round": planned, "clip_norm": clip}
        run = seed * len(CLIPS) + CLIPS.index(clip)  # the noise of one seed is released once
        settings["seed"] = (1 << 64) + run  # fixed so that the figures repeat
        rounds = FederatedRounds(folder / "state", factors, setting.target, initial(), **settings)
        return CorrelatedNoise(FedAvg(), rounds, client_id=authenticated_node)  # a simulated node is a client for ever

    return strategy


def curve(
    strategy: Callable[[float, int, Path], Strategy], clip: float, seed: int, setting: Setting, fleet: Fleet, every: int
) -> list[float]:
    """Train once, and return the accuracies after every so many rounds."""
    random.seed(seed)  # this seeds the choice of clients
    found: list[float] = []

    def evaluate(step: int, arrays: ArrayRecord) -> None:
        if step % every == 0:
            found.append(fleet.accuracy(arrays))

    with tempfile.TemporaryDirectory() as folder:
        made = strategy(clip, seed, Path(folder))
        made.start(fleet, record(initial()), num_rounds=setting.rounds, evaluate_fn=evaluate)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--delta", type=float, default=1e-3)
    for name, usual in (("rounds", 100), ("clients-a-round", 20), ("min-sep", 10), ("runs", 10), ("tuning-runs", 2)):
        parser.add_argument(f"--{name}", type=positive, default=usual)
    parser.add_argument("--plot", metavar="FILE.png")
    asked = parser.parse_args(arguments)
    if asked.clients_a_round > CLIENTS:
        parser.error(f"--clients-a-round {asked.clients_a_round}: there are {CLIENTS} clients; ask fewer")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1  # the identity of a server app
    target = PrivacyTarget(epsilon=asked.epsilon, delta=asked.delta)
    setting = Setting(asked.rounds, asked.clients_a_round, asked.min_sep, target)
    fleet, every = Fleet(), max(1, asked.rounds // 20)
    ways = {
        FLOWER: flowers_own(setting),
        INDEPENDENT: ours(setting, setting.factors("identity")),
        CORRELATED: ours(setting, setting.factors("auto")),
    }
    fleet_of = f"{CLIENTS} clients, {asked.clients_a_round} a round, {asked.rounds} rounds, min_sep {asked.min_sep}"
    print(f"({asked.epsilon:g}, {asked.delta:g})-DP per client: {fleet_of}")
    curves: dict[str, np.ndarray] = {}
    for name, strategy in ways.items():

        def tuned(clip: float, strategy: Callable[[float, int, Path], Strategy] = strategy) -> float:
            seeds = range(1000, 1000 + asked.tuning_runs)
            return float(np.mean([curve(strategy, clip, seed, setting, fleet, every)[-1] for seed in seeds]))

        clip = max(CLIPS, key=tuned)
        curves[name] = np.array([curve(strategy, clip, seed, setting, fleet, every) for seed in range(asked.runs)])
        last = curves[name][:, -1]
        error = f" +- {last.std(ddof=1) / asked.runs**0.5:.3f}" if asked.runs > 1 else ""
        print(f"{name:27} clip {clip:<7g} accuracy {last.mean():.3f}{error}", flush=True)
    if asked.plot:
        plot(curves, every, setting, asked.plot)
    return 0


def positive(text: str) -> int:
    """Return a number from 1 on."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is below 1")
    return number


def plot(curves: dict[str, np.ndarray], every: int, setting: Setting, path: str) -> None:
    """Draw mean accuracy over rounds, with a band of two standard errors."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for name, runs in reversed(curves.items()):
        mean, error = runs.mean(axis=0), runs.std(axis=0, ddof=min(1, len(runs) - 1)) / len(runs) ** 0.5
        at = np.arange(len(mean)) * every
        axes.plot(at, mean, label=f"{name}: {mean[-1]:.3f} at the end")
        axes.fill_between(at, mean - 2 * error, mean + 2 * error, alpha=0.25)
    title = f"digits, {CLIENTS} clients, ({setting.target.epsilon:g}, {setting.target.delta:g})-DP per client"
    axes.set(xlabel="round", ylabel="test accuracy", xlim=(0, setting.rounds), title=title)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FactorizeError as reason:
        sys.exit(f"error: {reason}")
