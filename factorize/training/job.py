"""A training job as it is asked for, before the framework matters: data, batching, privacy and noise."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from secrets import randbits
from typing import Any, Literal

import numpy as np

from factorize.auditor import numbered_users
from factorize.format.manifest import CertifiedFactors
from factorize.privacy import Calibration, PrivacyTarget
from factorize.privacy.adjacency import Adjacency


@dataclass(frozen=True)
class Source(ABC):
    """Where a factorization comes from: the one that a job named, or what `auto` asks for.

    Attributes:
        spec: `auto`; or a spec, digest, path or URL for `factorize.client.load`; or a factorization.
        workload: of the job's optimizer, for n steps.
        memory: vectors of noise state that `auto` may ask for; None for any number, and a warning of dense noise.
        bands: of the C that `auto` asks for; None leaves the mechanism to `auto`.
    """

    spec: Any
    workload: Callable[[int], dict[str, Any]]
    memory: int | None = None
    bands: int | None = None

    @property
    def automatic(self) -> bool:
        """Whether `auto` is asked for."""
        return isinstance(self.spec, str) and self.spec == "auto"

    @abstractmethod
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


@dataclass(frozen=True, kw_only=True)
class JobData:
    """Whose data they are.

    Attributes:
        examples: N.
        users: of the examples, or None.
    """

    examples: int
    users: Sequence[Any] | np.ndarray | None = None

    @cached_property
    def user_numbers(self) -> np.ndarray | None:
        """Number of each example's user, shape (examples,); None where examples are the units."""
        return None if self.users is None else numbered_users(self.users)

    @property
    def units(self) -> int:
        """How many examples are protected; or how many users, where there are users."""
        return self.examples if self.user_numbers is None else int(self.user_numbers.max(initial=-1)) + 1


@dataclass(frozen=True, kw_only=True)
class JobBatching:
    """How the examples are taken.

    Attributes:
        size: of a batch, expected where it is random; divisor of the means.
        epochs: passes.
        sampling: name of the law.
        order_seed: public, of a fixed order.
        remainder: of a fixed order.
        physical: examples per part.
        overflow: of bins; see `factorize.training.bins_order.BallsInBins`.
        ranks: processes that train together.
    """

    size: int
    epochs: int
    sampling: str = "fixed"
    order_seed: int = 0
    remainder: Literal["drop", "pad"] = "drop"
    physical: int | None = None
    overflow: Literal["abort", "unlimited"] = "abort"
    ranks: int = 1


@dataclass(frozen=True, kw_only=True)
class JobPrivacy:
    """What is guaranteed.

    Attributes:
        epsilon: of (epsilon, delta)-DP.
        delta: of (epsilon, delta)-DP.
        clip_norm: bound on an example's gradient.
        adjacency: `zero_out` or `replace_one`.
    """

    epsilon: float
    delta: float
    clip_norm: float = 1.0
    adjacency: Adjacency | str = Adjacency.ZERO_OUT


@dataclass(frozen=True, kw_only=True)
class JobNoise:
    """What noise there is.

    Attributes:
        source: of the factorization.
        seed: secret, of noise and sampling; None has one drawn.
        calibration: that counts on this very sampling in bins, None to have it computed.
        adaptive: `plain`; or `joint`, where the squares of gradients have noise of their own.
        second: the factorization for the squares as it was named; `auto` asks for the optimum of Adam's second moments.
        beta: Adam's beta2.
    """

    source: Source
    seed: int | None = field(default=None, repr=False)
    calibration: Calibration | None = None
    adaptive: str = "plain"
    second: object = "auto"
    beta: float = 0.999

    @cached_property
    def secret(self) -> int:
        """The seed, or one that is drawn here."""
        return randbits(128) if self.seed is None else self.seed


@dataclass(frozen=True)
class TrainingJob:
    """What is decided before the framework matters.

    Attributes:
        data: whose.
        batching: how they are taken.
        privacy: what is guaranteed.
        noise: what noise there is.
    """

    data: JobData
    batching: JobBatching
    privacy: JobPrivacy
    noise: JobNoise

    @property
    def target(self) -> PrivacyTarget:
        """Epsilon and delta."""
        return PrivacyTarget(epsilon=self.privacy.epsilon, delta=self.privacy.delta)

    @property
    def scale(self) -> dict[str, Any]:
        """What every calibration of the job is for, beside its privacy."""
        clip_norm, adjacency = self.privacy.clip_norm, self.privacy.adjacency
        return {"clip_norm": clip_norm, "divisor": self.batching.size, "adjacency": adjacency}
