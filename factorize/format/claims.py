"""Claims about a strategy: its certified sensitivity, with its kind and the rule that proves it.

The module also lists the fields of a certificate, with the kind of value that each has, and does not say whether it is
true. A field that is not listed is refused, since no reader knows its meaning.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from factorize.encoding import JsonObject, canonical_json
from factorize.errors import CertificateError, CorruptObject, InvalidParameter
from factorize.numbers.scalars import finite_real

Kind = Literal["exact", "upper_bound"]

MIN_SENSITIVITY = 1e-60
"""The smallest sensitivity; squares in doubles of a smaller one bound nothing."""
_FIELDS = {"value", "hex", "kind", "rule", "participation"}
_HEX = re.compile(r"0x1\.[0-9a-f]{13}p[+-][0-9]{1,4}")


def certified_value(sensitivity: object) -> float:
    """Return the value of a sensitivity that states its kind, rule and participation."""
    remedy = "pass certificate.sensitivity of a factorization, which states kind, rule and participation"
    if not isinstance(sensitivity, Sensitivity):
        raise InvalidParameter(
            f"sensitivity is a plain {type(sensitivity).__name__} without a certificate; {remedy}", field="sensitivity"
        )
    if sensitivity.kind not in ("exact", "upper_bound") or not sensitivity.participation:
        raise InvalidParameter(
            f"sensitivity of kind {sensitivity.kind!r} for participation {sensitivity.participation!r} proves"
            f" no privacy (it must be exact or upper_bound, for a stated participation); {remedy}",
            field="sensitivity",
        )
    return finite_real("sensitivity", sensitivity.value, remedy=remedy)


def differing(one: Sensitivity, other: Sensitivity) -> tuple[str, object, object] | None:
    """Return the first of value, kind, rule and participation in which two differ, and both; None where they agree."""
    for name in ("value", "kind", "rule", "participation"):
        theirs, ours = getattr(one, name), getattr(other, name)
        if name == "participation":
            theirs, ours = dict(theirs), dict(ours)
        if theirs != ours:
            return name, theirs, ours
    return None


def is_exact(stated: Mapping[str, object]) -> bool:
    """Return whether a sensitivity is stated as the maximum itself, not as a bound."""
    return stated["kind"] == "exact"


@dataclass(frozen=True)
class Sensitivity:
    """A sensitivity with its kind, rule and participation.

    Attributes:
        value: the sensitivity, never below the true one of the matrix whose bytes were read.
        kind: `exact` if an allowed contribution attains `value` within 1e-9; else `upper_bound`.
        rule: the formula used.
        participation: the participation that it holds for, in the contract's JSON form.
    """

    value: float
    kind: Kind
    rule: str
    participation: JsonObject

    def __post_init__(self) -> None:
        """Raise CertificateError where doubles cannot have bounded the value: below 1e-60, infinite or NaN."""
        if not MIN_SENSITIVITY <= self.value < math.inf:
            raise CertificateError(
                f"a sensitivity of {self.value!r} is outside [{MIN_SENSITIVITY:g}, 1.8e308), the range in which "
                "doubles bound its square; scale C, which changes no loss"
            )

    @property
    def exact(self) -> bool:
        """Whether an allowed contribution attains the value, so that it is no mere upper bound."""
        return self.kind == "exact"

    def document(self) -> JsonObject:
        """Return the contract's JSON form."""
        return {**vars(self), "hex": self.value.hex()}

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> Sensitivity:
        """Read the sensitivity from its exact hexadecimal form; raise CorruptObject as `check_claim` does."""
        try:
            check_claim(manifest)
            stated = manifest["certificate"]["sensitivity"]
            return cls(float.fromhex(stated["hex"]), stated["kind"], stated["rule"], stated["participation"])
        except (KeyError, TypeError, ValueError):
            raise CorruptObject("the manifest does not state a sensitivity") from None


