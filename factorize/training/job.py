"""A training job before the framework matters: data, batching, privacy and noise."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from secrets import randbits
from typing import Any, Literal

import numpy as np

from factorize.errors import InvalidParameter
from factorize.format.manifest import CertifiedFactors
from factorize.numbers.scalars import check_choice, whole_number
from factorize.privacy import Calibration, PrivacyTarget
from factorize.privacy.adjacency import Adjacency
from factorize.training.auditor import numbered_users
from factorize.training.bin_draws import derived_key


@dataclass(frozen=True)
class Source(ABC):
    """The source of a factorization: the one that a job named, or the one that `auto` asks for.

    Attributes:
        spec: `auto`; or a spec, digest, path or URL for `factorize.client.load`; or a factorization.
        workload: workload of the job's optimizer, for n steps.
        memory: the most vectors of noise state for `auto`; None for any number, and a warning of dense noise.
        bands: number of bands of the C that `auto` asks for; None leaves the mechanism to `auto`.
    """

    spec: Any
    workload: Callable[[int], dict[str, Any]]
    memory: int | None = None
    bands: int | None = None

    def __post_init__(self) -> None:
        """Raise InvalidParameter for bands that take more memory than there is, and for what is no number."""
        for name, value, low in (("memory", self.memory, 0), ("bands", self.bands, 1)):
            if value is not None:
                whole_number(name, value, low=low)
        if self.memory is not None and self.bands is not None and self.bands > self.memory + 1:
            message = f"bands={self.bands} keep {self.bands - 1} vectors of noise state, and memory={self.memory}"
            raise InvalidParameter(f"{message}; leave one of them out", field="memory")

    @property
    def automatic(self) -> bool:
        """Whether `auto` is asked for."""
        return isinstance(self.spec, str) and self.spec == "auto"

    @abstractmethod
    def find(
        self, steps: int, participation: dict[str, Any], amplified: Mapping[str, Any] | None = None
    ) -> CertifiedFactors:
        """Return the factorization for this number of steps.

        Args:
            steps: n.
            participation: participation of the order, in the contract's JSON form.
            amplified: the sampling to optimise for within a memory, in the contract's JSON form.

        Raises:
            InvalidParameter: a memory without `auto`.
        """


@dataclass(frozen=True, kw_only=True)
class JobData:
    """The examples, and the users whose data they are.

    Attributes:
        examples: N.
        users: user of each example, or None.
    """

    examples: int
    users: Sequence[Any] | np.ndarray | None = None

    def __post_init__(self) -> None:
        """Take a number of numpy as Python's, which JSON knows; raise InvalidParameter where it is not whole."""
        object.__setattr__(self, "examples", whole_number("examples", self.examples))

    @cached_property
    def user_numbers(self) -> np.ndarray | None:
        """The number of each example's user, shape (examples,); None where examples are the units."""
        return None if self.users is None else numbered_users(self.users)

    @property
    def units(self) -> int:
        """The number of protected examples, or of users, where there are users."""
        return self.examples if self.user_numbers is None else int(self.user_numbers.max(initial=-1)) + 1


@dataclass(frozen=True, kw_only=True)
class JobBatching:
    """The way in which examples are taken.

    Attributes:
        size: size of a batch, expected where it is random; divisor of the means.
        epochs: passes.
        sampling: name of the law.
        order_seed: public seed of a fixed order.
        remainder: treatment of the examples that fill no batch of a fixed order.
        physical: examples per part.
        overflow: treatment of bins above the capacity; see `factorize.training.bins_order.BallsInBins`.
        ranks: number of processes that train together.
    """

    size: int
    epochs: int
    sampling: str = "fixed"
    order_seed: int = 0
    remainder: Literal["drop", "pad"] = "drop"
    physical: int | None = None
    overflow: Literal["abort", "unlimited"] = "abort"
    ranks: int = 1

    def __post_init__(self) -> None:
        """Take numbers of numpy as Python's, which JSON knows; raise InvalidParameter for what is no setting."""
        check_choice("remainder", self.remainder, ("drop", "pad"))
        check_choice("overflow", self.overflow, ("abort", "unlimited"))
        object.__setattr__(self, "size", whole_number("batch_size", self.size))
        object.__setattr__(self, "epochs", whole_number("epochs", self.epochs))
        object.__setattr__(self, "order_seed", whole_number("order_seed", self.order_seed, low=0))


@dataclass(frozen=True, kw_only=True)
class JobPrivacy:
    """The guarantee that the job asks for.

    Attributes:
        epsilon: the epsilon of (epsilon, delta)-DP.
        delta: the delta of (epsilon, delta)-DP.
        clip_norm: bound on an example's gradient.
        adjacency: `zero_out` or `replace_one`.
    """

    epsilon: float
    delta: float
    clip_norm: float = 1.0
    adjacency: Adjacency | str = Adjacency.ZERO_OUT


@dataclass(frozen=True, kw_only=True)
class JobNoise:
    """The noise that the job asks for.

    Attributes:
        source: source of the factorization.
        seed: secret seed of noise and sampling; None has one drawn.
        calibration: a calibration for this very sampling in bins, None to have it computed.
        adaptive: `plain`; or `joint`, where the squares of gradients have noise of their own.
        second: the factorization for the squares as the caller named it; `auto` asks for the optimum of Adam's second
            moments.
        beta: Adam's beta2.
        generator: generator of the noise. As noise of one seed differs with it, so does a secret order.
    """

    source: Source
    seed: int | None = field(default=None, repr=False)
    calibration: Calibration | None = None
    adaptive: str = "plain"
    second: object = "auto"
    beta: float = 0.999
    generator: str = "sfc64"

    def order_key(self, digest: str) -> bytes:
        """Return the key of the secret order of a run of some factors; see `derived_key`."""
        return derived_key(self.secret, digest if self.generator == "sfc64" else f"{self.generator}{digest}")

    @cached_property
    def secret(self) -> int:
        """The seed, or one that is drawn here."""
        return randbits(128) if self.seed is None else self.seed


@dataclass(frozen=True)
class TrainingJob:
    """The decisions of a job that do not depend on the framework.

    Attributes:
        data: the examples and users.
        batching: the way in which examples are taken.
        privacy: the guarantee.
        noise: the noise.
    """

    data: JobData
    batching: JobBatching
    privacy: JobPrivacy
    noise: JobNoise

    @property
    def target(self) -> PrivacyTarget:
        """The pair of epsilon and delta, as a target."""
        return PrivacyTarget(epsilon=self.privacy.epsilon, delta=self.privacy.delta)

    @property
    def scale(self) -> dict[str, Any]:
        """The options of every calibration of the job, besides its privacy."""
        clip_norm, adjacency = self.privacy.clip_norm, self.privacy.adjacency
        return {"clip_norm": clip_norm, "divisor": self.batching.size, "adjacency": adjacency}
