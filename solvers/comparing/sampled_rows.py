"""Rows under sampling: for every solved mechanism and every scheme that fits it, and claims for the best few.

Balls in bins are ranked by bounds that need no samples. The best rows are then verified, so that the number of a row
that is recommended is one that was tested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from factorize.accounting.binned_schemes import BinsScheme
from factorize.accounting.schemes import SAMPLINGS, SCHEMES, CyclicScheme, scheme_of
from factorize.errors import InvalidParameter
from factorize.factorization import Factorization
from factorize.privacy import PrivacyTarget
from factorize.solvers.comparing.comparison import Refused, Row, Sampling, ranked, recommend
from factorize.solvers.comparing.deadline import CALIBRATIONS, CLAIMS, Deadline
from factorize.solvers.comparing.side_by_side import Tell, run_all
from factorize.solvers.comparing.table_rows import TableRows
from factorize.spec import Spec

MOST_VERIFIED = 3
"""Claims that are tested beside those of recommended rows: each takes 1 to 7 seconds of a processor."""
MOST_BINS_WORK = 1 << 26
"""Rows times bins^2 that are ranked by bounds; with more than 1000 bins that leaves the most promising rows."""


class Solved(NamedTuple):
    """A mechanism that was solved.

    Attributes:
        found: its result.
        row: without sampling.
    """

    found: Factorization
    row: Row


def chosen_samplings(
    spec: Spec, privacy: PrivacyTarget | None, sizes: Sampling | None, named: Sequence[str] | None
) -> tuple[str, ...]:
    """Return the schemes that rows may count on, `fixed` left out.

    Raises:
        InvalidParameter: an unknown scheme, one without its sizes, or a privacy that no sampling amplifies.
    """
    own = () if spec.sampling is None else (spec.sampling.kind,)
    asked = named if named is not None else SAMPLINGS if sizes is not None else own
    chosen = tuple(name for name in SAMPLINGS if name in {scheme_of(name).name for name in asked} - {"fixed"})
    if (chosen or sizes is not None) and (privacy is None or privacy.epsilon is None or privacy.delta is None):
        raise InvalidParameter(
            "sampling (dataset_size and batch_size, or samplings) amplifies an (epsilon, delta) guarantee; give both",
            field="epsilon",
        )
    for name in chosen:
        if sizes is None and isinstance(SCHEMES[name], CyclicScheme):
            raise InvalidParameter(f"{name} needs dataset_size and batch_size: give both", field="dataset_size")
    return chosen


def sampled_rows(
    rows: TableRows, solved: Sequence[Solved], hear: Callable[[str], None], seconds: float | None, *, workers: int
) -> list[Row | Refused]:
    """Return the rows under all schemes, those first that promise most.

    Args:
        rows: with the schemes.
        solved: what was solved.
        hear: told the name of a scheme before each calibration; what it raises ends all.
        seconds: of the comparison; after a share of them no calibration begins.
        workers: how many calibrations run at a time.
    """
    chosen, deadline = _promising(rows, solved), Deadline(seconds, CALIBRATIONS)
    found: list[list[Row | Refused]] = [[] for _ in chosen]

    def fill(place: int, tell: Tell[str]) -> None:
        one, scheme = chosen[place]
        tell(scheme)
        if deadline.over():
            found[place].append(_late(one.row, scheme, deadline.told("was not calibrated")))
            return
        found[place].append(rows.sampled(one.found, one.row, SCHEMES[scheme]))

    run_all([partial(fill, place) for place in range(len(chosen))], hear, workers=workers)
    return [entry for entries in found for entry in entries]


def _promising(rows: TableRows, solved: Sequence[Solved]) -> list[tuple[Solved, str]]:
    """Return what is calibrated: all, but for balls in very many bins.

    Those optimised for it and C = I come first, then small losses.
    """
    best = sorted(solved, key=lambda one: _promise(one.row))
    pairs = [(one, scheme.name) for one in best for scheme in rows.fitting(one.found)]
    binned = [pair for pair in pairs if isinstance(SCHEMES[pair[1]], BinsScheme)]
    if not binned:
        return pairs
    spec = binned[0][0].found.spec
    bins = BinsScheme.bins(spec.participation, spec.workload.n) or 1
    kept = max(MOST_BINS_WORK // bins**2, MOST_VERIFIED)
    left = {id(pair) for pair in binned[kept:]}
    return [pair for pair in pairs if id(pair) not in left]


def _promise(row: Row) -> tuple[bool, float]:
    return (row.optimized_under is None and row.mechanism != "identity", row.loss.objective)


def _late(row: Row, scheme: str, reason: str) -> Refused:
    told = f"sampled: {SCHEMES[scheme].title}: {reason}"
    return Refused(row.mechanism, row.parameters, row.normalization, told, out_of_time=True)


def with_claims(
    rows: TableRows,
    table: Sequence[Row],
    solved: Sequence[Solved],
    budgets: Sequence[int | None],
    hear: Callable[[str], None],
    seconds: float | None,
) -> tuple[list[Row], list[Refused]]:
    """Return the table with claims in place of bounds for its best rows under balls in bins, and what lacks its claim.

    Args:
        rows: with the schemes.
        table: all rows.
        solved: where they come from.
        budgets: vectors of state that recommendations may keep, ascending.
        hear: told the name of a scheme before each claim; what it raises ends all.
        seconds: of the comparison; after a share of them no claim begins.
    """
    deadline = Deadline(seconds, CLAIMS)
    by_digest = {one.found.spec_digest: one.found for one in solved}
    table, tested = ranked(table), set[tuple[str, str | None]]()
    while True:
        place = _next_claim(table, tested, budgets)
        if place is None:
            return table, []
        row = table[place]
        if deadline.over():
            reason = deadline.told("states a bound, and its claim was not tested")
            return table, [_late(row, str(row.sampling), reason)]
        hear(str(row.sampling))
        tested.add(_key(row))
        found = by_digest[row.spec_digest]
        table = ranked([*table[:place], rows.verified(found, row), *table[place + 1 :]])


def _next_claim(table: Sequence[Row], tested: set[tuple[str, str | None]], budgets: Sequence[int | None]) -> int | None:
    """Return the row to verify next: the recommended ones, then the best few within the largest budget."""
    for within in budgets:
        chosen = recommend(table, within)
        if chosen is not None and _bounded(table[chosen.row], tested):
            return chosen.row
    if len(tested) >= MOST_VERIFIED:
        return None
    budget = budgets[-1]
    fitting = (i for i, row in enumerate(table) if budget is None or row.noise_vectors <= budget)
    return next((i for i in fitting if _bounded(table[i], tested)), None)


def _bounded(row: Row, tested: set[tuple[str, str | None]]) -> bool:
    return SCHEMES[row.sampling or "fixed"].claimed and _key(row) not in tested


def _key(row: Row) -> tuple[str, str | None]:
    return row.spec_digest, row.sampling


def described(rows: TableRows, table: Sequence[Row], solved: Sequence[Solved]) -> Iterator[dict[str, Any]]:
    """Yield the schemes as plain data, each with why no row counts on it, if none does."""
    for name in ("fixed", *rows.samplings):
        counted = sum((row.sampling or "fixed") == name for row in table)
        reasons = (rows.misfit(name, one.found) for one in solved)
        why = None if counted else next((reason for reason in reasons if reason), "has no row")
        epochs = next((_epochs(one.found.spec) for one in solved), 1)
        yield {**SCHEMES[name].document(), "title": SCHEMES[name].called(epochs), "rows": counted, "misfit": why}


def _epochs(spec: Spec) -> int:
    return spec.participation.passes or 0


def sampled_bounds(rows: TableRows, spec: Spec, dual: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """Return what no matrix beats at the privacy, by scheme: known under balls in bins and fixed epochs."""
    from factorize.accounting.bins_lower_bound import bins_lower_bound

    target = rows.privacy
    if "balls_in_bins" not in rows.samplings or target is None or not spec.participation.periodic:
        return {}
    bound = bins_lower_bound(spec, dual, epsilon=target.epsilon or 0.0, delta=target.delta or 0.0)
    if bound is None:
        return {}
    return {"balls_in_bins": {"objective": bound.objective, "rule": bound.rule}}
