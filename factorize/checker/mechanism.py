"""The mechanism that the spec names, and whether C is a matrix of it by its stored numbers.

A class (banded, Toeplitz, buffers) is decided by the bits. A formula (square roots, differences, trees, Fourier) is
compared in double precision, up to 1e-9 and n roundings of the stored type: a formula decides the name of the result,
and neither its sensitivity nor its losses. That a member is the best of its class is another claim
(`convergence`).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from factorize.checker.arithmetic.balls import nearest
from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.losses import series
from factorize.checker.losses.products import toeplitz_array
from factorize.checker.spec.workloads import toeplitz_column
from factorize.checker.strategy import MAX_N_COMPUTED, Strategy
from factorize.encoding import tensor_digest

FORMULAS = ("square_root", "banded_square_root", "banded_inverse_square_root", "anti_pgd", "identity", "tree", "fft")
"""The mechanisms with nothing to optimise."""
FORMULA_PARAMETERS = {"nu_toeplitz": "nu", "banded_inverse_fractional_root": "gamma", "lambda_cgd": "correlation"}
"""The parameter of each other mechanism that is a formula where the spec states a number for it."""
_ANY_COLUMNS = ("dense", "semidefinite", "added", "banded", "buffered_linear")
"""The classes that are closed under scaling of columns."""
_UNIT = {"float64": 2.0**-53, "float32": 2.0**-24}
_RELATIVE_TOLERANCE = 1e-9  # The tolerance of a stored number, besides roundings.
_RATIO_UNDERFLOW = 1e-30  # The most that underflow may take, relative to the first coefficient.


@dataclass(frozen=True)
class Named:
    """A matrix C with the canonical spec that names its mechanism, the type in which it is stored, and its tensors."""

    spec: Mapping[str, Any]
    strategy: Strategy
    dtype: str
    parts: Mapping[str, np.ndarray]

    @property
    def mechanism(self) -> Mapping[str, Any]:
        """The mechanism of the spec."""
        return dict(self.spec["mechanism"])

    @property
    def bands(self) -> int:
        """The number of diagonals that the mechanism allows."""
        return int(self.mechanism.get("bands") or self.strategy.n)

    @property
    def near(self) -> float:
        """The relative difference that is allowed."""
        return _RELATIVE_TOLERANCE + 4 * self.strategy.n * _UNIT[self.dtype]

    @property
    def ratios(self) -> np.ndarray:
        """The first column of a Toeplitz C in units of its first entry, without the columns' factors."""
        _toeplitz(self)
        column = self.strategy.reading.near_columns(np.zeros(1, dtype=np.int64)).values[:, 0]
        return np.asarray(column / column[0])

    @property
    def workload(self) -> np.ndarray:
        """The first column of the Toeplitz workload from which the formula is derived."""
        column = toeplitz_column(self.spec.get("optimize_for") or self.spec["workload"])
        if column is None:
            raise NotEnclosed("the formula needs a Toeplitz workload, and this one is not known to be Toeplitz")
        return nearest(column)[: self.strategy.n]


class Contradiction(Exception):
    """C is no matrix of the mechanism."""


def belongs(named: Named) -> str:
    """Return in words what is proved of C and the mechanism.

    Raises:
        Contradiction: C is no matrix of that mechanism.
        NotEnclosed: this checker cannot decide it.
    """
    mechanism = named.mechanism
    kind = mechanism["kind"]
    if kind not in _RULES:
        raise NotEnclosed(f"this checker has no rule for the mechanism {str(kind)[:40]!r}")
    normalised = "" if kind in _ANY_COLUMNS else _columns(named, mechanism.get("normalization", "none"))
    with np.errstate(over="ignore", invalid="ignore"):  # A number that is not finite is near no formula.
        rule = _RULES[kind](named)
    return f"C is of the mechanism {kind}: {rule}{normalised}"


