"""The prediction, and the question that a caller asks."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from factorize.errors import ConditionNotMet
from factorize.plain_data import Frozen, NonNegative

NO_CLIPPING = "clipping does not bind: its bias is not modelled"


class Basis(StrEnum):
    """The basis of the constants in a prediction."""

    EXACT = "exact"
    """A closed form or a recursion, no inequality."""

    DERIVED = "derived constants"
    """A bound proved with the constants that are used; papers/pages/notes-predictions.md has the proof."""

    PAPER = "paper constants"
    """A bound with the constants that the paper prints or proves, slips noted."""


class Relation(StrEnum):
    """The relation of the value to the quantity."""

    EQUAL = "equals"
    AT_MOST = "is at most"


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One number, with its meaning and its basis.

    Attributes:
        quantity: the predicted quantity.
        relation: relation of `value` to it.
        value: the number.
        basis: basis of its constants.
        terms: parts of the value, or further numbers, by name.
        assumptions: the assumptions that must hold.
        source: paper and number of the statement.
        notes: remarks for the reader: slips of the paper that are mended, rounding of parameters.
        series: numbers over the steps, if there are some.
    """

    quantity: str
    relation: Relation = Relation.EQUAL
    value: float
    basis: Basis = Basis.EXACT
    terms: Mapping[str, float]
    assumptions: tuple[str, ...]
    source: str
    notes: tuple[str, ...] = ()
    series: Mapping[str, list[float]] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return the plain JSON form."""
        plain = {"relation": self.relation.value, "basis": self.basis.value, "notes": list(self.notes)}
        return {**asdict(self), **plain, "assumptions": list(self.assumptions)}


class Inverse(Protocol):
    """A factorization as predictions read it: by rows of C^-1. `factorize.Factorization` and clients are ones."""

    def rows(self, name: Any, start: int, stop: int) -> np.ndarray:
        """Return rows [start, stop) of a matrix, here of `C_inv`."""

    def shape(self, name: Any) -> tuple[int, int]:
        """Return the matrix's shape."""


class Question(Frozen):
    """Base of the questions: frozen plain data that answers itself.

    Attributes:
        about_factorization: whether the answer depends on the rows of a factorization.
    """

    about_factorization: ClassVar[bool] = False

    @abstractmethod
    def answer(self, inverse: Inverse | None = None) -> Prediction:
        """Return the prediction.

        Args:
            inverse: the factorization, for questions about one.

        Raises:
            ConditionNotMet: a hypothesis of the statement fails; the message names it.
            InvalidParameter: a value is outside its range.
        """


class ScaledNoise(Question):
    """A question about a factorization whose noise has a scale.

    Attributes:
        sigma: standard deviation per entry of Z.
        sigma_at: `certified`: the sensitivity is in sigma, as in a calibration; `sensitivity_1`: sigma is for a C of
            sensitivity 1, and the certified sensitivity of the factorization multiplies it.
    """

    sigma: NonNegative
    sigma_at: Literal["certified", "sensitivity_1"] = "certified"

    def scaled_sigma(self, inverse: Inverse) -> float:
        """Return the standard deviation per entry of this factorization's Z.

        Raises:
            ConditionNotMet: the sensitivity is asked for, and there is no certificate.
        """
        return self.sigma * (1.0 if self.sigma_at == "certified" else certified_sensitivity(inverse))


def require(holds: bool, condition: str, remedy: str, *, field: str) -> None:
    """Refuse a question whose hypothesis fails.

    Raises:
        ConditionNotMet: the condition does not hold.
    """
    if not holds:
        raise ConditionNotMet(f"{condition}; {remedy}", field=field)


def rows_wanted(inverse: Inverse | None, kind: str) -> Inverse:
    """Return the factorization that a question is about.

    Raises:
        ConditionNotMet: no factorization was given.
    """
    if inverse is None:
        raise ConditionNotMet(
            f"'{kind}' needs a factorization; give one (a file, a digest or a spec that is stored)",
            field="factorization",
        )
    return inverse


def certified_sensitivity(inverse: Inverse) -> float:
    """Return the sensitivity that the factorization's certificate states.

    Raises:
        ConditionNotMet: the factorization has no certificate.
    """
    certificate = getattr(inverse, "certificate", None)
    if certificate is None:
        raise ConditionNotMet(
            "this needs the sensitivity of C, and rows alone have no certificate; give a factorization",
            field="factorization",
        )
    return float(certificate.sensitivity.value)
