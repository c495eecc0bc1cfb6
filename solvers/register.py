"""The one list of solvers, and which of them answers a spec.

A solver's module is imported when it is first asked about a spec, and its numerical back-end (scipy, numba, cvxpy) when
it first solves one.

Which mechanism `auto` names for a spec follows from the spec's integers alone.
"""

import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from factorize.encoding import canonical_json
from factorize.errors import TooLarge, UnsupportedProblem
from factorize.factors.solution import ProgressCallback, Solution
from factorize.participation import few_participations
from factorize.solvers.problem import Estimate, Problem
from factorize.spec import Spec, SpecSource, parse_spec
from factorize.spec.mechanisms import (
    AnyMechanism,
    Auto,
    Banded,
    Blt,
    BufferedLinear,
    Dense,
    IdentityMechanism,
    NuToeplitz,
    Toeplitz,
    Tree,
)
from factorize.structures.base import MAX_DENSE
from factorize.workloads.prefix import Prefix, easier_ones

_DEFAULTS: dict[str, Callable[[Spec], Any]] = {"own": lambda _: True, "supports": lambda _: None}
"""The functions that a solver's module may leave out, and what stands for them."""


@dataclass(frozen=True)
class Entry:
    """One solver.

    Attributes:
        solve: a function from a problem and a progress callback to a claim.
        supports: the reason why a canonical spec is outside this solver, with the way out, or None.
        estimate: cost of a canonical spec that is supported, without evidence for a bound over all matrices.
        own: whether the solver is for a canonical spec of its mechanism; if not, it is not asked for a reason.
        dual: whether the solver's claim brings such evidence, for the workload that it solves for.
    """

    solve: Callable[[Problem, ProgressCallback], Solution]
    supports: Callable[[Spec], str | None]
    estimate: Callable[[Spec], Estimate]
    own: Callable[[Spec], bool] = _DEFAULTS["own"]
    dual: bool = False


def _entry(module: str, solver: str = "solve", *, dual: bool = False) -> Entry:
    """Return the solver of a module, which is imported when one of its functions is first called.

    Args:
        module: below this package; it has `estimate`, and `own` and `supports` unless it takes every spec that it is
            asked about.
        solver: its function that solves.
        dual: see `Entry`.
    """

    def call(name: str, *arguments: Any) -> Any:
        function: Any = getattr(import_module(f"{__package__}.{module}"), name, _DEFAULTS.get(name))
        return function(*arguments)

    solve, supports, estimate, own = (partial(call, name) for name in (solver, "supports", "estimate", "own"))
    return Entry(solve, supports, estimate, own=own, dual=dual)


_SAMPLING_ENTRIES = {
    "balls_in_bins": _entry("amplified.bins_optimum"),
    "b_min_sep": _entry("amplified.b_min_sep_optimum"),
}
_ENDLESS = _entry("endless_optimum")

SOLVERS: dict[str, tuple[Entry, ...]] = {
    "dense": (
        _entry("single.few_states", dual=True),
        _entry("epochs.recursions", dual=True),
        _entry("single.dense", dual=True),
        _entry("epochs.decompositions", dual=True),
        _entry("single.max_error", dual=True),
        _entry("min_sep.min_sep_optimum", dual=True),
    ),
    "buffered_linear": (_entry("buffered.redrawn", dual=True), _entry("buffered.buffered_optimum", dual=True)),
    "banded": (_entry("banded.banded_optimum"),),
    "toeplitz": (_entry("toeplitz.toeplitz_optimum"),),
    "banded_toeplitz": (_entry("toeplitz.toeplitz_optimum"),),
    "spectral": (_entry("frequency.spectral"),),
    "nu_toeplitz": (_entry("formulas.closed_form", "solve_nu_toeplitz"),),
    "square_root": (_entry("formulas.closed_form", "solve_square_root"),),
    "banded_square_root": (_entry("formulas.closed_form", "solve_banded_square_root"),),
    "banded_inverse_square_root": (_entry("formulas.closed_form", "solve_banded_inverse_square_root"),),
    "banded_inverse_fractional_root": (_entry("formulas.fractional_root", "solve_fractional_root"),),
    "blt": (_entry("blt"),),
    "anti_pgd": (_entry("formulas.closed_form", "solve_anti_pgd"),),
    "lambda_cgd": (_entry("formulas.fractional_root", "solve_lambda_cgd"),),
    "identity": (_entry("formulas.closed_form", "solve_identity"),),
    "banded_inverse_toeplitz": (_SAMPLING_ENTRIES["balls_in_bins"],),
    "tree": (_entry("formulas.tree"),),
    "fft": (_entry("formulas.fft"),),
    "semidefinite": (_entry("semidefinite", dual=True),),
}
"""The one list: mechanism to its solvers; the first that supports the spec is taken, the rest are not asked."""