def belongs_endless(mechanism: Mapping[str, Any], structure: str, parts: Mapping[str, np.ndarray]) -> str:
    """Return in words what is proved of a C without end and the mechanism; see `belongs`."""
    if structure != mechanism["kind"]:
        raise Contradiction(f"it is stored as {structure}")
    if structure == "blt" and len(parts["theta"]) <= mechanism["buffers"]:
        return f"C has {len(parts['theta'])} of at most {mechanism['buffers']} buffers"
    if structure == "nu_toeplitz" and parts["nu"].tolist() == [mechanism["nu"]]:
        return f"C has the parameter nu = {mechanism['nu']!r}"
    raise Contradiction("its parameters are not those of the mechanism")


def _columns(named: Named, normalization: str) -> str:
    """Check that columns have factors only where they may, and equal norms where they must."""
    scale = named.strategy.scale
    if normalization == "fitted":
        return ", its columns with factors of their own"
    if normalization == "none" and scale is not None:
        raise Contradiction("its columns have factors, but the mechanism is not normalised")
    if normalization == "columns" or scale is not None:
        squares = named.strategy.column_norms.values
        if not np.ptp(squares) <= 2 * named.near * squares.max() < math.inf:
            raise Contradiction("its columns have different norms, but the mechanism is normalised")
        return ", its columns of equal norm"
    return ""


def _any(_named: Named) -> str:
    return "its class holds every lower-triangular matrix"


def _added(named: Named) -> str:
    strategy, stored = named.strategy, list(named.parts.values())
    exact = strategy.n <= MAX_N_COMPUTED and strategy.scale is None  # Bands and coefficients are entries of the array.
    whole = [strategy.reading.near_columns(np.arange(strategy.n)).values] if exact else stored
    if named.dtype == "float64" and named.mechanism["sha256"] in (tensor_digest(stored), tensor_digest(whole)):
        return "its bytes, or those of the array that it is, hash to the sha256 that the mechanism names"
    if set(named.parts) != {""} or named.dtype != "float64":
        raise NotEnclosed(
            "a strategy named by the hash of its whole array is checked only if that array is stored or exact"
        )
    raise Contradiction("its bytes do not hash to the sha256 that the mechanism names")


def _banded(named: Named) -> str:
    if named.strategy.bandwidth > named.bands:
        raise Contradiction(f"it has {named.strategy.bandwidth} diagonals, but the mechanism has {named.bands}")
    return f"it has at most {named.bands} diagonals"


def _toeplitz(named: Named) -> str:
    if named.strategy.reading.series is None:
        raise Contradiction("it is not Toeplitz")
    return "it is Toeplitz"


def _banded_toeplitz(named: Named) -> str:
    return f"{_toeplitz(named)}, and {_banded(named)}"


def _blt(named: Named) -> str:
    if named.strategy.structure != "blt":
        raise Contradiction(f"it is stored as {named.strategy.structure}, not by decays and scales")
    return _states(named, len(named.parts["theta"]))


def _buffered(named: Named) -> str:
    redraws, parts = named.mechanism.get("redraws"), named.parts
    if "output" not in parts:
        raise Contradiction(f"it is stored as {named.strategy.structure}, not by buffers")
    if redraws is not None and len(parts.get("direct", "C")) - 1 > redraws:
        raise Contradiction(f"it makes more earlier draws again than the mechanism's {redraws}")
    return _states(named, parts["output"].shape[1])


def _states(named: Named, states: int) -> str:
    if states > named.mechanism["buffers"]:
        raise Contradiction(f"it has {states} buffers, but the mechanism has {named.mechanism['buffers']}")
    return f"it has {states} of at most {named.mechanism['buffers']} buffers"


def _identity(named: Named) -> str:
    if named.strategy.reading.series is None or named.strategy.bandwidth > 1:
        raise Contradiction("it is not a multiple of the identity")
    return "it is a multiple of the identity"


