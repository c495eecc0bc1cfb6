"""A sensitivity with its kind: bounded by the checker, and computed a second time in plain doubles.

The checker (factorize/checker/sensitivity.py) bounds it from the tensors that a file would hold, all rounding counted;
docs/sensitivity.md has its rules. The stated value leaves room for sums in any other order, so that a later check of
the file finds it large enough. A second program (plain_sensitivity.py) works from the rows of the structure in
ordinary floating point, and must agree to 1e-9: the two share no code, so a blunder in either shows.
"""

from factorize.checker.arithmetic.near import NotEnclosed, square_root_down, square_root_up
from factorize.checker.sensitivity import BOUNDS, bracket_limit, bracket_sensitivity
from factorize.checker.strategy import Strategy
from factorize.errors import CertificateError, UnsupportedProblem
from factorize.factors.plain_sensitivity import LIMITS_AGREEMENT, plain_value
from factorize.format.claims import Kind
from factorize.format.claims import Sensitivity as Sensitivity
from factorize.participation import FixedEpochs, MinSep, Participation, Single
from factorize.structures.endless import AnyStrategy, EndlessMatrix

SERVED_KINDS: tuple[type[Participation], ...] = (Single, FixedEpochs, MinSep)
"""The kinds of participation that the rules are proved for; a class derived from such a kind is another kind."""
AGREEMENT = 1e-9
"""The largest relative difference of the two values."""


def sensitivity_of(matrix: AnyStrategy, participation: Participation) -> Sensitivity:
    """Return the sensitivity of a strategy matrix under a participation.

    Args:
        matrix: C.
        participation: one of the kinds that the rules serve.

    Raises:
        UnsupportedProblem: no rule is proved for this participation, or none for a strategy without end.
        TooLarge: columns overlap, and n is above the limit at which they are multiplied.
        CertificateError: the numbers leave the range of double precision, or the two programs disagree.
    """
    if type(participation) not in SERVED_KINDS:
        raise UnsupportedProblem(
            f"no rule of sensitivity is proved for participation {participation.kind!r}; use "
            f"{', '.join(sorted(kind.named() for kind in SERVED_KINDS))}, or prove one and add it to SERVED_KINDS",
            field="/participation/kind",
        )
    document = participation.document()
    try:
        if isinstance(matrix, EndlessMatrix):
            if participation.endless_spread() is None:
                matrix.finite()
            bracket = bracket_limit(matrix.structure, matrix.tensors(), document)
        else:
            bracket = bracket_sensitivity(Strategy(matrix.structure, matrix.tensors(), matrix.n), document)
    except NotEnclosed as reason:
        raise CertificateError(
            f"the sensitivity of this {matrix.structure} matrix with n={matrix.side} cannot be proved: {reason}; "
            "scale its states, or store the matrix as a dense one"
        ) from None
    kind: Kind = "exact" if bracket.exact else "upper_bound"
    sensitivity = Sensitivity(bracket.stated, kind, bracket.rule, document)
    off = bracket.off if matrix.side else min(float(bracket.upper / bracket.lower) - 1, LIMITS_AGREEMENT)
    least = square_root_down(bracket.lower) if bracket.rule in BOUNDS else None
    compare_plain(square_root_up(bracket.upper), matrix, participation, off, least=least)
    return sensitivity


def compare_plain(
    bound: float, matrix: AnyStrategy, participation: Participation, off: float, *, least: float | None = None
) -> None:
    """Compare the checker's upper bound on a sensitivity with the value from the rows of C in doubles.

    `off` is the relative difference that another evaluation of the checker's rule may have: C may cancel. `least` is
    the lower end where the checker's search for the worst pattern was given up: the second program searches longer.

    Raises:
        CertificateError: they differ by more than 1e-9 and `off`, or the value lies outside both ends by as much.
        TooLarge: columns overlap, and n is above the limit at which they are multiplied.
    """
    plain, room = plain_value(matrix, participation), AGREEMENT + off
    if not (bound if least is None else least) * (1 - room) <= plain <= bound * (1 + room):
        raise CertificateError(
            f"the checker bounds the sensitivity by {bound!r} from the tensors of this {matrix.structure} matrix, but "
            f"its rows give {plain!r}; this is a fault of factorize, so report it with the spec"
        )
