"""The automatic choice: which mechanism `auto` names for a spec, from its integers alone."""

from collections.abc import Callable

from factorize.errors import TooLarge, UnsupportedProblem
from factorize.mechanisms import AnyMechanism, Banded, Blt, BufferedLinear, Dense, Toeplitz, Tree
from factorize.solvers.problem import Estimate
from factorize.spec import Spec
from factorize.structures.base import MAX_DENSE

LARGEST_AUTOMATIC = 8192
LARGEST_SEPARATED = 128
"""Steps up to which `dense` is searched under `min_sep`: seconds, where 256 take half a minute."""
BUFFERS_AUTOMATIC = 8
"""Above that n: within 2e-5 of the optimum of prefix sums at n = 131072."""
BANDS_AUTOMATIC = 512
"""Most bands that a training job is asked to keep noise of."""

_LARGEST_BYTES = 2**34
_STREAMING = BufferedLinear(kind="buffered_linear", buffers=BUFFERS_AUTOMATIC)
_LARGE: tuple[AnyMechanism, ...] = (
    Toeplitz(kind="toeplitz"),
    Blt(kind="blt", buffers=BUFFERS_AUTOMATIC),
    Tree(kind="tree", decoder="honaker_online"),
)

EstimateOf = Callable[[Spec], Estimate]
"""The estimate of a spec with a named mechanism; raises `UnsupportedProblem` or `TooLarge` where there is none."""


def automatic(spec: Spec, estimate_of: EstimateOf) -> AnyMechanism:
    """Return the mechanism that `auto` names for a canonical spec.

    Raises:
        UnsupportedProblem: no mechanism is named; the message says what can be asked for.
    """
    if spec.workload.endless:
        raise UnsupportedProblem(
            "'auto' is an optimum, and none exists without end; ask for blt, or nu_toeplitz with nu > 0, or give n",
            field="/mechanism/kind",
        )
    if not (spec.objective.quadratic or spec.participation.single):
        raise UnsupportedProblem(
            "'auto' has a certified optimum of objective 'max' for single participation only; ask for nu_toeplitz or "
            "square_root by name"
        )
    n, separation = spec.workload.n, spec.participation.spread(spec.workload.n).separation
    if spec.participation.free:
        few = (Dense(kind="dense"),) if n <= LARGEST_SEPARATED else ()
        return _first(spec, estimate_of, (*few, _banded(separation), *_LARGE))
    if spec.participation.single and n > LARGEST_AUTOMATIC:
        return _first(spec, estimate_of, (_STREAMING, *_LARGE, _banded(BANDS_AUTOMATIC)))
    if n <= MAX_DENSE:
        return Dense(kind="dense")
    if separation <= BANDS_AUTOMATIC:
        return _first(spec, estimate_of, (_banded(separation), *_LARGE))
    return _first(spec, estimate_of, (*_LARGE, _banded(BANDS_AUTOMATIC)))


def _banded(bands: int) -> Banded:
    return Banded(kind="banded", bands=bands)


def _first(spec: Spec, estimate_of: EstimateOf, mechanisms: tuple[AnyMechanism, ...]) -> AnyMechanism:
    """Return the first mechanism that has a solver for so many steps within the automatic memory."""
    for mechanism in mechanisms:
        try:
            if estimate_of(spec.model_copy(update={"mechanism": mechanism})).bytes <= _LARGEST_BYTES:
                return mechanism
        except (UnsupportedProblem, TooLarge):
            continue
    raise UnsupportedProblem(
        f"'auto' has no mechanism for n={spec.workload.n} steps of the {spec.workload.kind} workload: "
        f"{', '.join(mechanism.kind for mechanism in mechanisms)} refuse it or are too large; use fewer steps (larger "
        "batches), or ask by name for identity, or for nu_toeplitz with optimize_for the prefix workload",
        field="/mechanism/kind",
    )
