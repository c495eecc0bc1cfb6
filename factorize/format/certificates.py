"""The certificate as a manifest states it: under which names, and what kind of value each has; not whether it is true.

A field that is not named here is refused: no reader knows what it claims.
"""

import math
from collections.abc import Mapping
from typing import Any

from factorize.errors import CorruptObject

FIELDS = {
    *("sensitivity", "loss", "lower_bound", "class_lower_bound", "relative_gap", "residual", "converged", "warnings")
}
LOSSES = ("total_squared", "mean_squared", "rmse", "max_error", "last_iterate", "objective")
BOUNDS = ("lower_bound", "class_lower_bound")


def check_certificate(given: Mapping[str, object]) -> None:
    """Check all but the sensitivity; raise CorruptObject for what is missing, unknown, of another type or infinite."""
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
        raise CorruptObject("the certificate's warnings are no list")
    for warning in given["warnings"]:
        _text("warnings", warning)


def check_fields(
    name: str,
    given: object,
    fields: set[str],
    optional: set[str] | frozenset[str] = frozenset(),
    refusal: type[Exception] = CorruptObject,
) -> Mapping[str, Any]:
    """Return an object that has these fields and no other; else raise the refusal, which names one."""
    if not isinstance(given, dict):
        raise refusal(f"{name} is {str(given)[:40]!r}, no object")
    if odd := sorted(map(str, (set(given) ^ fields) - optional)):
        known = f"it has {', '.join(sorted(fields))}"
        raise refusal(f"{name} has a field {odd[0][:40]!r} that is missing or unknown; {known}")
    return given


def _number(name: str, value: Any, *, least: float = -math.inf, missing: bool = False) -> None:
    if value is None and missing:
        return
    if type(value) not in (int, float) or not math.isfinite(value):
        raise CorruptObject(f"the certificate's {name} is {str(value)[:40]!r}, no finite number")
    if value < least:
        raise CorruptObject(f"the certificate's {name} is {value!r}, below {least:g}")


def _text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise CorruptObject(f"the certificate's {name} holds {str(value)[:40]!r}, which is no text")