def _binomial(named: Named, power: float) -> str:
    """Compare C with (1 - r x)^-p, where the mechanism states r, or the second coefficient determines it."""
    mechanism, ratios = named.mechanism, named.ratios
    kept = mechanism.get("correlation")
    if kept is None:
        damping = mechanism.get("nu", mechanism.get("damping") or 0.0)
        kept = damping if isinstance(damping, str) else 1.0 - damping
    if isinstance(kept, str):
        kept = float(ratios[1]) / power if len(ratios) > 1 else 0.0
    if not 0 <= kept <= 1 + named.near:
        raise Contradiction(f"it correlates by {kept!r}, outside [0, 1]")
    formula, steps = f"(1 - {kept!r} x)^-{power:g}", np.arange(1, len(ratios))
    with np.errstate(under="ignore"):
        formula_ratios = np.cumprod(np.append(1.0, kept * (steps - 1 + power) / steps))
        off = np.abs(ratios - formula_ratios)
        far = ~(off <= named.near * formula_ratios + _RATIO_UNDERFLOW)  # It is true for NaN.
    if far.any():
        at = int(np.argmax(far))
        raise Contradiction(f"its coefficient {at} differs from the formula {formula} by {off[at]:.3g}")
    return f"its coefficients are {formula}"


def _square_root_of_bands(named: Named) -> str:
    _check_power(named, named.ratios[: named.bands], 0.5)
    return f"{_banded(named)}, and their square is the workload's series"


def _check_power(named: Named, few: np.ndarray, power: float | None = None) -> float:
    """Compare first coefficients with those of the workload's series to a power, by default the one that fits c_1.

    The power m = a^p has m_0 = a_0 = 1 and a m' = p a' m, and no other series has both.
    """
    workload = named.workload[: len(few)] / named.workload[0]
    if power is None:
        power = float(few[1] / workload[1]) if len(few) > 1 and workload[1] else 0.0
    if len(few) > 1:
        t = np.arange(1, len(few))
        slopes = series.approximate_product(workload[:-1], t * few[1:])
        others = series.approximate_product(t * workload[1:], few[:-1])
        formula = power * others / t
        off = float(np.abs(slopes / t - formula).max())
        if not off <= named.near * max(1.0, float(np.abs(formula).max())) < math.inf:
            raise Contradiction(f"its coefficients differ from the formula by {off:.3g}")
    return power


def _banded_inverse_root(named: Named) -> str:
    noising, gamma = series.approximate_inverse(named.ratios), named.mechanism.get("gamma", 0.5)
    if not (np.abs(noising[named.bands :]) <= named.near).all():
        raise NotEnclosed("more diagonals of C^-1 than the mechanism has are not nearly 0 in double precision")
    power = _check_power(named, noising[: named.bands], None if isinstance(gamma, str) else -gamma)
    if not -named.near <= -power <= 1 + named.near:
        raise Contradiction(f"its power is {-power!r}, outside [0, 1]")
    return f"C^-1 has at most {named.bands} diagonals, those of the workload's series to the power {power:.6g}"


def _banded_inverse_toeplitz(named: Named) -> str:
    if named.strategy.structure != "inverse_banded_toeplitz":
        raise Contradiction("it is not stored by the diagonals of its inverse")
    taps = len(named.parts["inverse_coefficients"])
    if taps > named.bands:
        raise Contradiction(f"C^-1 has {taps} diagonals, but only {named.bands} are allowed")
    return f"C^-1 is Toeplitz with {taps} of at most {named.bands} diagonals"


def _tree(named: Named) -> str:
    mechanism, n = named.mechanism, named.strategy.n
    restart = int(named.parts["tree.restart"][0]) if "tree.restart" in named.parts else 0
    if restart != min(mechanism.get("restart_every") or n, n):
        raise Contradiction("it is not a tree of that many leaves")
    if mechanism["decoder"] != "honaker_full":
        nodes = _completed(restart, n, honaker=mechanism["decoder"] == "honaker_online")
        off = float(np.abs(named.parts["tree.nodes"] - nodes).max())
    elif n > MAX_N_COMPUTED:
        raise NotEnclosed(f"the Gram matrix of all nodes is formed up to n={MAX_N_COMPUTED}")
    else:
        array = named.strategy.near_columns(np.arange(n)).values
        off = float(np.abs(array.T @ array - _all_nodes(restart, n)).max())
    if not off <= named.near * 64:
        raise Contradiction(f"it differs from the decoder {mechanism['decoder']} by {off:.3g}")
    return f"it is that of the decoder {mechanism['decoder']}, with trees of {restart} leaves"


