"""A training job in numbers: from what is asked for to the factorization, its calibration and the order."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from factorize.accounting.amplification import calibrate_amplified
from factorize.adapters.statement import PrivacyStatement
from factorize.auditor import ParticipationAuditor
from factorize.errors import InvalidParameter, UnsupportedAdjacency
from factorize.format.claims import CertifiedFactors, certified
from factorize.privacy import Adjacency, Calibration, PrivacyTarget, calibrate
from factorize.training.bins import BallsInBins
from factorize.training.bins_audit import BinsAuditor
from factorize.training.draws.bin_keys import derived_key
from factorize.training.draws.bin_sizes import capacity_for
from factorize.training.memory.noise_memory import spec_within, warn_of_dense
from factorize.training.orders import Order, balls_in_bins, fixed_order, random_allocation
from factorize.training.sampling import CyclicPoisson

AnyOrder = Order | CyclicPoisson | BallsInBins
AnyAuditor = ParticipationAuditor | BinsAuditor

_SAMPLING = 0x5A4D504C << 128  # makes the seed of the sampling another than that of the noise
_ORDERS = {"balls_in_bins": balls_in_bins, "random_allocation": random_allocation}
BINNED = tuple(_ORDERS)
"""Samplings in which an example draws bins."""
_OVERFLOW_SHARE = 1024  # the capacity may cost this part of delta


@dataclass(frozen=True)
class Planned:
    """A factorization, its noise, and the order that both are for."""

    factors: CertifiedFactors
    calibration: Calibration
    order: AnyOrder
    overflow_delta: float = 0.0

    def auditor(self, users: Sequence[Any] | np.ndarray | None) -> AnyAuditor:
        """Return the auditor of the order.

        Raises:
            InvalidParameter: users with several examples, where these are sampled.
        """
        if not isinstance(self.order, BallsInBins):
            return ParticipationAuditor.of(self.calibration, self.factors.steps, users=users)
        if users is not None:  # refuses users with several examples: each example has a bin of its own
            bins, participation = self.order.bins, self.order.participation
            ParticipationAuditor(participation, self.factors.steps, users=users, groups=bins)
        return BinsAuditor.of(self.order, divisor=self.calibration.divisor)

    def fixed_or_bins(self) -> Order | BallsInBins:
        """Return the order, which is not one that samples anew in every step."""
        assert not isinstance(self.order, CyclicPoisson)
        return self.order

    def statement(self, examples: int, sampling: str, unit: str, ranks: int = 1) -> PrivacyStatement:
        """Return what the job guarantees."""
        fixed = isinstance(self.order, Order)
        used = len(np.unique(np.concatenate(list(self.order)))) if fixed else examples
        factors, c = self.factors, self.calibration
        return PrivacyStatement(
            c, factors.digest, factors.steps, examples, used, sampling, unit, self.overflow_delta, ranks
        )


@dataclass(frozen=True)
class TrainingJob:
    """What order and calibration follow from.

    Attributes:
        examples: N.
        size: of a batch, expected where it is random; divisor of the means.
        epochs: passes.
        target: epsilon and delta.
        clip_norm: bound on an example's gradient.
        adjacency: `zero_out` or `replace_one`.
    """

    examples: int
    size: int
    epochs: int
    target: PrivacyTarget
    clip_norm: float
    adjacency: Adjacency | str

    def fixed(self, find: Callable[..., Any], remainder: Literal["drop", "pad"], order_seed: int) -> Planned:
        """Plan the same public batches in every epoch."""
        order = fixed_order(self.examples, self.size, epochs=self.epochs, seed=order_seed, remainder=remainder)
        factors = certified(find(len(order), order.participation))
        calibration = calibrate(
            factors.sensitivity, self.target, clip_norm=self.clip_norm, divisor=self.size, adjacency=self.adjacency
        )
        order.check(calibration.sensitivity.participation, factors.steps)
        return Planned(factors, calibration, order)

    def cyclic_poisson(self, find: Callable[..., Any], participation: dict[str, Any], seed: int) -> Planned:
        """Plan batches sampled anew in every step, for a banded C."""
        steps = self.epochs * max(1, self.examples // self.size)
        factors = certified(find(steps, participation))
        epsilon, delta = self._epsilon_delta()
        calibration = calibrate_amplified(
            factors,
            epsilon=epsilon,
            delta=delta,
            dataset_size=self.examples,
            batch_size=self.size,
            divisor=self.size,
            clip_norm=self.clip_norm,
            adjacency=self.adjacency,
        )
        order = CyclicPoisson(self.examples, calibration, steps=steps, seed=seed ^ _SAMPLING)
        order.check(calibration.sensitivity.participation, factors.steps)
        return Planned(factors, calibration, order)

    def secret_bins(
        self,
        find: Callable[..., Any],
        *,
        sampling: str,
        seed: int,
        public_seed: int | None,
        physical: int | None,
        overflow: Literal["abort", "unlimited"],
        calibration: Any,
    ) -> Planned:
        """Plan the secret order in which each example draws its bin once, or in every epoch anew.

        Args:
            find: gives the factorization for (steps, participation).
            sampling: `balls_in_bins`, or `random_allocation`, for which `auto` asks for C = I.
            seed: secret, of the key.
            public_seed: of the run.
            physical: examples per part; None for whole batches, padded to the capacity unless that is unlimited.
            overflow: see `factorize.training.orders.balls_in_bins`.
            calibration: that counts on these bins, None to have it computed.

        Raises:
            UnsupportedAdjacency: another adjacency than zero-out.
            InvalidParameter: a calibration of something else, or a seed that cannot be secret.
            InvalidParticipation: a factorization of other epochs, or bins that do not fit into the capacity.
        """
        if Adjacency.parse(self.adjacency) is not Adjacency.ZERO_OUT:
            raise UnsupportedAdjacency(
                f"adjacency={str(self.adjacency)!r} is not covered under {sampling}; use zero_out, or a fixed order",
                field="adjacency",
            )
        epsilon, delta = self._epsilon_delta()
        bins, capacity = max(1, self.examples // self.size), None
        if overflow == "abort":
            draws = 1 if sampling == "balls_in_bins" else self.epochs
            tau = delta / _OVERFLOW_SHARE / (1 + float(np.exp(min(epsilon, 700.0)))) / draws
            capacity = capacity_for(self.examples, bins, physical_batch=physical or 1, tau=tau)
            physical = physical or capacity
        plain = {"bands": 1} if sampling == "random_allocation" else {}
        factors = certified(find(bins * self.epochs, _participation(self.epochs), **plain))
        order = _ORDERS[sampling](
            self.examples,
            bins,
            self.epochs,
            derived_key(seed, factors.digest, public_seed),
            physical_batch=physical,
            capacity=capacity,
            overflow=overflow,
        )
        extra = order.extra_delta(epsilon)
        left = math.nextafter(delta - extra, 0.0)  # so that both together are delta at most
        if calibration is None:
            calibration = self._counting_on(factors, bins, sampling, PrivacyTarget(epsilon=epsilon, delta=left))
        order.check_calibration(calibration, factors.steps)
        self._check_given(calibration, left)
        return Planned(factors, calibration, order, extra)

    def _counting_on(self, factors: CertifiedFactors, bins: int, sampling: str, target: PrivacyTarget) -> Any:
        from factorize.accounting import calibrate_sampling

        asked: dict[str, Any] = {"bins": bins, "divisor": self.size, "clip_norm": self.clip_norm}
        return calibrate_sampling(factors, target, sampling=sampling, **asked)

    def _check_given(self, calibration: Any, left: float) -> None:
        """Refuse a calibration for less privacy, another clip norm or another divisor than asked for."""
        epsilon, _ = self._epsilon_delta()
        if calibration.epsilon > epsilon or calibration.delta > left:
            raise InvalidParameter(
                f"the calibration is for ({calibration.epsilon:g}, {calibration.delta!r}), and the target leaves "
                f"({epsilon:g}, {left!r}) beside what the capacity costs; calibrate for that",
                field="calibration",
            )
        for name, asked, stated in (
            ("clip_norm", self.clip_norm, calibration.clip_norm),
            ("divisor", self.size, calibration.divisor),
        ):
            if asked != stated:
                message = f"the calibration is for {name}={stated}, the job has {asked}; calibrate for the job's"
                raise InvalidParameter(message, field=name)

    def _epsilon_delta(self) -> tuple[float, float]:
        assert self.target.epsilon is not None and self.target.delta is not None  # make_private asks for both
        return self.target.epsilon, self.target.delta


def _participation(epochs: int) -> dict[str, Any]:
    return {"kind": "single"} if epochs == 1 else {"kind": "fixed_epochs", "epochs": epochs}


def amplified_by(sampling: str, epsilon: float, delta: float) -> dict[str, Any] | None:
    """Return what C is optimised for under bins, kept or drawn anew; None under other samplings."""
    return {"kind": "balls_in_bins", "epsilon": epsilon, "delta": delta} if sampling in BINNED else None


def find_factors(
    spec: Any,
    workload: Callable[[int], dict[str, Any]],
    steps: int,
    participation: dict[str, Any],
    *,
    bands: int | None = None,
    memory: int | None = None,
    amplified: Mapping[str, Any] | None = None,
    url: str | None = None,
    store: str | Path | None = None,
    solve: Callable[..., Any] | None = None,
) -> Any:
    """Return the factorization that a job named, or that `auto` asks for.

    Args:
        spec: `auto`; or a spec, digest, path or URL for `factorize.client.load`; or a factorization.
        workload: of the job's optimizer, for n steps.
        steps: n.
        participation: of the order, in the contract's JSON form.
        bands: of the C that `auto` asks for; None leaves the mechanism to `auto`.
        memory: vectors of noise state that `auto` may ask for; None for any number, and a warning of dense noise.
        amplified: the sampling to optimise for within a memory, in the contract's JSON form.
        url: of a service that solves and serves.
        store: of factorizations.
        solve: `solvers.solve`, to solve in this process what is given as a spec.
    """
    automatic = isinstance(spec, str) and spec == "auto"
    if memory is not None and not automatic:
        message = f"memory={memory} is for 'auto', and a factorization or a spec is given; leave one of them out"
        raise InvalidParameter(message, field="memory")
    if isinstance(spec, CertifiedFactors):
        return spec
    if automatic and memory is not None and bands is None:
        spec = spec_within(workload(steps), participation, memory, amplified)
    elif automatic:
        banded = {"kind": "identity"} if bands == 1 else {"kind": "banded", "bands": bands}
        mechanism = {"kind": "auto"} if bands is None else banded
        spec = {"workload": workload(steps), "participation": participation, "mechanism": mechanism}
    if solve is not None:
        from factorize.spec import parse_spec

        found = solve(parse_spec(spec))
    else:
        from factorize.client import load

        found = load(spec, url=url, store=store)
    if automatic and memory is None:
        warn_of_dense(found, "memory=4, say,")
    return found
