"""The statement of a private job's guarantee and its basis, for a log or a model card."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from fractions import Fraction
from typing import Any, Literal, get_args

from factorize.accounting.joint_moments import JointMoments
from factorize.errors import InvalidParameter
from factorize.format.manifest import CertifiedFactors, certified
from factorize.format.quantities import at_least, at_most
from factorize.numbers.gaussian import compose_mu, gaussian_epsilon, mu_by_name
from factorize.numbers.scalars import check_choice, check_type, double_above, finite_real, root_above, whole_number
from factorize.privacy import Calibration, check_kind
from factorize.privacy.selection import BestOf
from factorize.training.stopped_run import epsilon_of_first_steps

MAX_MEANINGFUL_EPSILON = 20.0
"""The largest epsilon without a warning: above it a likelihood ratio of e^20, 5 x 10^8, is allowed."""

LossCheck = Literal["per_example", "rehearsed", "per_client", "not_looked_at"]
"""The ways in which a job makes sure that no example changes the gradients of others: by a given loss that returns one
number for each example, by a rehearsal of the first step through the caller's loop, by updates that each client makes
from its own data, or not at all."""

_LOSS_NOTES = {
    "per_example": " The loss function returns one loss for each example, which was checked before the first step.",
    "rehearsed": " A rehearsal of the first step checked the loss.",
    "per_client": " Each client computes its update from its own data, and the server clips it.",
}


@dataclass(frozen=True)
class PrivacyStatement:
    """The guarantee of a job, and its basis.

    Attributes:
        calibration: the noise, with epsilon, delta, mu, rho, adjacency and the sensitivity's kind, rule, participation.
        digest: digest of the factorization.
        steps: n; stopping earlier keeps the guarantee.
        examples: number of examples in the data.
        used: number of examples that the order uses.
        sampling: `fixed`, `cyclic_poisson`, `b_min_sep`, `balls_in_bins`, or `random_allocation`.
        unit: the unit whose data are protected: `example`, or `user`.
        overflow_delta: addition of a limited capacity to the calibration's delta, (1 + e^epsilon) tau.
        ranks: number of processes that train together, each with its share of every batch and of the noise.
        moments: noise of both moments, if the squares of gradients are released with noise of their own.
        users: number of users, where the unit is one.
        replaced: a sentence for each of the caller's settings that the job replaced, or that is far from the best.
        loss: how the job made sure that the loss does not mix examples.
        factors: factors of the run, which give the epsilon of its first steps; None where nobody asks for it.
        others: mu of other runs on the same data, by name.
        trials: number of runs like this one on the same data, all of which are released, this one among them; or the
            law of that number, if this run is the best of a random number and the only one that is seen.
    """

    calibration: Calibration
    digest: str
    steps: int
    examples: int
    used: int
    sampling: str
    unit: str
    _: KW_ONLY
    overflow_delta: float = 0.0
    ranks: int = 1
    moments: JointMoments | None = None
    users: int | None = None
    replaced: tuple[str, ...] = ()
    loss: LossCheck = "not_looked_at"
    factors: CertifiedFactors | None = field(default=None, repr=False, compare=False)
    others: Mapping[str, float] = field(default_factory=dict)
    trials: int | BestOf = 1

    def __post_init__(self) -> None:
        """Refuse what the calibration does not bear out, and other releases without a guarantee.

        Numbers of numpy become Python's, which JSON knows.

        Raises:
            InvalidParameter: a field has another type or unit; the digest is not that of the factors; a number of
                steps, examples, users or ranks is not whole; the way to look at the loss is unknown; the sampling is
                not the calibration's; delta of the capacity is no number >= 0; or there are other releases, but no mu
                or no delta.
        """
        check_kind(self.calibration)
        check_choice("unit", self.unit, ("example", "user"))
        check_type("replaced", self.replaced, tuple, remedy="give a tuple of sentences")
        check_type("digest", self.digest, str, remedy="give factors.digest")
        check_type("sampling", self.sampling, str, remedy="give calibration.sampling")
        if self.moments is not None:
            check_type("moments", self.moments, JointMoments, remedy="give the result of calibrate_moments")
        if self.factors is not None and certified(self.factors).digest != self.digest:
            message = f"the factors are {self.factors.digest}, but digest={str(self.digest)[:64]}; give factors.digest"
            raise InvalidParameter(message, field="digest")
        for name in ("steps", "examples", "used", "ranks", *(["users"] if self.users is not None else [])):
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        check_choice("loss", self.loss, get_args(LossCheck))
        remedy = "give what the capacity of batches adds to delta"
        overflow = finite_real("overflow_delta", self.overflow_delta, strict=False, remedy=remedy)
        object.__setattr__(self, "overflow_delta", overflow)
        if not isinstance(self.trials, BestOf):
            whole_number("trials", self.trials, remedy="give the number of runs, or BestOf(mean)")
        others, search = self.composed, isinstance(self.trials, BestOf)
        if (others or search) and (self.sampling != "fixed" or self.delta is None):
            raise InvalidParameter(
                f"runs compose by mu, from which epsilon follows only with sampling='fixed' and a delta, not with "
                f"sampling={self.sampling!r} and delta={self.delta}; leave out others and trials, and give the receipt "
                "of each run (BestOf.level has the guarantee of the best of them)",
                field="others" if others else "trials",
            )
        if self.sampling != self.calibration.sampling:
            raise InvalidParameter(
                f"sampling={str(self.sampling)[:20]!r}, but the calibration relies on "
                f"{self.calibration.sampling!r}; state calibration.sampling",
                field="sampling",
            )

    @property
    def notes(self) -> list[str]:
        """The facts that a reader of the guarantee should know, one sentence each."""
        notes, epsilon, delta = list(self.replaced), self.calibration.epsilon, self.delta
        units = self.examples if self.users is None else self.users
        if delta is not None and delta * units > 1:
            notes.append(
                f"Warning: delta {at_most(delta)} is above 1/{units}: even publishing one {self.unit}'s data would "
                "satisfy it."
            )
        if epsilon is not None and epsilon > MAX_MEANINGFUL_EPSILON:
            notes.append(
                f"Warning: epsilon {at_most(epsilon)} is above {MAX_MEANINGFUL_EPSILON:g}: it rules out almost no "
                "attack."
            )
        return notes

    @property
    def delta(self) -> float | None:
        """The delta of the guarantee: the calibration's plus the addition of the capacity, rounded up."""
        if self.calibration.delta is None:
            return None
        return double_above(Fraction(self.calibration.delta) + Fraction(self.overflow_delta), "delta")

    @property
    def composed(self) -> dict[str, float]:
        """The mu of all other releases from the same data, by name, with those of the other trials."""
        others = mu_by_name(self.others)
        if isinstance(self.trials, BestOf) or self.trials == 1:
            return others
        more = self.trials - 1
        name = f"{more} more trials"
        if name in others:
            message = f"others contains the name {name!r}, which the other trials have; give it another name"
            raise InvalidParameter(message, field="others")
        return {**others, name: root_above(more * Fraction(self._mu) ** 2, "mu")}

    @property
    def together(self) -> dict[str, float] | None:
        """The guarantee of the run and all other releases together at its delta, or None where there are none.

        For the best of a random number of runs, `mu` is that of one of them with the others.
        """
        others, delta = self.composed, self.delta
        search = self.trials if isinstance(self.trials, BestOf) else None
        if delta is None or (not others and search is None):
            return None
        mu = compose_mu([self._mu, *others.values()])
        epsilon = gaussian_epsilon(delta, mu) if search is None else search.epsilon(delta, self._mu, mu)
        return {"mu": mu, "epsilon": epsilon, "delta": delta}

    @property
    def _mu(self) -> float:
        return float((self.moments or self.calibration).document()["mu"])

    def epsilon_so_far(self, steps: int, delta: float | None = None) -> float:
        """Return epsilon of the first steps, for a run that stops after them.

        It holds if the stop depended neither on the data nor on the releases, for example because of a deadline or
        a machine that is needed elsewhere. A run that stops because its accuracy on public data is good has
        the epsilon of all steps.

        Args:
            steps: number of released steps; for a JAX job the one in its noise state, `int(state.step)`.
            delta: delta of the guarantee; by default that of the statement.

        Raises:
            InvalidParameter: steps that are no number from 0 to n; no delta, or none above `overflow_delta`; or a
                statement without factors.
            UnsupportedProblem: the squares of gradients have noise of their own.
        """
        if self.factors is None:
            raise InvalidParameter(
                "the statement has no factors; give it factors=, or use factors.calibrate(sigma=, delta=, steps=)",
                field="factors",
            )
        noise = (self.moments or self.calibration).document()
        return epsilon_of_first_steps(self.factors, noise, steps, delta, overflow_delta=self.overflow_delta)

    def document(self) -> dict[str, Any]:
        """Return the plain JSON form."""
        left_out = "calibration", "moments", "replaced", "factors", "others", "trials"
        own = {key: value for key, value in vars(self).items() if key not in left_out}
        noise = self.calibration if self.moments is None else self.moments
        more = {} if self.together is None else {"others": self.composed, "together": self.together}
        return {**noise.document(), **own, "delta": self.delta, "notes": self.notes, **more}

    def __str__(self) -> str:
        """Return one paragraph for a log or a model card."""
        c = self.calibration
        together = "" if self.ranks == 1 else f" on {self.ranks} ranks"
        second = ""
        if self.moments is not None:
            sigma = at_least(self.moments.second.sigma_of_sums)
            second = (
                f" Sums of squares of clipped gradients have noise of sigma {sigma} from factorization "
                f"{self.moments.digests[1]}; the sensitivity covers both."
            )
        said = "".join(f" {note}" for note in self.notes)
        unseen = ""
        if self.loss == "not_looked_at":
            unseen = (
                "The loss was not checked: the guarantee holds only if no example changes the gradients of others.\n"
            )
        level = f"{at_most(c.mu)}-Gaussian "
        if c.epsilon is not None and self.delta is not None:
            level = f"({at_most(c.epsilon)}, {at_most(self.delta)})-"
        sums = "no divisor" if c.divisor is None else f"divisor {c.divisor}"
        chosen = "The choice of hyperparameters is not covered."
        if self.together is not None:
            best = f" as the best of {self.trials.mean:g} runs on average" if isinstance(self.trials, BestOf) else ""
            names = f" with {', '.join(self.composed)}" if self.composed else ""
            pair = f"({at_most(self.together['epsilon'])}, {at_most(self.together['delta'])})"
            chosen = f"The data have {pair}-differential privacy{best}{names}; other choices are not covered."
        return (
            f"{unseen}{level}differential privacy per {self.unit}, "
            f"adjacency {c.adjacency.value}, over {self.steps} steps{together} on {self.used} of {self.examples} "
            f"examples ({self.sampling} order, participation {dict(c.sensitivity.participation)}); clip norm "
            f"{at_most(c.clip_norm)}, {sums}, noise multiplier {at_least(c.noise_multiplier)} on sensitivity "
            f"{at_most(c.sensitivity.value)} ({c.sensitivity.kind}: {c.sensitivity.rule}); factorization "
            f"{self.digest}. {chosen} What was computed from the data before the first step, such as initial weights, "
            "means of features or a vocabulary, is not covered either."
            f"{_LOSS_NOTES.get(self.loss, '')}{second}{c.without_secrecy}{said}"
        )
