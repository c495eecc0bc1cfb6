"""The names and parameters of the mechanisms that a spec may name, whether or not a solver of them is installed."""

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from factorize.numbers.scalars import MAX_STEPS
from factorize.plain_data import Count, Fraction, Frozen, Long, NonNegative, Positive, Sha256, UnitInterval

WARNED_STEPS = 128
"""The smallest number of steps at which dense noise gets a warning: with fewer it costs less than ten normals."""

Normalization = Literal["none", "columns", "auto"]
Fitting = Literal["none", "columns", "auto", "fitted"]
"""The normalizations, with `fitted`: each column has the factor that is best under the sampling or for the epochs."""


class Mechanism(Frozen):
    """Base of the mechanisms.

    Attributes:
        unrestricted: whether the family is all lower-triangular matrices, so that the tolerance bounds the gap to the
            certified lower bound; a restricted family is judged within its own class.
        searched: whether its parameters are searched for in a class of which no checker knows a bound, so that only
            double precision can say that the search has converged.
        bounded_in_class: whether the checker knows a bound over its class, by which it is judged.
        eased: whether it is optimised for another workload where it cannot take the one asked for.
        eased_to_sums: whether running sums stand for a workload to which none is easier, as for a Toeplitz C.
        named: whether it is a mechanism, and not `auto`, which stands for one.
    """

    if TYPE_CHECKING:

        @property
        def kind(self) -> str:
            """The name in the contract."""

    unrestricted: ClassVar[bool] = False
    searched: ClassVar[bool] = False
    bounded_in_class: ClassVar[bool] = False
    eased: ClassVar[bool] = False
    eased_to_sums: ClassVar[bool] = False
    named: ClassVar[bool] = True

    @property
    def columns(self) -> str:
        """The scaling of the columns, one of `Fitting`."""
        return getattr(self, "normalization", None) or "none"

    @property
    def fitted(self) -> bool:
        """Whether each column has the factor that is best under the spec's sampling or participation."""
        return self.columns == "fitted"

    @property
    def diagonals(self) -> int | None:
        """The number of diagonals of C, or of C^-1, that are asked for; None where the kind has no such number."""
        return getattr(self, "bands", None)

    @property
    def buffer_count(self) -> int | None:
        """The number of buffers that are asked for; None where the kind has none."""
        return getattr(self, "buffers", None)

    @property
    def tuned(self) -> bool:
        """Whether the parameter of its formula is still to be chosen."""
        return "tune" in vars(self).values()


class Auto(Mechanism):
    """The certified optimum that fits the spec; replaced by its name before the digest is taken."""

    named: ClassVar[bool] = False

    kind: Literal["auto"] = "auto"


class Dense(Mechanism):
    """The optimum over all lower-triangular matrices, stored whole."""

    unrestricted: ClassVar[bool] = True

    kind: Literal["dense"]


class Banded(Mechanism):
    """The optimum over matrices with `bands` diagonals."""

    bounded_in_class: ClassVar[bool] = True
    eased: ClassVar[bool] = True

    kind: Literal["banded"]
    bands: Count


class BufferedLinear(Mechanism):
    """The streaming optimum with `buffers` time-varying buffers.

    Under fixed epochs a step may make again the draws of its class in `redraws` earlier epochs: in all of them if it
    is left out, in none if it is 0.
    """

    searched: ClassVar[bool] = True
    eased: ClassVar[bool] = True

    kind: Literal["buffered_linear"]
    buffers: Count
    redraws: Annotated[int, Field(ge=0, le=MAX_STEPS)] | None = None


class Toeplitz(Mechanism):
    """The best Toeplitz matrix."""

    searched: ClassVar[bool] = True

    kind: Literal["toeplitz"]
    normalization: Fitting = "none"


class BandedToeplitz(Mechanism):
    """The best Toeplitz matrix with `bands` diagonals."""

    searched: ClassVar[bool] = True

    kind: Literal["banded_toeplitz"]
    bands: Count
    normalization: Fitting = "none"


class NuToeplitz(Mechanism):
    """Coefficients of (1 - (1 - nu) x)^(-1/2), for a given nu or the best one (C24)."""

    kind: Literal["nu_toeplitz"]
    nu: Fraction | Literal["tune"]
    normalization: Normalization = "none"


