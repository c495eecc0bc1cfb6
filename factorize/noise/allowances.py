"""The allowance: the extra noise that finite precision needs, for every C' that roundings can make of C.

A rounding multiplies a number by 1 + e with |e| <= u = 2^-24 or 2^-53. The state is rounded once a step, so row t is
solved exactly by a lower-triangular C' in place of C: the path from column j to row t has t - j of these factors, and
|C'[t, j] - C[t, j]| is at most ((1 + u)^(t-j) - 1) times the sum of the absolute products along the path. Therefore

    sens(C') <= sens(C) + K max_j |(C' - C) e_j|          for K participations.

Where states cancel, the roundings are weighed by the columns with which later rows read them. Where the state keeps
draws, not rows, X near C^-1 is off by F, and sens(X^-1) <= sens(C) / (1 - |C F|). The noise is multiplied by that much
more than sens(C). A strategy without a bound is refused. The bound holds for every fixed choice of the factors. It
ignores that the factors depend on the Z that they multiply, and that a floating-point normal is not a real one.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from factorize.errors import InvalidParameter, InvalidParticipation, UnsupportedProblem
from factorize.noise.recurrences.base import Recurrence
from factorize.noise.recurrences.state_rounding import DOUBLE, SINGLE, Deviation
from factorize.participation import read_participation
from factorize.privacy import Calibration

UNITS = {"float32": SINGLE, "float64": DOUBLE}
"""The unit roundoff by the precision of the state."""
MAX_SINGLE_ALLOWANCE, MAX_ALLOWANCE = 1e-3, 1e-2
"""The largest allowances: of a float32 state that nobody asked for by name, and of any state."""
ROW_SUM_ALLOWANCE = 2.0**-20
"""The allowance where rows of C^-1 are summed in float64; `covering` enlarges rows whose sums may lose half of it."""
_SLACK = 1 + 2.0**-16  # It covers the roundings of the allowance itself.


def allowance(deviation: Deviation, sensitivity: float, participations: int, steps: int) -> float:
    """Return the factor by which sigma has to grow, less 1: at least max sens(C') / sens(C) - 1.

    Args:
        deviation: the deviation from C, with columns in the units of C.
        sensitivity: the certified sensitivity, at least that of C.
        participations: the most participations of one user.
        steps: n.

    Returns:
        The allowance; infinite where no bound is known.
    """
    noising = steps * sensitivity * deviation.inverse  # It is at least the operator norm of C (X - C^-1).
    if not noising < 0.5:
        return math.inf
    more = participations * (deviation.columns / sensitivity + deviation.entries)
    released = (1 - SINGLE) * (1 - 4 * DOUBLE)  # Each number is rounded to float32, and divided for a mean.
    less = (1 - noising) * (1 - deviation.rows) * released
    return ((1 + more) / less * (1 + 4 * DOUBLE) - 1) * _SLACK


def participations_of(participation: Mapping[str, object], steps: int) -> int:
    """Return the most participations of one user, which is every step where the participation does not bound them."""
    try:
        return read_participation(participation).spread(steps).most
    except (InvalidParticipation, UnsupportedProblem):
        return steps


def check_allowance(found: float, precision: str) -> float:
    """Return an allowance after checking that it is small enough.

    Raises:
        InvalidParameter: the allowance is too large.
    """
    if found <= MAX_ALLOWANCE:
        return found
    remedy = 'use precision="float64"' if precision == "float32" else "make noise from rows of C^-1, or use another C"
    raise InvalidParameter(
        f"rounding a {precision} state can raise the sensitivity by a share of {found:.3g}, and the limit is "
        f"{MAX_ALLOWANCE:g}; {remedy}",
        field="precision",
    )


def choose_precision(
    recurrence: Recurrence, calibration: Calibration, asked: str | None, *, draws: float = 0.0
) -> tuple[str, float]:
    """Return the precision of the state and its allowance.

    Args:
        recurrence: the recurrence of C.
        calibration: the calibration, which states the sensitivity and the participation.
        asked: a precision, or None for float32 where that costs at most `MAX_SINGLE_ALLOWANCE`, and else float64.
        draws: relative error of every draw, which is the same in all its uses.

    Raises:
        InvalidParameter: the roundings cannot be bounded by `MAX_ALLOWANCE`.
    """
    if asked is None:
        single = rounding_of(recurrence, calibration, SINGLE, draws)
        if single <= MAX_SINGLE_ALLOWANCE:
            return "float32", single
    precision = asked or "float64"
    return precision, check_allowance(rounding_of(recurrence, calibration, UNITS[precision], draws), precision)


def rounding_of(
    recurrence: Recurrence, calibration: Calibration, unit: float, draws: float = 0.0, arithmetic: float = DOUBLE
) -> float:
    """Return the allowance of a recurrence whose state is rounded by up to `unit`, and each draw by up to `draws`."""
    certified = calibration.sensitivity
    times = participations_of(certified.participation, recurrence.steps)
    deviation = recurrence.deviation(unit, arithmetic)
    return allowance(replace(deviation, rows=deviation.rows + draws), certified.value, times, recurrence.steps)


def raised(sigma: float, allowance: float) -> float:
    """Return sigma (1 + allowance), rounded up."""
    return math.nextafter(sigma * (1 + allowance), math.inf)
