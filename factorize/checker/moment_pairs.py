"""The sensitivity of first and second moments that are released together, from the bytes of both strategies.

It shares no code with `factorize.accounting.joint_moments`: both squared sensitivities are bracketed by
rationals, and the pair's is derived from them by docs/notes/checker.md, "First and second moments".
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from factorize.checker.sensitivity import Bracket, bracket_sensitivity, square_root_up
from factorize.checker.strategy import FactorFile
from factorize.errors import CertificateError


def bracket_of(files: Sequence[FactorFile], statement: Mapping[str, Any]) -> Bracket:
    """Return bounds of the squared sensitivity of a pair, in units of clip norm and of the adjacency's factor.

    Args:
        files: of C1 and C2.
        statement: of a receipt or of `JointMoments.document()`: digests, participation, adjacency, weight and the
            sensitivity's kind.

    Raises:
        CertificateError: the statement is of other files, or of an adjacency that is not known here.
    """
    digests = [file.manifest["digest"] for file in files]
    if list(statement["digests"]) != digests:
        raise CertificateError(f"the statement is of {list(statement['digests'])}, these files are {digests}")
    if statement["sensitivity_kind"] not in ("exact", "upper_bound"):
        raise CertificateError(f"a sensitivity of kind {str(statement['sensitivity_kind'])[:40]!r} proves nothing")
    participation, weight = dict(statement["participation"]), Fraction(float(statement["weight"]))
    if weight <= 0:
        raise CertificateError(f"the weight {statement['weight']!r} is not positive")
    one, two = (bracket_sensitivity(file.strategy(), participation) for file in files)
    low, high, reason = _pair(one, two, weight**2, participation, str(statement["adjacency"]))
    return Bracket(low, Fraction(square_root_up(high)) ** 2, reason, one.pattern, one.signs)


def _pair(
    one: Bracket, two: Bracket, weight: Fraction, participation: Mapping[str, object], adjacency: str
) -> tuple[Fraction, Fraction, str]:
    """Return bounds of the squared sensitivity of the pair, and why they hold; the weight is squared."""
    most = two.upper * weight
    if adjacency == "zero_out":
        together = one.pattern == two.pattern and set(one.signs) | set(two.signs) <= {1}
        low = one.lower + weight * two.lower if together else one.lower
        return low, one.upper + most, "one unit vector in all steps of a pattern" if together else "a sum of both"
    if adjacency != "replace_one":
        raise CertificateError(f"adjacency {adjacency!r} is not known here; zero_out and replace_one are")
    if participation != {"kind": "single"}:
        return one.lower, one.upper + most, "twice what one contribution moves"
    if one.lower >= 2 * most:
        return one.lower, one.upper, "opposite gradients have the same squares"
    # (a + 2 b)^2 / (8 b) rises with a, and with b where 2 b > a; below it is at most a, which a sum covers
    low = one.lower
    if one.upper <= 2 * most:
        return low, (one.upper + 2 * most) ** 2 / (8 * most), "the largest of a t + b (2 t - t^2 / 2), t in [0, 4]"
    return low, one.upper + most, "a sum of both"