class Spectral(Mechanism):
    """Frequency-domain optimum for a Hessian spectrum, or for strong convexity and smoothness (C24, Theorem 3.1)."""

    kind: Literal["spectral"]
    learning_rate: Positive
    eigenvalues: Annotated[list[Positive], Field(min_length=1), Long] | None = None
    strong_convexity: Positive | None = None
    smoothness: Positive | None = None


class Blt(Mechanism):
    """Buffered linear Toeplitz."""

    searched: ClassVar[bool] = True
    eased: ClassVar[bool] = True
    eased_to_sums: ClassVar[bool] = True

    kind: Literal["blt"]
    buffers: Count
    normalization: Fitting = "none"


class SquareRoot(Mechanism):
    """The square root of the prefix sum."""

    kind: Literal["square_root"]
    normalization: Normalization = "none"


class BandedSquareRoot(Mechanism):
    """The first `bands` diagonals of the square root."""

    kind: Literal["banded_square_root"]
    bands: Count
    normalization: Normalization = "none"


class BandedInverseSquareRoot(Mechanism):
    """The inverse of the first `bands` diagonals of the inverse square root."""

    kind: Literal["banded_inverse_square_root"]
    bands: Count
    normalization: Normalization = "none"


class BandedInverseFractionalRoot(Mechanism):
    """The inverse of the first `bands` diagonals of A^(-gamma), for a given gamma or the best one (gamma-BIFR).

    With gamma = 1/2 it is `banded_inverse_square_root`; with two bands, on prefix sums, `lambda_cgd`.
    """

    kind: Literal["banded_inverse_fractional_root"]
    bands: Count
    gamma: UnitInterval | Literal["tune"]
    normalization: Normalization = "none"


class BandedInverseToeplitz(Mechanism):
    """The best matrix whose inverse is Toeplitz with `bands` diagonals, under a sampling."""

    kind: Literal["banded_inverse_toeplitz"]
    bands: Count
    normalization: Literal["fitted"] | None = None


class Tree(Mechanism):
    """Binary-tree aggregation with one of three decoders."""

    kind: Literal["tree"]
    decoder: Literal["online", "honaker_online", "honaker_full"]
    restart_every: Count | None = None


class Fft(Mechanism):
    """The FFT mechanism of multi-epoch matrix factorization, with its own decoder or the best one for its encoder."""

    kind: Literal["fft"]
    decoder: Literal["circulant", "optimal"] = "circulant"


class AntiPgd(Mechanism):
    """Differences of independent noise, damped or not."""

    kind: Literal["anti_pgd"]
    damping: NonNegative | None = None


class LambdaCgd(Mechanism):
    """Noise z_t - correlation z_{t-1}, for a given correlation or the best one (DP-lambda-CGD)."""

    kind: Literal["lambda_cgd"]
    correlation: UnitInterval | Literal["tune"]


class IdentityMechanism(Mechanism):
    """C = I: independent noise, DP-SGD."""

    kind: Literal["identity"]


class Semidefinite(Mechanism):
    """The conic program solved by CVXPY and SCS, repaired and certified; for small n."""

    unrestricted: ClassVar[bool] = True

    kind: Literal["semidefinite"]


class Added(Mechanism):
    """A strategy of the user's own, named by the sha256 of its raw little-endian float64 bytes; never solved."""

    kind: Literal["added"]
    sha256: Sha256


if TYPE_CHECKING:
    AnyMechanism = Mechanism
else:
    AnyMechanism = Annotated[reduce(or_, Mechanism.__subclasses__()), Field(discriminator="kind")]


class DenseNoise(UserWarning):
    """A warning of noise that needs every earlier row in each step, where nobody asked for that."""


def dense_note(steps: int, instead: str) -> str:
    """Return the cost of noise without a recurrence, and the alternative.

    Args:
        steps: n.
        instead: the way to state a memory at this place.
    """
    return (
        f"the noise of this optimum needs all earlier steps: it keeps or recomputes {steps} vectors of the model's "
        f"size, about {steps} operations per parameter and step; {instead} finds a mechanism that needs a few "
        "vectors, usually with a few percent more error"
    )
