"""Plans of training jobs: from a job's settings to the factorization, its noise, the order and its auditor."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from factorize.client import load
from factorize.errors import InvalidParameter
from factorize.format.manifest import CertifiedFactors, certified
from factorize.noise.normals import secret_seed
from factorize.numbers.scalars import check_choice, check_type
from factorize.samplings import SAMPLINGS
from factorize.samplings.base import Drawn, Sampling
from factorize.spec import SpecSource, parse_spec
from factorize.training.auditor import Auditor
from factorize.training.job import Source, TrainingJob
from factorize.training.noise_memory import spec_within, warn_of_dense
from factorize.training.orders import take_turns
from factorize.training.receipt import Receipt, refuse_no_receipt
from factorize.training.statement import LossCheck, PrivacyStatement


@dataclass(frozen=True, kw_only=True)
class Planned(Drawn):
    """The plan of a job, with its auditor.

    Attributes:
        job: the settings of the job.
        auditor: auditor of the order.
    """

    job: TrainingJob
    auditor: Auditor

    @property
    def strategies(self) -> list[CertifiedFactors]:
        """The factors of C, and of C2 if there is one."""
        return [self.factors] if self.second is None else [self.factors, self.second]

    @property
    def shared(self) -> dict[str, object]:
        """The values that must be the same on all ranks, as plain JSON."""
        job, c = self.job, self.calibration
        users = job.data.user_numbers
        whose = None if users is None else hashlib.sha256(users.tobytes()).hexdigest()
        batches = {"examples": job.data.examples, "users": whose, "epochs": job.batching.epochs}
        order = {"order_seed": job.batching.order_seed, "remainder": job.batching.remainder}
        noise = {"sigma_of_sums": c.sigma_of_sums, "clip_norm": c.clip_norm, "divisor": c.divisor}
        seed = hashlib.sha512(f"factorize job {job.noise.secret}".encode()).hexdigest()
        plan = {"adaptive": job.noise.adaptive, "factorization": self.factors.digest, "seed": seed}
        return {**batches, **order, **plan, **noise}

    def begin(self, receipt: Receipt, statement: PrivacyStatement, *, process: int, **noise: Any) -> None:
        """Begin or continue the receipt of the job; see `Receipt.begin`, which takes what `noise` says of the noise.

        Args:
            receipt: the receipt, which the first process of the job writes.
            statement: guarantee of the job.
            process: number of this process.
            **noise: the noise.

        Raises:
            InvalidParameter: it is no receipt, such as the path of one.
        """
        refuse_no_receipt(receipt)
        if process == 0:
            receipt.begin(statement, self.strategies, self.auditor, **noise)
        else:
            receipt.leave_to_first()

    def statement(self, loss: LossCheck = "not_looked_at") -> PrivacyStatement:
        """Return the guarantee of the job; per user, if examples have users.

        Args:
            loss: how the job makes sure that the loss does not mix examples.
        """
        data, batching = self.job.data, self.job.batching
        return PrivacyStatement(
            self.calibration,
            self.factors.digest,
            steps=self.factors.steps,
            examples=data.examples,
            used=self.order.used(data.examples),
            sampling=batching.sampling,
            unit="example" if data.users is None else "user",
            overflow_delta=self.overflow_delta,
            ranks=batching.ranks,
            moments=self.moments,
            users=None if data.users is None else data.units,
            loss=loss,
            factors=self.factors,
        )


@dataclass(frozen=True)
class FactorSource(Source):
    """A factorization that a job named, or one that is solved for it.

    Attributes:
        url: address of a service that solves and serves.
        store: the store of factorizations.
        solve: `solvers.solve`, to solve a spec in this process.
    """

    url: str | None = None
    store: str | Path | None = None
    solve: Callable[..., Any] | None = None

    def find(
        self, steps: int, participation: dict[str, Any], amplified: Mapping[str, Any] | None = None
    ) -> CertifiedFactors:
        """Return the named factorization, or load or solve the one that is asked for."""
        self.refuse_unused(memory=self.memory)
        if not self.automatic:
            factors = self.spec if isinstance(self.spec, CertifiedFactors) else self._solve_or_load(self.spec)
            own = None if self.bands is None else factors.opened().matrix.bandwidth()
            if own != self.bands:
                message = f"bands={str(self.bands)[:20]}, but C of the given factorization has {own}; leave bands out"
                raise InvalidParameter(message, field="bands")
            return factors
        factors = self._solve_or_load(self._asked(steps, participation, amplified))
        if self.memory is None:
            warn_of_dense(factors, "memory=4, say,")
        return factors

    def refuse_unused(self, **settings: object) -> None:
        """Raise InvalidParameter for settings of 'auto' beside a factorization or a spec, where they have no effect."""
        for name, given in settings.items():
            if given is not None and not self.automatic:
                message = f"{name}={str(given)[:20]} is for 'auto', but a factorization or a spec was given"
                raise InvalidParameter(f"{message}; leave one out", field=name)

    def _solve_or_load(self, spec: SpecSource) -> CertifiedFactors:
        """Return a factorization from a cache, a store, a service or the given function."""
        if self.solve is not None:
            check_type("solve", self.solve, Callable, remedy="give solve=factorize.solve, or leave it out")
            return certified(self.solve(parse_spec(spec)))
        try:
            return certified(load(spec, url=self.url, store=self.store))
        except InvalidParameter as error:
            if not self.automatic or error.field != "source":
                raise
            message = f"{error}; or give solve=factorize.solve to solve it here"
            raise InvalidParameter(message, field="solve") from None

    def _asked(
        self, steps: int, participation: dict[str, object], amplified: Mapping[str, object] | None
    ) -> dict[str, object]:
        if self.memory is not None and self.bands is None:
            return spec_within(self.workload(steps), participation, self.memory, amplified)
        banded = {"kind": "identity"} if self.bands == 1 else {"kind": "banded", "bands": self.bands}
        mechanism = {"kind": "auto"} if self.bands is None else banded
        return {"workload": self.workload(steps), "participation": participation, "mechanism": mechanism}


def samplings_of(*, padded: bool) -> tuple[str, ...]:
    """Return the samplings that jobs may name; those in parts of one shape, if the framework needs them."""
    return tuple(name for name, law in SAMPLINGS.items() if name == law.trained_as and (law.padded or not padded))


def plan(job: TrainingJob, known: tuple[str, ...]) -> Planned:
    """Return factorization, noise, order and auditor; refuse before anything is solved.

    Args:
        job: the settings of the job.
        known: the samplings of the framework's loader.

    Raises:
        UnsupportedAdjacency: another adjacency than zero-out with bins.
        InvalidParameter: numbers that are not whole, users of other examples, an unknown sampling, a calibration of
            something else, a seed that cannot be secret, ranks without a seed or with a secret order, or a second
            factorization that is not needed or has no accountant.
        InvalidParticipation: the factorization is for another order, or bins do not fit into the capacity.
    """
    data, name, ranks = job.data, job.batching.sampling, job.batching.ranks
    if data.user_numbers is not None and len(data.user_numbers) != data.examples:
        message = f"users names {len(data.user_numbers)} users for {data.examples} examples; name one per example"
        raise InvalidParameter(message, field="users")
    check_choice("sampling", name, known)
    sampling = SAMPLINGS[name]
    if ranks > 1 and job.noise.seed is None:
        message = "every rank needs the same seed; draw one on rank 0 and send it by broadcast_object_list"
        raise InvalidParameter(message, field="seed")
    if ranks > 1 and sampling.drawn:
        message = f"sampling={name!r} is secret, but ranks share their batches; use sampling='fixed'"
        raise InvalidParameter(message, field="sampling")
    if data.units < job.batching.size and data.users is not None:
        message = f"a batch takes one example per user, and {data.units} users cannot fill {job.batching.size}"
        raise InvalidParameter(f"{message}; use smaller batches", field="batch_size")
    if job.noise.seed is not None:
        secret_seed(job.noise.seed, job.batching.order_seed)
    if sampling.drawn and job.batching.remainder == "pad":
        message = f"remainder='pad' is for a fixed order; sampling={name!r} draws from all examples, so leave it out"
        raise InvalidParameter(message, field="remainder")
    squares = _squares(job, sampling)
    if job.noise.calibration is not None and "bins" not in sampling.takes:
        taking = ", ".join(each for each, one in SAMPLINGS.items() if "bins" in one.takes)
        message = f"calibration= is only for sampling {taking}; with sampling={name!r} the job computes its own"
        raise InvalidParameter(message, field="calibration")
    drawn = sampling.plan(job, squares)
    auditor = sampling.auditor(drawn, data.users)
    if data.users is not None:
        drawn = replace(drawn, order=take_turns(drawn.order, data.users, seed=job.batching.order_seed))
    return Planned(**vars(drawn), job=job, auditor=auditor)


def _squares(job: TrainingJob, sampling: Sampling) -> Source | None:
    """Return the source of the factorization for the squares of gradients; None where they have no noise.

    Raises:
        InvalidParameter: an unknown way, one that other settings contradict, or an order other than a fixed one.
    """
    noise = job.noise
    automatic = isinstance(noise.second, str) and noise.second == "auto"
    check_choice("adaptive", noise.adaptive, ("plain", "joint"))
    if noise.adaptive == "plain":
        if automatic:
            return None
        message = "second= factors the squares of gradients, which adaptive='plain' does not release; leave it out"
        raise InvalidParameter(message, field="second")
    if sampling.drawn:
        raise InvalidParameter(
            f"sampling={sampling.name!r} has no accountant for two moments; use sampling='fixed', or "
            "adaptive='plain', which computes second moments from noisy gradients",
            field="sampling",
        )
    memory, workload = noise.source.memory if automatic else None, partial(adam_workload, "moment", noise.beta)
    return replace(noise.source, spec=noise.second, workload=workload, memory=memory, bands=None)


def adam_workload(output: Literal["iterate", "moment"], beta: float, steps: int) -> dict[str, object]:
    """Return the workload of Adam's second moments, or of its iterate if the second moments stay the same.

    Args:
        output: `iterate` or `moment`.
        beta: beta1 of an iterate, beta2 of moments.
        steps: n.
    """
    return {"kind": "adam", "n": steps, "beta": float(beta), "output": output}


def second_seed(seed: int) -> int:
    """Return another seed for the second moments' noise, which is needed if both moments have one factorization."""
    named = b"factorize second moments " + str(int(seed)).encode()
    return int.from_bytes(hashlib.shake_256(named).digest(16), "little")


def check_floor(floor: float) -> float:
    """Return the smallest root of second moments.

    Raises:
        InvalidParameter: it is not positive and finite.
    """
    if not 0 < floor < float("inf"):
        raise InvalidParameter(f"floor={floor!r} is not a positive number; give 1e-3, for example", field="floor")
    return float(floor)