WAY_OUT = "; this works: "
"""The words of a refusal before the command of a spec that is not refused."""

_MAX_SPEC_CHARACTERS = 4000  # a refusal shows a spec of at most this many characters


def choose(spec: SpecSource, *, way_out: bool = True) -> Spec:
    """Return the canonical spec with a named mechanism that has a solver.

    A spec may come as `parse_spec` takes it, here and in what calls this: `solve`, `search` and `estimate`.

    A streaming mechanism that cannot take the workload is solved for the nearest one that it can, `optimize_for`, and
    evaluated on the one that was asked for (`factorize.spec.notes_of_choice` says so).

    `auto` is `dense` for single participation up to n = 8192 and for fixed epochs up to 16384, `buffered_linear` with 8
    buffers for single participation above; for min_sep it is `dense` up to n = 128 (solvers/min_sep), and above
    `toeplitz` if fewer than half as many participations are allowed as fit (into tau steps, if these are fewer), else
    `banded` with `min_sep` bands; beyond, see `automatic`.

    Args:
        spec: what is asked for.
        way_out: whether a refusal ends with a command that works, which takes a second for long lists of rates.

    Raises:
        InvalidSpec: the parts of the spec do not fit each other.
        UnsupportedProblem: no solver of this release has an answer; the message ends with the command of a spec that
            is answered, for the same workload and participation, if there is one.
    """
    spec = parse_spec(spec)
    try:
        return _name(spec)
    except UnsupportedProblem as refusal:
        command = _way_out(spec) if way_out else ""
        message = f"{refusal}{WAY_OUT}{command}" if command else str(refusal)
        raise UnsupportedProblem(message, field=refusal.field) from None


def _name(spec: Spec) -> Spec:
    """Return a canonical spec with a named mechanism that has a solver; see `choose`."""
    if not spec.mechanism.named:
        spec = spec.named(automatic(spec, lambda named: entry_for(named).estimate(named)))
    refused: UnsupportedProblem | None = None
    for candidate in (spec, *_eased(spec)):
        try:
            entry_for(candidate)
            return candidate
        except UnsupportedProblem as error:
            refused = refused or error
    assert refused is not None
    raise refused


def _eased(spec: Spec) -> Iterator[Spec]:
    """Yield a spec optimised for easier workloads, the nearest first; its own is the one it is evaluated on."""
    if spec.optimize_for is not None or not spec.mechanism.eased:
        return
    workloads = list(easier_ones(spec.workload))
    if not workloads and spec.mechanism.eased_to_sums and not (spec.workload.running_sums or spec.workload.endless):
        workloads = [Prefix(kind="prefix", n=spec.workload.n)]
    yield from (spec.model_copy(update={"optimize_for": easier}) for easier in workloads)


def _way_out(spec: Spec) -> str:
    """Return the command that solves a refused spec with the nearest mechanism that takes it, or nothing."""
    document = spec.document()
    for name, own in spec.user_matrices().items():
        if own.bound:
            if own.array.size >= _MAX_SPEC_CHARACTERS / 2:
                return ""  # no store needs to have the numbers
            document[name] = {"kind": "matrix", "rows": own.array.tolist()}
    for mechanism in _nearest(spec):
        try:
            _name(spec.model_copy(update={"mechanism": mechanism}))
        except UnsupportedProblem:
            continue
        text = canonical_json(document | {"mechanism": mechanism.document()}).decode()
        return f"factorize solve {shlex.quote(text)}" if len(text) <= _MAX_SPEC_CHARACTERS else ""
    return ""


def _nearest(spec: Spec) -> Iterator[AnyMechanism]:
    """Yield mechanisms that keep no more vectors than the one of a spec, the best first and C = I last."""
    mechanism = spec.mechanism
    vectors = mechanism.buffer_count or (mechanism.diagonals or 1) - 1
    if vectors and not spec.workload.endless:
        apart = spec.participation.spread(spec.workload.n).separation
        yield Banded(kind="banded", bands=min(vectors + 1, apart))
    if vectors:
        yield Blt(kind="blt", buffers=vectors)
    else:
        yield Auto()
        yield NuToeplitz(kind="nu_toeplitz", nu="tune")
    yield IdentityMechanism(kind="identity")


