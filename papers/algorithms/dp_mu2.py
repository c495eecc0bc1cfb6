"""DP-mu^2-FL: federated stochastic convex optimisation with corrected momentum (R24, algorithms 1 and 2).

Round t = 1..T (alpha_t = t, x_0 = x_1 = w_1 = start); machine i takes a sample that it never takes again and computes

    s_t = clip(t grad f(x_t; z) - (t-1) grad f(x_{t-1}; z), S)      both gradients at the same sample z = z_{t,i}
    q_t = q_{t-1} + s_t,   w_{t+1} = Proj(w_t - eta q~_t),   x_{t+1} = (t x_t + 2 w_{t+1}) / (t + 2)

and x_T is the output. Under the paper's assumptions the clipping to S = G + 2LD never acts. Algorithm 2 prints
grad f(x_{t-1}; z_{t-1}) for the second gradient: q_t then telescopes to t grad f(x_t; z_t), one sample changes it by
2Gt instead of 2S, and the stated guarantee fails by a factor of up to G sqrt(T) / S (audited in the tests).

q = S s is the prefix workload with adaptively chosen increments, so every factorization makes it private: release the
increments with noise C^-1 Z and add them up. C = S (`DIFFERENCED`) is the independent noise of the paper. Untrusted
server: each machine releases its own increments with its own noise. Trusted server: the noise is added to their mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from factorize.errors import InvalidParameter
from papers.algorithms.machines import Machine, mean_divisor, summed_increments
from papers.algorithms.projections import Projection
from papers.training.ftrl import Observer, Run, guarantee, unobserved
from papers.training.private_sums import PrivateSums, Sums


def untrusted_mu2(
    machines: Sequence[Machine],
    start: np.ndarray,
    *,
    learning_rate: float,
    project: Projection,
    observe: Observer = unobserved,
) -> Run:
    """Train with noise added by the machines, so that the server sees nothing else.

    Each machine's whole sequence of messages has the guarantee of its own calibration, with respect to one of its
    samples, against the server and the other machines.

    Args:
        machines: each with its gradient function, its order and its own `PrivateSums` (with its own seed: machines
            that share noise are not private).
        start: x_1 = w_1, inside the constraint set.
        learning_rate: eta; see `mu2_recipe`.
        project: onto K; the bound S needs the iterates inside it.
        observe: called after each round with (round from 0, x_{t+1}, mean of the messages).

    Returns:
        A run whose weights are x_T, which the last round's message no longer moves, with machine 0's calibration.

    Raises:
        InvalidParameter: no machines, orders of different lengths, or a calibration for sums.
        InvalidParticipation: a machine's order is not what its sensitivity was computed for.

    Reference:
        R24, algorithm 1, theorem 5.1; factorized version: papers/pages/algorithms.md.
    """
    rounds = _rounds(machines)
    for machine in machines:
        if machine.sums is None:
            raise InvalidParameter("an untrusted server needs machines with their own PrivateSums", field="machines")
        machine.sums.check(machine.order)
        mean_divisor(machine.sums, "DP-mu^2-FL")
    private = [machine.sums for machine in machines if isinstance(machine.sums, PrivateSums)]
    if len({sums.origin for sums in private}) < len(private):
        message = "machines share their noise, which is not private; give each its own seed, as with machine_seeds"
        raise InvalidParameter(message, field="machines")

    def ask(t: int, x: np.ndarray, previous: np.ndarray) -> np.ndarray:
        return summed_increments(machines, t, x, previous) / len(machines)

    weights = _descend(ask, start, rounds, learning_rate, project, observe)
    assert machines[0].sums is not None  # it was checked above
    return Run(weights, rounds, guarantee(machines[0].sums))


def trusted_mu2(
    machines: Sequence[Machine],
    start: np.ndarray,
    sums: Sums,
    *,
    learning_rate: float,
    project: Projection,
    observe: Observer = unobserved,
) -> Run:
    """Train with noise added once by the server, which sees the machines' increments.

    All iterates have the guarantee of the server's calibration, with respect to one sample of any one machine, against
    the other machines and everybody who sees the model; not against the server.

    Args:
        machines: each with its gradient function and its order, without `PrivateSums`.
        start: as for `untrusted_mu2`.
        sums: the server's, with `divisor` the number of samples of one round over all machines.
        learning_rate: as for `untrusted_mu2`.
        project: as for `untrusted_mu2`.
        observe: as for `untrusted_mu2`.

    Reference:
        R24, algorithm 2 (with the sample of line 3 mended), theorem 6.1.
    """
    rounds = _rounds(machines)
    if any(machine.sums is not None for machine in machines):
        message = "with a trusted server, only the server adds noise; give machines without sums, or use untrusted_mu2"
        raise InvalidParameter(message, field="machines")
    for machine in machines:
        sums.check(machine.order)
    samples = sum(len(machine.order[0]) for machine in machines)
    if mean_divisor(sums, "DP-mu^2-FL") != samples:
        raise InvalidParameter(
            f"the calibration is for means over {sums.divisor}, but one round has {samples} samples on "
            f"{len(machines)} machines; calibrate with divisor={samples}",
            field="batch_size",
        )
    clipping = [machine.clipping(sums.clip_norm) for machine in machines]

    def ask(t: int, x: np.ndarray, previous: np.ndarray) -> np.ndarray:
        return sums.release_clipped(summed_increments(clipping, t, x, previous))

    weights = _descend(ask, start, rounds, learning_rate, project, observe)
    return Run(weights, rounds, guarantee(sums))


def _descend(
    ask: Callable[[int, np.ndarray, np.ndarray], np.ndarray],
    start: np.ndarray,
    rounds: int,
    learning_rate: float,
    project: Projection,
    observe: Observer,
) -> np.ndarray:
    """Run the server: anytime averaging of the iterates, with the estimates as they come. Returns x_T."""
    x = previous = w = np.array(start, dtype=np.float64)
    estimate = np.zeros_like(x)
    for t in range(1, rounds + 1):
        released = ask(t, x, previous)
        estimate = estimate + released
        w = project(w - learning_rate * estimate)
        previous, x = x, (t * x + 2.0 * w) / (t + 2.0)
        observe(t - 1, x, released)
    return previous


def _rounds(machines: Sequence[Machine]) -> int:
    lengths = {len(machine.order) for machine in machines}
    if len(lengths) != 1:
        message = f"machines with {sorted(lengths)} rounds; give at least one machine, all with equally many rounds"
        raise InvalidParameter(message, field="machines")
    return lengths.pop()


@dataclass(frozen=True)
class Mu2Recipe:
    """Parameters of DP-mu^2-FL.

    Attributes:
        clip_norm: S = G + 2LD, what increments are clipped to and the noise calibrated for.
        learning_rate: for independent noise, min(rho D sqrt(M) / (2 S T sqrt(d)), 1/(4LT)); M in place of its root with
            a trusted server.
        factorized_learning_rate: for any factorization, 1/(4LT): no term depends on the noise.
    """

    clip_norm: float
    learning_rate: float
    factorized_learning_rate: float


def mu2_recipe(
    rounds: int,
    *,
    machines: int,
    lipschitz: float,
    smoothness: float,
    diameter: float,
    dimension: int,
    mu: float,
    trusted: bool,
) -> Mu2Recipe:
    """Return the parameters of theorems 5.2 and 6.2, and those of the factorized version.

    Args:
        rounds: T.
        machines: M.
        lipschitz: G.
        smoothness: L.
        diameter: D of the constraint set.
        dimension: d.
        mu: mu of mu-GDP, which R24 calls rho.
        trusted: whether the server is.

    Raises:
        InvalidParameter: a constant not above 0.

    Reference:
        R24, lemma 4.1, theorems 5.1, 5.2, 6.1 and 6.2; papers/pages/algorithms.md for the factorized version.
    """
    if min(rounds, machines, lipschitz, smoothness, diameter, dimension, mu) <= 0:
        raise InvalidParameter("rounds, machines and all constants must be above 0", field="rounds")
    clip_norm = lipschitz + 2 * smoothness * diameter
    share = machines if trusted else math.sqrt(machines)
    flat = 1 / (4 * smoothness * rounds)
    noisy = mu * diameter * share / (2 * clip_norm * rounds * math.sqrt(dimension))
    return Mu2Recipe(clip_norm, min(noisy, flat), flat)


def mu2_workload(n: int, output: Literal["q", "w", "x"]) -> dict[str, Any]:
    """Return the workload from increments to R24's estimate q, iterate w or output x (docs/spec.md)."""
    return {"kind": "mu2", "n": n, "output": output}
