"""A sensitivity that says what it is: bounded by the checker, and found a second time in plain doubles.

The checker (factorize/checker/sensitivity.py) bounds it from the tensors that a file would hold, all rounding counted;
docs/sensitivity.md has its rules. The value stated leaves room for sums in any other order, so that whoever checks the
file later finds it large enough. A second program works from the rows of the structure, and has to agree to 1e-9.
"""

import math

from factorize.certificate.plain_sensitivity import plain_sensitivity
from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.sensitivity import square_root_up, squared_limit, squared_sensitivity
from factorize.checker.strategy import Strategy
from factorize.errors import CertificateError, UnsupportedProblem
from factorize.format.claims import Kind
from factorize.format.claims import Sensitivity as Sensitivity
from factorize.participation import FixedEpochs, MinSep, Participation, Single
from factorize.structures.endless import AnyStrategy, EndlessMatrix

SERVED: tuple[type[Participation], ...] = (Single, FixedEpochs, MinSep)
"""Kinds of participation that the rules are proved for; a class derived from such a kind is another kind."""
AGREEMENT = 1e-9
"""Share by which the two values may differ."""
LIMITS_AGREE = 2.0**-26
"""The same of limits without end, at most, where the checker adds up millions of coefficients."""


def sensitivity_of(matrix: AnyStrategy, participation: Participation) -> Sensitivity:
    """Return the sensitivity of a strategy matrix to those who take part so.

    Args:
        matrix: C.
        participation: of a kind that the rules serve.

    Raises:
        UnsupportedProblem: no rule is proved for this participation, or none for it without end.
        TooLarge: columns overlap, and n is above the limit at which they are multiplied.
        CertificateError: the numbers leave the range of double precision, or the two programs disagree.
    """
    if type(participation) not in SERVED:
        raise UnsupportedProblem(
            f"no rule of sensitivity is proved for participation {participation.kind!r}; use "
            f"{', '.join(sorted(kind.named() for kind in SERVED))}, or prove one and add it to SERVED",
            field="/participation/kind",
        )
    document = participation.document()
    try:
        if isinstance(matrix, EndlessMatrix):
            if participation.endless_spread() is None:
                matrix.finite()
            bracket = squared_limit(matrix.structure, matrix.tensors(), document)
        else:
            bracket = squared_sensitivity(Strategy(matrix.structure, matrix.tensors(), matrix.n), document)
    except NotEnclosed as reason:
        raise CertificateError(
            f"the sensitivity of this {matrix.structure} matrix with n={matrix.side} is not known: {reason}; scale its "
            "states, or store the matrix as a dense one"
        ) from None
    kind: Kind = "exact" if bracket.exact else "upper_bound"
    sensitivity = Sensitivity(bracket.stated, kind, bracket.rule, document)
    off = bracket.off if matrix.side else min(float(bracket.upper / bracket.lower) - 1, LIMITS_AGREE)
    compare_plain(square_root_up(bracket.upper), matrix, participation, off)
    return sensitivity


def compare_plain(bound: float, matrix: AnyStrategy, participation: Participation, off: float) -> None:
    """Compare a sensitivity that the checker has bounded from above with the one that the rows of C give in doubles.

    `off` is the share by which another evaluation of the checker's rule may differ: C may cancel.

    Raises:
        CertificateError: they differ by more than 1e-9 and `off`.
        TooLarge: columns overlap, and n is above the limit at which they are multiplied.
    """
    if isinstance(matrix, EndlessMatrix):
        separation, most, _ = participation.endless_spread() or matrix.finite()
        plain = math.sqrt(matrix.squared_limit(separation, most))
    else:
        plain = plain_sensitivity(matrix, participation)
    if not abs(plain - bound) <= (AGREEMENT + off) * bound:
        raise CertificateError(
            f"the checker bounds the sensitivity by {bound!r} from the tensors of this {matrix.structure} matrix, and "
            f"its rows give {plain!r}: one of the two programs is wrong; report the spec"
        )
