"""The machines of a federated run: in this process, or spread over worker processes with the same bits as a result."""

from __future__ import annotations

import hashlib
import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np

from factorize.errors import FactorizeError, InvalidParameter
from factorize.training.clip import GradientFunction, clipped_sum, contributions_at
from factorize.training.orders import Order
from factorize.training.private_sums import Sums


@dataclass(frozen=True)
class Machine:
    """One machine: its data behind a gradient function, and its own noise where the server is not trusted.

    Args:
        gradient: from (weights, indices of this machine's examples) to one gradient per example.
        order: this machine's samples, round by round; R24 takes one per round and never again.
        sums: clipping and noise of its messages; None where the server adds the noise.
        clip: what is clipped to where `sums` is None.
    """

    gradient: GradientFunction
    order: Order
    sums: Sums | None = None
    clip: float = np.inf

    def clipping(self, clip_norm: float) -> Machine:
        """Return the same machine with a clip norm, for a trusted server."""
        return replace(self, clip=clip_norm)

    def increment(self, t: int, x: np.ndarray, previous: np.ndarray) -> np.ndarray:
        """Return this round's message: s_t, summed over the batch and clipped, or its mean with noise.

        Args:
            t: round, from 1.
            x: x_t.
            previous: x_{t-1}; not used in round 1.
        """
        batch = self.order[t - 1]
        change = contributions_at(self.gradient, x, batch)
        if t > 1:  # both gradients at the same samples: R24, algorithm 1, not the printed algorithm 2
            before = contributions_at(self.gradient, previous, batch)
            change = change.combine(float(t), before, t - 1.0)
        return clipped_sum(change, self.clip) if self.sums is None else self.sums.release(change)


def machine_seeds(seed: int, machines: int) -> list[int]:
    """Return a secret seed for each machine, all made of one: machines that share their noise are not private."""
    return [
        int.from_bytes(hashlib.sha256(f"machine {i} of seed {int(seed)}".encode()).digest()[:16])
        for i in range(machines)
    ]


class Fleet(Protocol):
    """Machines that answer together."""

    def increments(self, t: int, x: np.ndarray, previous: np.ndarray) -> np.ndarray:
        """Return the sum of the machines' messages, added up in the order of the machines."""


@contextmanager
def fleet(machines: Sequence[Machine], processes: int) -> Iterator[Fleet]:
    """Yield the machines, ready to answer, in so many worker processes (0: in this one).

    Raises:
        InvalidParameter: a negative number of processes.
    """
    if processes < 0:
        raise InvalidParameter(f"processes={processes} is below 0; use 0 for none", field="processes")
    if processes == 0:
        yield _Here(machines)
        return
    with ExitStack() as stack:
        shares = [part for part in np.array_split(np.arange(len(machines)), processes) if len(part)]
        yield _Workers([stack.enter_context(_worker([machines[i] for i in part])) for part in shares])


class _Here:
    def __init__(self, machines: Sequence[Machine]) -> None:
        self._machines = machines

    def increments(self, t: int, x: np.ndarray, previous: np.ndarray) -> np.ndarray:
        return _added(np.array([machine.increment(t, x, previous) for machine in self._machines]))


class _Workers:
    def __init__(self, connections: list[Connection]) -> None:
        self._connections = connections

    def increments(self, t: int, x: np.ndarray, previous: np.ndarray) -> np.ndarray:
        for connection in self._connections:
            with suppress(OSError):  # whoever is gone has no answer either
                connection.send((t, x, previous))
        return _added(np.concatenate([_answer(connection) for connection in self._connections]))


def _added(messages: np.ndarray) -> np.ndarray:
    """Add up one by one: numpy's own sum groups its terms by their number."""
    total = np.zeros(messages.shape[1:])
    for message in messages:
        total += message
    return total


def _answer(connection: Connection) -> np.ndarray:
    try:
        answer = connection.recv()
    except (EOFError, OSError):
        raise FactorizeError("a process with machines ended without an answer; use processes=0 to see why") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


@contextmanager
def _worker(machines: list[Machine]) -> Iterator[Connection]:
    """Start a process that hosts some machines; it ends when its pipe is closed."""
    context = multiprocessing.get_context("spawn")  # a fork would copy locks that other threads hold
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, machines), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.join()


def _serve(connection: Connection, machines: list[Machine]) -> None:
    with suppress(EOFError, OSError):  # the server closed its end
        while True:
            t, x, previous = connection.recv()
            answer: Any
            try:
                answer = np.array([machine.increment(t, x, previous) for machine in machines])
            except Exception as error:  # the server raises it
                answer = error
            connection.send(answer)
