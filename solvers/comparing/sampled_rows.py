"""Rows under sampling: for every solved mechanism and every scheme that fits it, and claims for the best few.

Balls in bins are ranked by bounds that need no samples. The best rows are then verified, so that the number of a row
that is recommended is one that was tested.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from factorize.accounting.bins_lower_bound import bins_lower_bound
from factorize.encoding import JsonObject
from factorize.errors import Cancelled, FactorizeError, InvalidParameter
from factorize.factors.factorization import Factorization
from factorize.privacy import PrivacyTarget
from factorize.privacy.question import SamplingOptions
from factorize.samplings import SAMPLINGS, sampling_of
from factorize.samplings.base import Sampling
from factorize.solvers.comparing.comparison_table import Refused, Row, ranked, recommend
from factorize.solvers.comparing.deadline import (
    CALIBRATIONS,
    CLAIMS,
    FIRST_CLAIM,
    LATE_BOUNDS,
    LATE_CLAIMS,
    Deadline,
)
from factorize.solvers.comparing.side_by_side import Tell, run_all
from factorize.solvers.comparing.table_rows import TableRows
from factorize.spec import Spec

MAX_VERIFIED_ROWS = 3
"""The most claims that are tested beside those of recommended rows."""
_MAX_GAIN = 2.0
"""The most times that a bound's noise is above a claim's: 1.9 for C = I at epsilon 0.5, 1.6 and less for other C."""
_MAX_LEAD_GAIN = 1.6
"""The most times that a bound's noise is above a claim's for leads."""
_CLAIM_SECONDS, _CLAIM_BIN_SECONDS, _CLAIM_PAIR_SECONDS = 0.2, 3e-4, 1e-6
"""The seconds of a claim, more for each bin and each bin squared: measured from 64 to 4000 bins, epsilon 1 to 8."""
_SHORT_CLAIM_SECONDS = 0.6
"""A claim of this many seconds may come as late as the first one."""
_REFERENCE_SHARE = 0.3
"""The part of the time that what others are set against may take."""
MANY_BINS, MAX_BINS_WORK = 256, 1 << 26
"""Above this many bins a bound takes a part of a second and more; rows times bins^2 limit which rows get one then."""
_BOUND_SECONDS, _PRODUCT_SECONDS, _SEPARATED_BIN_SECONDS = 5e-7, 2.5e-10, 5e-3
"""Seconds of a bound for each bin squared, measured from 1000 to 4096 bins, more for each step and bin squared of a C
that is not Toeplitz, and more for each bin under b-min-sep."""
_HULL_SECONDS = 4e-8
"""Seconds of the lower bound under balls in bins for each step and bin."""
_LOSSES_BIN_SECONDS, _MAX_LOSSES_SECONDS, _ALLOCATION_SECONDS = 8e-3, 4.0, 0.5
"""Seconds of a loss distribution for each step of an epoch, at most, and more where one is drawn in every epoch anew:
measured from 16 to 1000 steps."""


class Solved(NamedTuple):
    """A mechanism that was solved.

    Attributes:
        factorization: its result.
        row: its row without sampling.
        lead: whether it is calibrated however little time there is.
    """

    factorization: Factorization
    row: Row
    lead: bool = False


def chosen_samplings(
    spec: Spec, privacy: PrivacyTarget | None, sizes: SamplingOptions, named: Sequence[str] | None
) -> tuple[str, ...]:
    """Return the schemes that rows may count on, `fixed` left out.

    Raises:
        InvalidParameter: an unknown scheme, one without its sizes, or a privacy that no sampling amplifies.
    """
    own = () if spec.sampling is None else (spec.sampling.kind,)
    names = named if named is not None else tuple(SAMPLINGS) if sizes.sized else own
    wanted = {sampling_of(one, field="samplings").name for one in names} - {"fixed"}
    chosen = tuple(name for name in SAMPLINGS if name in wanted)
    if (chosen or sizes.sized) and (privacy is None or privacy.epsilon is None or privacy.delta is None):
        raise InvalidParameter(
            "sampling (dataset_size and batch_size, or samplings) needs epsilon and delta to amplify; give both",
            field="epsilon",
        )
    for name in chosen:
        if not sizes.sized and "batch_size" in SAMPLINGS[name].takes:
            raise InvalidParameter(f"{name} needs dataset_size and batch_size: give both", field="dataset_size")
    return chosen


def calibrate_rows(
    rows: TableRows, one: Solved, hear: Callable[[str], None], deadline: Deadline
) -> Iterator[Row | Refused]:
    """Yield the rows of a mechanism under the schemes that fit it, but for balls in many bins; see `with_many_bins`.

    Args:
        rows: the maker of rows, with the schemes.
        one: what was solved.
        hear: told the name of a scheme before each calibration; what it raises ends all.
        deadline: deadline of the comparison.
    """
    for scheme in rows.fitting(one.factorization):
        if not _many(one, scheme):
            hear(scheme.name)
            yield _in_time(rows, one, scheme, deadline)


def with_many_bins(
    rows: TableRows, solved: Sequence[Solved], hear: Callable[[str], None], deadline: Deadline, *, workers: int
) -> list[Row | Refused]:
    """Return the rows under balls in many bins of the mechanisms that promise most; see `calibrate_rows`.

    Args:
        rows: the maker of rows, with the schemes.
        solved: all that was solved.
        hear: told the name of a scheme before each calibration; what it raises ends all.
        deadline: deadline of the comparison.
        workers: the most calibrations that run at a time.
    """
    pairs = [(one, scheme) for one in solved for scheme in rows.fitting(one.factorization) if _many(one, scheme)]
    pairs.sort(key=lambda pair: (not pair[0].lead, *_promise(pair[0].row)))
    kept = [pair for place, pair in enumerate(pairs, 1) if place * _bins(pair[0]) ** 2 <= MAX_BINS_WORK]
    by_place: list[list[Row | Refused]] = [[] for _ in kept]

    def fill(place: int, tell: Tell[str]) -> None:
        one, scheme = kept[place]
        tell(scheme.name)
        by_place[place].append(_in_time(rows, one, scheme, deadline, first=place == 0))

    run_all([partial(fill, place) for place in range(len(kept))], hear, workers=workers)
    return [entry for entries in by_place for entry in entries]


def _in_time(
    rows: TableRows, one: Solved, scheme: Sampling, deadline: Deadline, *, first: bool = False
) -> Row | Refused:
    needed = _seconds_of(scheme, one)
    if one.row.mechanism == "identity" and not _many(one, scheme):  # all others are compared with it
        late = not scheme.claimed and needed > _REFERENCE_SHARE * (deadline.seconds or math.inf)
    elif _many(one, scheme):  # the first lead has an answer in any case, and what follows leaves time for its claim
        share = LATE_BOUNDS if one.lead else CALIBRATIONS
        late = not first and deadline.over(share, needed + claim_seconds(_bins(one)))
    else:
        late = not one.lead and deadline.over(CALIBRATIONS, needed)
    if late:
        return _late(one.row, scheme.name, deadline.told("was not calibrated"))
    return rows.sampled(one.factorization, one.row, scheme)


def _seconds_of(scheme: Sampling, one: Solved) -> float:
    """Return what a calibration takes by bounds, or by the law of losses."""
    bins = _bins(one)
    if scheme.claimed:
        separated = _SEPARATED_BIN_SECONDS * bins if "batch_size" in scheme.takes else 0.0
        return _BOUND_SECONDS * bins**2 + _product_seconds(one) + separated
    drawn_anew = _ALLOCATION_SECONDS if "bins" in scheme.takes else 0.0
    return drawn_anew + min(_LOSSES_BIN_SECONDS * bins, _MAX_LOSSES_SECONDS)


def _product_seconds(one: Solved) -> float:
    """Return what the Gram matrix of the bins takes where one column does not tell it."""
    strategy = one.factorization.matrix
    return 0.0 if strategy.time_invariant else _PRODUCT_SECONDS * strategy.n * _bins(one) ** 2


def _many(one: Solved, scheme: Sampling) -> bool:
    return scheme.claimed and _bins(one) > MANY_BINS


def _promise(row: Row) -> tuple[bool, float]:
    return (row.optimized_under is None and row.mechanism != "identity", row.loss.objective)


def _late(row: Row, scheme: str, reason: str, *, out_of_time: bool = True) -> Refused:
    message = f"sampled: {SAMPLINGS[scheme].title}: {reason}"
    return Refused(row.mechanism, row.parameters, row.normalization, message, out_of_time)


def with_claims(
    rows: TableRows,
    table: Sequence[Row],
    solved: Sequence[Solved],
    budgets: Sequence[int | None],
    hear: Callable[[str], None],
    deadline: Deadline,
) -> tuple[list[Row], list[Refused]]:
    """Return the table with claims in place of bounds for its best rows under balls in bins, and what lacks its claim.

    Args:
        rows: the maker of rows, with the schemes.
        table: all rows.
        solved: the mechanisms that they come from.
        budgets: vectors of state that recommendations may keep, ascending.
        hear: told the name of a scheme before each claim; what it raises ends all.
        deadline: of the comparison; no claim begins that is not expected to end by it, but a little later those of the
            rows recommended, and of leads near them, and the first one later still.
    """
    by_digest = {one.factorization.spec_digest: one for one in solved}
    leading = {digest for digest, one in by_digest.items() if one.lead}
    table, tested, unproved = ranked(table), set[tuple[str, str | None]](), list[Refused]()
    while True:
        place, chosen = _next_claim(table, tested, budgets, leading)
        if place is None:
            return table, unproved
        row = table[place]
        one = by_digest[row.spec_digest]
        needed = claim_seconds(_bins(one)) + _product_seconds(one)
        late = LATE_CLAIMS if tested and needed > _SHORT_CLAIM_SECONDS else FIRST_CLAIM
        if deadline.over(late if chosen else CLAIMS, needed):
            reason = deadline.told("has its bound only, since its claim was not tested")
            return table, [*unproved, _late(row, str(row.sampling), reason)]
        hear(str(row.sampling))
        tested.add(_key(row))
        try:
            claimed = rows.verified(one.factorization, row, deadline.work)
        except Cancelled:
            raise
        except FactorizeError as error:  # the bound of the row stands
            reason = f"has its bound only, since no claim was found: {error}"
            unproved.append(_late(row, str(row.sampling), reason, out_of_time=False))
        else:
            table = ranked([*table[:place], claimed, *table[place + 1 :]])


def claim_seconds(bins: int) -> float:
    """Return what a claim about so many bins takes."""
    return _CLAIM_SECONDS + _CLAIM_BIN_SECONDS * bins + _CLAIM_PAIR_SECONDS * bins**2


def _next_claim(
    table: Sequence[Row], tested: set[tuple[str, str | None]], budgets: Sequence[int | None], leading: set[str]
) -> tuple[int | None, bool]:
    """Return the row to verify next, and whether it has to be: the recommended ones, leads near them, the best few."""
    chosen = None
    for within in budgets:
        chosen = recommend(table, within)
        if chosen is not None and _bounded(table[chosen.row], tested):
            return chosen.row, True
    if chosen is None:
        return None, False
    budget, best = budgets[-1], table[chosen.row].objective_at_privacy or 0.0
    fitting = (i for i, row in enumerate(table) if budget is None or row.noise_vectors <= budget)
    bounded = [i for i in fitting if _bounded(table[i], tested)]
    near = [i for i in bounded if (table[i].objective_at_privacy or 0.0) < best * _MAX_GAIN**2]
    for i in near:
        if table[i].spec_digest in leading and (table[i].objective_at_privacy or 0.0) < best * _MAX_LEAD_GAIN**2:
            return i, True
    return next(iter(near), None) if len(tested) < MAX_VERIFIED_ROWS else None, False


def _bounded(row: Row, tested: set[tuple[str, str | None]]) -> bool:
    return SAMPLINGS[row.sampling or "fixed"].claimed and _key(row) not in tested


def _bins(one: Solved) -> int:
    spec = one.factorization.spec
    return spec.participation.epoch(spec.workload.n) or 1


def _key(row: Row) -> tuple[str, str | None]:
    return row.spec_digest, row.sampling


def described(rows: TableRows, table: Sequence[Row], solved: Sequence[Solved]) -> Iterator[dict[str, object]]:
    """Yield the schemes as plain data, each with why no row counts on it, if none does."""
    for name in ("fixed", *rows.samplings):
        counted = sum((row.sampling or "fixed") == name for row in table)
        reasons = (rows.misfit(name, one.factorization) for one in solved)
        why = None if counted else next((reason for reason in reasons if reason), "has no row")
        epochs = next((_epochs(one.factorization.spec) for one in solved), 1)
        yield {**SAMPLINGS[name].document(), "title": SAMPLINGS[name].called(epochs), "rows": counted, "misfit": why}


def _epochs(spec: Spec) -> int:
    return spec.participation.passes or 0


def sampled_bounds(
    rows: TableRows, spec: Spec, dual: Mapping[str, np.ndarray], deadline: Deadline
) -> dict[str, JsonObject]:
    """Return what no matrix beats at the privacy, by scheme: under balls in bins and fixed epochs, in the time."""
    target = rows.privacy
    if "balls_in_bins" not in rows.samplings or target is None or not spec.participation.periodic:
        return {}
    if deadline.over(LATE_CLAIMS, _HULL_SECONDS * spec.workload.n * (spec.participation.epoch(spec.workload.n) or 1)):
        return {}
    bound = bins_lower_bound(spec, dual, epsilon=target.epsilon or 0.0, delta=target.delta or 0.0)
    if bound is None:
        return {}
    return {"balls_in_bins": {"objective": bound.objective, "rule": bound.rule}}
