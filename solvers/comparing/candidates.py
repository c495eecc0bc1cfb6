"""Candidates to compare for a spec: every mechanism, in the sizes that a memory budget or a default ladder asks for."""

from collections.abc import Iterator

from factorize.encoding import JsonObject
from factorize.privacy import PrivacyTarget
from factorize.solvers.epochs.fitted_columns import MAX_N_FITTED, refuse_fitted
from factorize.solvers.register import SOLVERS
from factorize.spec import Spec

BUFFERS = 4
"""The vectors of state of mechanisms with buffers, where no budget names a number."""
BANDS = 16
"""The diagonals of mechanisms with bands, where no budget names a number of vectors."""
AMPLIFIED_BUFFERS = 2
"""The buffers of what is optimised for balls in bins: the second one gains most there, and more gain little."""
MAX_TAPS = 64
"""The most diagonals of what is optimised for a sampling."""
MAX_N_CONIC = 16
"""The most steps with which the conic reference is compared; it takes seconds from here on."""

ALL_ROWS = ("dense", "toeplitz", "nu_toeplitz", "square_root", "fft", "semidefinite")
"""The mechanisms whose noise takes all earlier rows."""

STATES_TOLERANCE = 4e-3
"""Tolerance of searches for few states under a schedule of epochs: they take half the time or less, and their loss is
at most 0.2 % above what the spec's tolerance finds."""

LEAD_TOLERANCE = 2e-2
"""Tolerance of leads, from which on solvers take good starts and improve them little: errors are about 1 % larger."""
MAX_STEPS_FITTED_QUICKLY, MAX_BINS_FITTED_QUICKLY = 2048, 256
"""Up to this many steps and bins the columns of a lead are fitted: arrays of their squares take seconds beyond."""

Lead = tuple[JsonObject, JsonObject | None]
"""A mechanism, and the sampling that it is optimised for or None, both as plain data."""


def mechanisms(spec: Spec, buffers: int | None) -> Iterator[JsonObject]:
    """Yield the mechanisms to compare as plain data, cheap ones first, each kind with its column normalisation.

    Args:
        spec: canonical; its own mechanism comes first if it has a name.
        buffers: vectors of state that may be kept, or None for a ladder of sizes.
    """
    if spec.mechanism.kind not in ("auto", "added"):
        yield spec.mechanism.model_dump(exclude_none=True)
    yield {"kind": "identity"}
    yield {"kind": "anti_pgd"}
    yield {"kind": "lambda_cgd", "correlation": "tune"}
    yield from _both({"kind": "square_root"})
    yield from _both({"kind": "nu_toeplitz", "nu": "tune"})
    fitted = _normalization(spec)
    yield from _both({"kind": "toeplitz"}, fitted)
    for bands in _bands(spec, buffers):
        yield from _both({"kind": "banded_toeplitz", "bands": bands}, fitted)
        for kind in ("banded_square_root", "banded_inverse_square_root"):
            yield from _both({"kind": kind, "bands": bands})
        yield {"kind": "banded_inverse_fractional_root", "bands": bands, "gamma": "tune"}
        yield {"kind": "banded", "bands": bands}
    for count in _buffers(spec, buffers):
        yield from _both({"kind": "blt", "buffers": count}, fitted)
    for count in _states(spec, buffers):
        yield {"kind": "buffered_linear", "buffers": count}
    yield from _trees(spec)
    yield {"kind": "fft"}
    yield {"kind": "fft", "decoder": "optimal"}
    yield {"kind": "dense"}
    if spec.workload.n <= MAX_N_CONIC:
        yield {"kind": "semidefinite"}


def within(mechanism: JsonObject, spec: Spec, vectors: int | None) -> bool:
    """Return whether a mechanism may keep no more than so many vectors of state: what keeps all rows needs n.

    Args:
        mechanism: the mechanism as plain data.
        spec: canonical.
        vectors: the budget, or None for any number.
    """
    if vectors is None or spec.workload.endless:
        return True
    needed = {"tree": int(spec.workload.n).bit_length() - 1} | dict.fromkeys(ALL_ROWS, spec.workload.n - 1)
    return needed.get(mechanism["kind"], 0) <= vectors