def check_claim(manifest: Mapping[str, Any]) -> None:
    """Raise CorruptObject unless the sensitivity is one number of one kind, for the participation of the spec."""
    stated = check_fields("the sensitivity", manifest["certificate"]["sensitivity"], _FIELDS)
    written, number = stated["hex"], stated["value"]
    if not isinstance(written, str) or not _HEX.fullmatch(written) or type(number) not in (int, float):
        raise CorruptObject(f"the sensitivity is stated as {str(written)[:40]!r} and {str(number)[:40]}")
    value = float.fromhex(written)
    if value != number:
        raise CorruptObject("the sensitivity's value and its hex form are two different numbers")
    if not MIN_SENSITIVITY <= value < math.inf:
        raise CorruptObject(f"the manifest states a sensitivity of {value!r}, outside [{MIN_SENSITIVITY:g}, 1.8e308)")
    if stated["kind"] not in ("exact", "upper_bound") or not isinstance(stated["rule"], str):
        raise CorruptObject(
            f"the sensitivity has the kind {str(stated['kind'])[:40]!r}; it must be exact or upper_bound"
        )
    if canonical_json(stated["participation"]) != canonical_json(manifest["spec"]["participation"]):  # 3.0 is not 3
        raise CorruptObject(
            f"the sensitivity is stated for {str(stated['participation'])[:80]}, but the spec has "
            f"{str(manifest['spec']['participation'])[:80]}; do not use it"
        )


FIELDS = {
    *("sensitivity", "loss", "lower_bound", "class_lower_bound", "relative_gap", "residual", "converged", "warnings")
}
LOSSES = ("total_squared", "mean_squared", "rmse", "max_error", "last_iterate", "objective")
BOUNDS = ("lower_bound", "class_lower_bound")


def check_certificate(given: Mapping[str, object]) -> None:
    """Check every field but the sensitivity; raise CorruptObject if one is missing, unknown, mistyped or infinite."""
    check_fields("the certificate", given, FIELDS)
    losses = check_fields("the certificate's loss", given["loss"], set(LOSSES))
    for name in LOSSES:
        _number(f"loss.{name}", losses[name], least=0.0, missing=True)
    for name in BOUNDS:
        if given[name] is not None:
            bound = check_fields(f"the certificate's {name}", given[name], {"objective", "rule"})
            _number(f"{name}.objective", bound["objective"], least=0.0)
            _text(f"{name}.rule", bound["rule"])
    _number("relative_gap", given["relative_gap"], missing=True)
    residual = check_fields("the certificate's residual", given["residual"], {"max_abs"})
    _number("residual.max_abs", residual["max_abs"], least=0.0)
    if type(given["converged"]) is not bool:
        raise CorruptObject(f"the certificate's converged is {str(given['converged'])[:40]!r}, neither true nor false")
    if not isinstance(given["warnings"], list):
        raise CorruptObject("the certificate's warnings are not a list")
    for warning in given["warnings"]:
        _text("warnings", warning)


def check_fields(
    name: str,
    given: object,
    fields: set[str],
    optional: set[str] | frozenset[str] = frozenset(),
    refusal: type[Exception] = CorruptObject,
) -> Mapping[str, object]:
    """Return an object that has these fields and no other; else raise the refusal, which names one."""
    if not isinstance(given, dict):
        raise refusal(f"{name} is {str(given)[:40]!r}, not an object")
    if odd := sorted(map(str, (set(given) ^ fields) - optional)):
        known = f"it has {', '.join(sorted(fields))}"
        raise refusal(f"the field {odd[0][:40]!r} of {name} is missing or unknown; {known}")
    return given


def _number(name: str, value: Any, *, least: float = -math.inf, missing: bool = False) -> None:
    if value is None and missing:
        return
    if type(value) not in (int, float) or not math.isfinite(value):
        raise CorruptObject(f"the certificate's {name} is {str(value)[:40]!r}, not a finite number")
    if value < least:
        raise CorruptObject(f"the certificate's {name} is {value!r}, below {least:g}")


def _text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise CorruptObject(f"the certificate's {name} is {str(value)[:40]!r}, not a text")