def entry_for(spec: Spec) -> Entry:
    """Return the solver of a canonical spec with a named mechanism.

    Raises:
        UnsupportedProblem: see `choose`.
    """
    _refuse_nothing_left(spec)
    kind = spec.mechanism.kind
    if kind not in SOLVERS:
        raise UnsupportedProblem(
            f"mechanism {kind!r} is a strategy of your own, certified by `factorize add` and never solved; to solve, "
            f"use one of {', '.join(sorted(SOLVERS))}",
            field="/mechanism/kind",
        )
    entries: Iterable[Entry] = (entry for entry in SOLVERS[kind] if entry.own(spec))
    if spec.workload.endless or spec.sampling is not None:
        entries = [
            _ENDLESS if spec.sampling is None or spec.workload.endless else _SAMPLING_ENTRIES[spec.sampling.kind]
        ]
    reason: str | None = None
    for entry in entries:
        if (reason := entry.supports(spec)) is None:
            return entry
    raise UnsupportedProblem(reason or "", field="/mechanism/kind")


def _refuse_nothing_left(spec: Spec) -> None:
    """Refuse weights that are zero wherever the workload has an entry; of a matrix known by its digest, later."""
    own = spec.user_matrices()
    for name, workload in (("workload", spec.workload), ("optimize_for", spec.optimize_for)):
        if workload is None or workload.endless or (name in own and not own[name].bound):
            continue
        if not spec.objective.leaves(workload):
            raise UnsupportedProblem(
                f"every non-zero row of {name} has weight 0, so nothing is left to minimise; give one of them a "
                "positive weight",
                field="/objective/weights",
            )


MAX_N_AUTOMATIC = 8192
MAX_N_SEPARATED = 128
"""The most steps of a search of `dense` under `min_sep`: 40 processor seconds at most, where 256 take minutes."""
AUTOMATIC_BUFFERS = 8
"""The buffers above that n: within 2e-5 of the optimum of prefix sums at n = 131072."""
MAX_AUTOMATIC_BANDS = 512
"""The most bands that a training job is asked to keep noise of."""

_MAX_BYTES = 2**34
_STREAMING_MECHANISM = BufferedLinear(kind="buffered_linear", buffers=AUTOMATIC_BUFFERS)
_LARGE_MECHANISMS: tuple[AnyMechanism, ...] = (
    Toeplitz(kind="toeplitz"),
    Blt(kind="blt", buffers=AUTOMATIC_BUFFERS),
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
            "'auto' needs a last step: no optimum exists without end; use blt, or nu_toeplitz with nu > 0, or give n",
            field="/mechanism/kind",
        )
    if not (spec.objective.quadratic or spec.participation.single):
        raise UnsupportedProblem(
            "'auto' has a certified optimum of objective 'max' for single participation only; ask for nu_toeplitz or "
            "square_root by name"
        )
    n = spec.workload.n
    separation, most, _ = spec.participation.spread(n)
    if spec.participation.free:
        searched = (Dense(kind="dense"),) if n <= MAX_N_SEPARATED else ()
        banded = (_banded(separation),)
        few = few_participations(spec.objective.reach(n), separation, most)
        rest = (*_LARGE_MECHANISMS, *banded) if few else (*banded, *_LARGE_MECHANISMS)
        return _first(spec, estimate_of, searched + rest)
    if spec.participation.single and n > MAX_N_AUTOMATIC:
        return _first(spec, estimate_of, (_STREAMING_MECHANISM, *_LARGE_MECHANISMS, _banded(MAX_AUTOMATIC_BANDS)))
    if n <= MAX_DENSE:
        return Dense(kind="dense")
    if separation <= MAX_AUTOMATIC_BANDS:
        return _first(spec, estimate_of, (_banded(separation), *_LARGE_MECHANISMS))
    return _first(spec, estimate_of, (*_LARGE_MECHANISMS, _banded(MAX_AUTOMATIC_BANDS)))


def _banded(bands: int) -> Banded:
    return Banded(kind="banded", bands=bands)


def _first(spec: Spec, estimate_of: EstimateOf, mechanisms: tuple[AnyMechanism, ...]) -> AnyMechanism:
    """Return the first mechanism that has a solver for so many steps within the automatic memory."""
    for mechanism in mechanisms:
        try:
            if estimate_of(spec.model_copy(update={"mechanism": mechanism})).bytes <= _MAX_BYTES:
                return mechanism
        except (UnsupportedProblem, TooLarge):
            continue
    raise UnsupportedProblem(
        f"'auto' has no mechanism for n={spec.workload.n} steps of the {spec.workload.kind} workload: "
        f"{', '.join(mechanism.kind for mechanism in mechanisms)} refuse it or are too large; use fewer steps (larger "
        "batches), or ask by name for identity, or for nu_toeplitz with optimize_for the prefix workload",
        field="/mechanism/kind",
    )