def fewer_bands(spec: Spec, buffers: int | None) -> Iterator[dict[str, object]]:
    """Yield banded mechanisms of as many and fewer diagonals than the memory allows: groups of cyclic sampling grow.

    Columns of the Toeplitz ones are even, as that sampling wants them.

    Args:
        spec: canonical.
        buffers: vectors of state that may be kept, or None for the usual sizes.
    """
    if spec.workload.endless:
        return
    largest, bands = max(_bands(spec, buffers)), 2
    if largest >= bands:
        yield {"kind": "banded_toeplitz", "bands": largest, "normalization": "columns"}
    while bands < largest:
        yield {"kind": "banded", "bands": bands}
        yield {"kind": "banded_toeplitz", "bands": bands, "normalization": "columns"}
        bands = max(bands + 1, bands * 3 // 2)


def optimised(
    spec: Spec, buffers: int | None, privacy: PrivacyTarget | None
) -> Iterator[tuple[JsonObject, JsonObject]]:
    """Yield mechanisms to optimise for a sampling, and the sampling, both as plain data, where there are epochs.

    Args:
        spec: canonical.
        buffers: vectors of state that may be kept, or None for the usual sizes.
        privacy: privacy with the epsilon and delta that C is to be best at.
    """
    if privacy is None or spec.participation.passes is None:
        return
    sampling = {"kind": "balls_in_bins", "epsilon": privacy.epsilon, "delta": privacy.delta}
    kept = BUFFERS if buffers is None else buffers
    taps = min(kept + 1, MAX_TAPS, spec.workload.n)
    fitted = {"normalization": "fitted"} if spec.workload.n <= MAX_N_FITTED else {}
    if taps >= 2:
        yield {"kind": "blt", "buffers": min(AMPLIFIED_BUFFERS, kept), **fitted}, sampling
        yield {"kind": "banded_inverse_toeplitz", "bands": taps, **fitted}, sampling
    yield {"kind": "toeplitz", **fitted}, sampling
    for bands in _bands(spec, buffers):
        bands = min(bands, MAX_TAPS, spec.participation.spread(spec.workload.n).separation)
        if bands >= 2:
            yield {"kind": "banded", "bands": bands}, {**sampling, "kind": "b_min_sep"}


def leads(spec: Spec, buffers: int | None, privacy: PrivacyTarget | None) -> Iterator[Lead]:
    """Yield what leads most tables, for each way to take part: in a public order, and in bins.

    Where the first of a public order is not to be had, the second one stands in, columns of norm 1 for fitted ones, and
    columns as they are for those.

    Args:
        spec: canonical.
        buffers: vectors of state that may be kept, or None for the usual number.
        privacy: privacy with the epsilon and delta of the bins; None without them.
    """
    for count in _states(spec, buffers):
        yield {"kind": "buffered_linear", "buffers": count}, None
    for count in _buffers(spec, buffers):
        for normalization in dict.fromkeys((_normalization(spec), "columns", "none")):
            yield {"kind": "blt", "buffers": count, "normalization": normalization}, None
    for mechanism, sampling in optimised(spec, buffers, privacy):
        if mechanism["kind"] == "blt":
            many = spec.workload.n // (spec.participation.passes or 1) > MAX_BINS_FITTED_QUICKLY
            if many or spec.workload.n > MAX_STEPS_FITTED_QUICKLY:
                mechanism = {"kind": "blt", "buffers": mechanism["buffers"]}
            yield mechanism, sampling


def tolerance(spec: Spec, mechanism: dict[str, object], *, lead: bool = False) -> float:
    """Return the tolerance to solve a mechanism to: the spec's, or a looser one for long searches it does not name.

    Args:
        spec: canonical.
        mechanism: the mechanism as plain data.
        lead: whether it is to be had quickly.
    """
    if lead:
        return max(spec.tolerance, LEAD_TOLERANCE)
    searched = mechanism["kind"] == "buffered_linear" and spec.mechanism.kind != "buffered_linear"
    return max(spec.tolerance, STATES_TOLERANCE) if searched and spec.participation.periodic else spec.tolerance


def left_out(spec: Spec) -> Iterator[tuple[str, str]]:
    """Yield the mechanisms that no comparison tries of itself, with the reason; every other that has a solver last."""
    reasons = {
        "banded_inverse_toeplitz": "needs a sampling; compare with balls_in_bins under fixed_epochs, or use "
        "banded_inverse_square_root"
    }
    if spec.mechanism.kind != "spectral":
        needs = "needs a learning rate and a curvature, which this spec does not give; name it in the spec to add it"
        reasons = {"spectral": needs, **reasons}
    if spec.workload.n > MAX_N_CONIC:
        reasons["semidefinite"] = f"is a reference for n <= {MAX_N_CONIC}, and dense has the same optimum; use dense"
    yield from reasons.items()
    for kind in SOLVERS:
        if kind not in reasons:
            yield kind, "needs a size, and no default one is compared; name it in the spec to add it"


def _both(mechanism: dict[str, object], normalization: str = "columns") -> Iterator[dict[str, object]]:
    yield from ({**mechanism, "normalization": normalization} for normalization in ("none", normalization))


def _normalization(spec: Spec) -> str:
    """Return how columns of searched Toeplitz matrices gain most."""
    return "columns" if spec.workload.endless or refuse_fitted(spec) else "fitted"


def _bands(spec: Spec, buffers: int | None) -> list[int]:
    """Return the numbers of diagonals: a budget's, or a usual one and the largest that keeps a user's steps apart."""
    n = spec.workload.n
    apart = spec.participation.spread(n).separation
    if buffers is not None:
        return [min(buffers + 1, n)]
    return sorted({min(BANDS, apart), apart} if apart < n else {min(BANDS, n)})


def _buffers(spec: Spec, buffers: int | None) -> list[int]:
    count = min(BUFFERS if buffers is None else buffers, max(spec.workload.n // 2, 1))
    return [count] if count else []


def _states(spec: Spec, buffers: int | None) -> list[int]:
    """Return the buffers of the streaming optimum: over several epochs, fewer than the steps of one."""
    apart = spec.participation.spread(spec.workload.n).separation if spec.participation.periodic else spec.workload.n
    return [count for count in {min(count, apart - 1) for count in _buffers(spec, buffers)} if count]


def _trees(spec: Spec) -> Iterator[JsonObject]:
    decoders = ("online", "honaker_online", "honaker_full")
    yield from ({"kind": "tree", "decoder": decoder} for decoder in decoders)
    apart, count, _ = spec.participation.spread(spec.workload.n)
    if count > 1:
        yield {"kind": "tree", "decoder": "honaker_full", "restart_every": apart}