def _completed(restart: int, n: int, *, honaker: bool) -> np.ndarray:
    """Return the node that each step completes: a sum, or the best estimate from the subtree."""
    levels = (restart - 1).bit_length()
    own = [2.0**h / (2.0 ** (h + 1) - 1) for h in range(levels + 1)]
    rows = np.zeros((levels + 1, levels + 1))
    for height in range(levels + 1):
        kept = [math.prod(1 - own[g] for g in range(j + 1, height + 1)) for j in range(height + 1)]
        norm = math.hypot(*(a * b for a, b in zip(own, kept, strict=False))) if honaker else 1.0
        rows[height, 0] = 1.0 / norm
        rows[height, 1 : height + 1] = [(1.0 - share * honaker) / norm for share in kept[:height]]
    ended = np.arange(n) % restart + 1
    return rows[np.frexp((ended & -ended).astype(np.float64))[1] - 1].T


def _all_nodes(restart: int, n: int) -> np.ndarray:
    """Return H^T H, where the rows of H are the complete nodes of the trees."""
    gram = np.zeros((n, n))
    for start in range(0, n, restart):
        leaves = min(restart, n - start)
        for size in (1 << j for j in range(leaves.bit_length())):
            for first in range(start, start + leaves - size + 1, size):
                gram[first : first + size, first : first + size] += 1.0
    return gram


def _fft(named: Named) -> str:
    n, column = named.strategy.n, named.workload
    if n > MAX_N_COMPUTED:
        raise NotEnclosed(f"the covariance of its noise is formed up to n={MAX_N_COMPUTED}")
    array = named.strategy.near_columns(np.arange(n)).values
    spectrum = np.abs(np.fft.fft(np.concatenate([column, np.zeros(n)])))
    first = np.fft.ifft(spectrum).real[:n]
    target = first[np.abs(np.subtract.outer(np.arange(n), np.arange(n)))]
    if named.mechanism.get("decoder", "circulant") == "optimal":
        noise = array.T @ array
    else:
        decoder = np.linalg.solve(array.T, toeplitz_array(column).T)  # This is the transposed decoder.
        noise = decoder.T @ decoder
    off = float(np.abs(noise - target).max())
    if not off <= 1e3 * named.near * float(np.abs(target).max()) < math.inf:
        raise Contradiction(f"the covariance of its noise differs from the transform's by {off:.3g}")
    return "the covariance of its noise is the transform's"


def _spectral(named: Named) -> str:
    _toeplitz(named)
    raise NotEnclosed("C is Toeplitz; only its solver states that it is the optimum in the frequency domain")


_RULES: dict[str, Callable[[Named], str]] = {
    "dense": _any,
    "semidefinite": _any,
    "added": _added,
    "banded": _banded,
    "toeplitz": _toeplitz,
    "banded_toeplitz": _banded_toeplitz,
    "blt": _blt,
    "buffered_linear": _buffered,
    "identity": _identity,
    "square_root": partial(_binomial, power=0.5),
    "nu_toeplitz": partial(_binomial, power=0.5),
    "anti_pgd": partial(_binomial, power=1.0),
    "lambda_cgd": partial(_binomial, power=1.0),
    "banded_square_root": _square_root_of_bands,
    "banded_inverse_square_root": _banded_inverse_root,
    "banded_inverse_fractional_root": _banded_inverse_root,
    "banded_inverse_toeplitz": _banded_inverse_toeplitz,
    "tree": _tree,
    "fft": _fft,
    "spectral": _spectral,
}
