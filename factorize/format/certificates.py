"""The certificate as a manifest states it: under which names, and what kind of value each has; not whether it is true.

Fields that are not named here may be there: the contract grows. A loss has no others, since all of them are read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from factorize.errors import CorruptObject

LOSSES = ("total_squared", "mean_squared", "rmse", "max_error", "last_iterate", "objective")
BOUNDS = ("lower_bound", "class_lower_bound")


def check_certificate(given: Mapping[str, Any]) -> None:
    """Check the certificate of a manifest, but for its sensitivity.

    Raises:
        CorruptObject: a field is missing, is of another type, or is a number that is not finite.
        KeyError: a field is missing.
    """
    losses = _object("loss", given["loss"])
    if set(losses) != set(LOSSES):
        raise CorruptObject(f"the certificate's loss has {str(sorted(losses))[:120]}; it has {', '.join(LOSSES)}")
    for name in LOSSES:
        _number(f"loss.{name}", losses[name], missing=True)
    for name in BOUNDS:
        if given[name] is not None:
            bound = _object(name, given[name])
            _number(f"{name}.objective", bound["objective"])
            _text(f"{name}.rule", bound["rule"])
    _number("relative_gap", given["relative_gap"], missing=True)
    _number("residual.max_abs", _object("residual", given["residual"])["max_abs"])
    if type(given["converged"]) is not bool:
        raise CorruptObject(f"the certificate's converged is {str(given['converged'])[:40]!r}, neither true nor false")
    if not isinstance(given["warnings"], list):
        raise CorruptObject("the certificate's warnings are no list")
    for warning in given["warnings"]:
        _text("warnings", warning)


def _object(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise CorruptObject(f"the certificate's {name} is {str(value)[:40]!r}, no object")
    return value


def _number(name: str, value: Any, *, missing: bool = False) -> None:
    if value is None and missing:
        return
    if type(value) not in (int, float) or not math.isfinite(value):
        raise CorruptObject(f"the certificate's {name} is {str(value)[:40]!r}, no finite number")


def _text(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise CorruptObject(f"the certificate's {name} holds {str(value)[:40]!r}, which is no text")
