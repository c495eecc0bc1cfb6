"""A training job in numbers: from what is asked for to the factorization, its calibration and the order."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from secrets import randbits
from typing import Any, Literal

import numpy as np

from factorize.accounting import calibrate_sampling
from factorize.accounting.amplification import calibrate_amplified
from factorize.accounting.joint_moments import JointMoments, calibrate_moments
from factorize.adapters.statement import LossCheck, PrivacyStatement
from factorize.auditor import ParticipationAuditor, numbered_users
from factorize.client import load
from factorize.client.normals import secret_seed
from factorize.errors import InvalidParameter
from factorize.format.factors import CertifiedFactors, certified
from factorize.privacy import Adjacency, Calibration, PrivacyTarget, calibrate, check_zero_out
from factorize.spec import parse_spec
from factorize.training.bin_draws import capacity_for, derived_key
from factorize.training.bins import BallsInBins
from factorize.training.bins_audit import BinsAuditor
from factorize.training.noise_memory import spec_within, warn_of_dense
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
    """A factorization, its noise, and the order that both are for.

    Attributes:
        job: what was asked for.
        factors: of C.
        calibration: of its noise.
        order: of the examples.
        overflow_delta: see `PrivacyStatement`.
        second: factors of C2, where the squares of gradients have noise of their own.
        moments: noise of both; `calibration` is that of the first.
    """

    job: TrainingJob
    factors: CertifiedFactors
    calibration: Calibration
    order: AnyOrder
    overflow_delta: float = 0.0
    second: CertifiedFactors | None = None
    moments: JointMoments | None = None

    def auditor(self) -> AnyAuditor:
        """Return the auditor of the order.

        Raises:
            InvalidParameter: users with several examples, where these are sampled.
        """
        users, steps = self.job.users, self.factors.steps
        if not isinstance(self.order, BallsInBins):
            return ParticipationAuditor.of(self.calibration, steps, users=users)
        auditor = BinsAuditor.of(self.order, divisor=self.calibration.divisor)
        if users is not None:  # refuses users with several examples: each example has a bin of its own
            ParticipationAuditor(self.order.participation, steps, users=users, groups=self.order.bins)
            auditor.unit = "user"
        return auditor

    @property
    def strategies(self) -> list[CertifiedFactors]:
        """Factors of C, and of C2 where there is one."""
        return [self.factors] if self.second is None else [self.factors, self.second]

    @property
    def shared(self) -> dict[str, Any]:
        """What has to be the same on all ranks, as plain JSON."""
        job, c = self.job, self.calibration
        batches = {"examples": job.examples, "epochs": job.epochs}
        order = {"order_seed": job.order_seed, "remainder": job.remainder}
        noise = {"sigma_of_sums": c.sigma_of_sums, "clip_norm": c.clip_norm, "divisor": c.divisor}
        return {**batches, **order, "adaptive": job.adaptive, "factorization": self.factors.digest, **noise}

    def statement(self, loss: LossCheck = "not_looked_at") -> PrivacyStatement:
        """Return what the job guarantees; per user, where examples have users.

        Args:
            loss: how the job makes sure that the loss does not mix examples.
        """
        job, factors = self.job, self.factors
        used = len(np.unique(np.concatenate(list(self.order)))) if isinstance(self.order, Order) else job.examples
        unit, users = ("example", None) if job.users is None else ("user", int(numbered_users(job.users).max()) + 1)
        about = factors.digest, factors.steps, job.examples, used, job.sampling, unit
        return PrivacyStatement(
            self.calibration,
            *about,
            self.overflow_delta,
            job.ranks,
            self.moments,
            users,
            loss=loss,
            factors=factors,
        )


@dataclass(frozen=True)
class FactorSource:
    """Where a factorization comes from: the one that a job named, or what `auto` asks for.

    Attributes:
        spec: `auto`; or a spec, digest, path or URL for `factorize.client.load`; or a factorization.
        workload: of the job's optimizer, for n steps.
        memory: vectors of noise state that `auto` may ask for; None for any number, and a warning of dense noise.
        bands: of the C that `auto` asks for; None leaves the mechanism to `auto`.
        url: of a service that solves and serves.
        store: of factorizations.
        solve: `solvers.solve`, to solve in this process what is given as a spec.
    """

    spec: Any
    workload: Callable[[int], dict[str, Any]]
    memory: int | None = None
    bands: int | None = None
    url: str | None = None
    store: str | Path | None = None
    solve: Callable[..., Any] | None = None

    @property
    def automatic(self) -> bool:
        """Whether `auto` is asked for."""
        return isinstance(self.spec, str) and self.spec == "auto"

    def find(
        self, steps: int, participation: dict[str, Any], amplified: Mapping[str, Any] | None = None
    ) -> CertifiedFactors:
        """Return the factorization for so many steps.

        Args:
            steps: n.
            participation: of the order, in the contract's JSON form.
            amplified: the sampling to optimise for within a memory, in the contract's JSON form.

        Raises:
            InvalidParameter: a memory, and no `auto`.
        """
        if self.memory is not None and not self.automatic:
            message = f"memory={self.memory} is for 'auto', and a factorization or a spec is given; leave one out"
            raise InvalidParameter(message, field="memory")
        if isinstance(self.spec, CertifiedFactors):
            return self.spec
        spec = self._asked(steps, participation, amplified) if self.automatic else self.spec
        if self.solve is not None:
            factors = self.solve(parse_spec(spec))
        else:
            factors = load(spec, url=self.url, store=self.store)
        if self.automatic and self.memory is None:
            warn_of_dense(factors, "memory=4, say,")
        return certified(factors)

    def _asked(self, steps: int, participation: dict[str, Any], amplified: Mapping[str, Any] | None) -> dict[str, Any]:
        if self.memory is not None and self.bands is None:
            return spec_within(self.workload(steps), participation, self.memory, amplified)
        banded = {"kind": "identity"} if self.bands == 1 else {"kind": "banded", "bands": self.bands}
        mechanism = {"kind": "auto"} if self.bands is None else banded
        return {"workload": self.workload(steps), "participation": participation, "mechanism": mechanism}


@dataclass(frozen=True)
class TrainingJob:
    """What is decided before the framework matters; the one plan of every `make_private`.

    Attributes:
        examples: N.
        size: of a batch, expected where it is random; divisor of the means.
        epochs: passes.
        epsilon: of (epsilon, delta)-DP.
        delta: of (epsilon, delta)-DP.
        clip_norm: bound on an example's gradient.
        adjacency: `zero_out` or `replace_one`.
        sampling: one of `known`.
        seed: secret, of noise and sampling; None has one drawn.
        order_seed: public, of a fixed order.
        remainder: of a fixed order.
        physical: examples per part.
        source: of the factorization.
        users: of the examples, or None.
        calibration: that counts on this very sampling in bins, None to have it computed.
        adaptive: `plain`; or `joint`, where the squares of gradients have noise of their own.
        second: the factorization for the squares as it was named; `auto` asks for the optimum of Adam's second moments.
        beta: Adam's beta2.
        overflow: of bins; see `factorize.training.bins.BallsInBins`.
        known: the samplings that the framework's loader has.
        ranks: processes that train together.
    """

    examples: int
    size: int
    epochs: int
    epsilon: float
    delta: float
    clip_norm: float
    adjacency: Adjacency | str
    sampling: str
    seed: int | None = field(repr=False)
    order_seed: int
    remainder: Literal["drop", "pad"]
    physical: int | None
    source: FactorSource
    users: Sequence[Any] | np.ndarray | None
    calibration: Calibration | None
    adaptive: str
    second: Any
    beta: float
    overflow: Literal["abort", "unlimited"] = "abort"
    known: tuple[str, ...] = ("fixed", *BINNED)
    ranks: int = 1

    @cached_property
    def secret(self) -> int:
        """The seed, or one that is drawn here."""
        return randbits(128) if self.seed is None else self.seed

    def plan(self) -> Planned:
        """Return factorization, noise and order; what is refused is refused before anything is solved.

        Raises:
            UnsupportedAdjacency: another adjacency than zero-out with bins.
            InvalidParameter: users of other examples, an unknown sampling, a calibration of something else, a seed that
                cannot be secret, ranks without a seed or with a secret order, or a second factorization that nothing
                or no accountant needs.
            InvalidParticipation: the factorization is for another order, or bins do not fit into the capacity.
        """
        sampling, known, users = self.sampling, self.known, self.users
        if users is not None and len(users) != self.examples:
            raise InvalidParameter(f"{len(users)} users for {self.examples} examples; name one for each", field="users")
        if sampling not in known:
            message = f"sampling={str(sampling)[:20]!r} is not one of {', '.join(known)}"
            raise InvalidParameter(message, field="sampling")
        if self.ranks > 1 and self.seed is None:
            message = "every rank has to have the same seed; draw one on rank 0 and send it by broadcast_object_list"
            raise InvalidParameter(message, field="seed")
        if self.ranks > 1 and sampling != "fixed":
            message = f"sampling={sampling!r} is secret, and ranks tell each other their batches; use sampling='fixed'"
            raise InvalidParameter(message, field="sampling")
        if users is not None and sampling != "fixed":  # each example is sampled for itself
            ParticipationAuditor({"kind": "single"}, 1, users=users, groups=1)
        if self.seed is not None:
            secret_seed(self.seed, self.order_seed)
        squares = self._squares()
        if sampling in BINNED:
            return self._in_bins()
        if self.calibration is not None:
            message = (
                f"calibration= is for sampling in {' or '.join(BINNED)}; with {sampling!r} the job's own is computed"
            )
            raise InvalidParameter(message, field="calibration")
        return self._fix(squares) if sampling == "fixed" else self._cyclic_poisson()

    @property
    def _scale(self) -> dict[str, Any]:
        """What every calibration of the job is for, beside its privacy."""
        return {"clip_norm": self.clip_norm, "divisor": self.size, "adjacency": self.adjacency}

    def _squares(self) -> FactorSource | None:
        """Return where the factorization for the squares of gradients comes from; None where they have no noise.

        Raises:
            InvalidParameter: an unknown way, one that is contradicted, or an order other than a fixed one.
        """
        automatic = isinstance(self.second, str) and self.second == "auto"
        if self.adaptive not in ("plain", "joint"):
            message = f"adaptive={str(self.adaptive)[:20]!r} is not known; use plain or joint"
            raise InvalidParameter(message, field="adaptive")
        if self.adaptive == "plain":
            if automatic:
                return None
            message = "second= is the factorization for squares of gradients; adaptive='plain' has none, leave it out"
            raise InvalidParameter(message, field="second")
        if self.sampling != "fixed":
            raise InvalidParameter(
                f"sampling={self.sampling!r} has no accountant for two moments together; use "
                "sampling='fixed', or adaptive='plain', where second moments are made of noisy gradients",
                field="sampling",
            )
        memory, workload = self.source.memory if automatic else None, partial(adam_workload, "moment", self.beta)
        return replace(self.source, spec=self.second, workload=workload, memory=memory, bands=None)

    def _fix(self, squares: FactorSource | None) -> Planned:
        """Plan the same public batches in every epoch."""
        seed, remainder = self.order_seed, self.remainder
        order = fixed_order(self.examples, self.size, epochs=self.epochs, seed=seed, remainder=remainder)
        taking_part = order if self.users is None else order.of_users(numbered_users(self.users))
        if self.source.automatic:
            taking_part.check(order.participation)
        factors = self.source.find(len(order), order.participation)
        target = PrivacyTarget(epsilon=self.epsilon, delta=self.delta)
        if squares is None:
            planned = Planned(self, factors, calibrate(factors.sensitivity, target, **self._scale), order)
        else:
            second = squares.find(len(order), order.participation)
            moments = calibrate_moments(factors, second, target, **self._scale)
            planned = Planned(self, factors, moments.first, order, second=second, moments=moments)
        taking_part.check(planned.calibration.sensitivity.participation, factors.steps)
        return planned

    def _cyclic_poisson(self) -> Planned:
        """Plan batches sampled anew in every step, for a banded C."""
        source = self.source
        if source.bands is None and source.memory is not None:
            source = replace(source, bands=source.memory + 1)
        if source.bands is None and source.automatic:
            message = "cyclic sampling needs to know how many bands C may have; give bands=, or a banded factorization"
            raise InvalidParameter(message, field="bands")
        single = source.bands is None or source.bands == 1
        participation = {"kind": "single"} if single else {"kind": "min_sep", "min_sep": source.bands}
        steps = self.epochs * max(1, self.examples // self.size)
        factors = source.find(steps, participation)
        law: dict[str, Any] = {"epsilon": self.epsilon, "delta": self.delta, "dataset_size": self.examples}
        calibration = calibrate_amplified(factors, **law, batch_size=self.size, **self._scale)
        order = CyclicPoisson(self.examples, calibration, steps=steps, seed=self.secret ^ _SAMPLING)
        order.check(calibration.sensitivity.participation, factors.steps)
        return Planned(self, factors, calibration, order)

    def _in_bins(self) -> Planned:
        """Plan the secret order in which each example draws its bin once, or in every epoch anew."""
        epsilon, delta, sampling = self.epsilon, self.delta, self.sampling
        bins, physical, capacity = max(1, self.examples // self.size), self.physical, None
        check_zero_out(self.adjacency)
        if self.overflow == "abort":
            draws = 1 if sampling == "balls_in_bins" else self.epochs
            tau = delta / _OVERFLOW_SHARE / (1 + float(np.exp(min(epsilon, 700.0)))) / draws
            capacity = capacity_for(self.examples, bins, physical_batch=physical or 1, tau=tau)
            physical = physical or capacity
        source = replace(self.source, bands=1) if sampling == "random_allocation" else self.source
        amplified = {"kind": "balls_in_bins", "epsilon": epsilon, "delta": delta}
        once = {"kind": "single"} if self.epochs == 1 else {"kind": "fixed_epochs", "epochs": self.epochs}
        factors = source.find(bins * self.epochs, once, amplified)
        key = derived_key(self.secret, factors.digest)
        room: dict[str, Any] = {"physical_batch": physical, "capacity": capacity, "overflow": self.overflow}
        order = _ORDERS[sampling](self.examples, bins, self.epochs, key, **room)
        extra = order.extra_delta(epsilon)
        left = math.nextafter(delta - extra, 0.0)  # so that both together are delta at most
        calibration: Any = self.calibration
        if calibration is None:
            target = PrivacyTarget(epsilon=epsilon, delta=left)
            calibration = calibrate_sampling(factors, target, sampling=sampling, bins=bins, **self._scale)
        order.check_calibration(calibration, factors.steps)
        self._check_calibration(calibration, left)
        return Planned(self, factors, calibration, order, extra)

    def _check_calibration(self, calibration: Any, left: float) -> None:
        """Refuse a calibration for less privacy, another clip norm or another divisor than asked for."""
        if calibration.epsilon > self.epsilon or calibration.delta > left:
            raise InvalidParameter(
                f"the calibration is for ({calibration.epsilon:g}, {calibration.delta!r}), and the target leaves "
                f"({self.epsilon:g}, {left!r}) beside what the capacity costs; calibrate for that",
                field="calibration",
            )
        for name in ("clip_norm", "divisor"):
            own, stated = self._scale[name], getattr(calibration, name)
            if own != stated:
                message = f"the calibration is for {name}={stated}, the job has {own}; calibrate for the job's"
                raise InvalidParameter(message, field=name)


def adam_workload(output: Literal["iterate", "moment"], beta: float, steps: int) -> dict[str, Any]:
    """Return the workload of Adam's second moments, or of its iterate where these stay the same.

    Args:
        output: `iterate` or `moment`.
        beta: beta1 of an iterate, beta2 of moments.
        steps: n.
    """
    return {"kind": "adam", "n": steps, "beta": float(beta), "output": output}


def second_seed(seed: int) -> int:
    """Return the seed of the second moments' noise: another one, also where both moments have one factorization."""
    named = b"factorize second moments " + str(int(seed)).encode()
    return int.from_bytes(hashlib.shake_256(named).digest(16), "little")


def check_floor(floor: float) -> float:
    """Return the floor of roots of second moments.

    Raises:
        InvalidParameter: it is not positive and finite.
    """
    if not 0 < floor < float("inf"):
        raise InvalidParameter(f"floor={floor!r} is not a positive number; give one, 1e-3 say", field="floor")
    return float(floor)
