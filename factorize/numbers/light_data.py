"""Light data: frozen documents of a kind and whole numbers, for readers without the packages that parse specs.

A class derived from `LightData` is a frozen dataclass, and pydantic takes it as a field of a model: it reads the same
fields there with the same limits, and no others.
"""

import dataclasses
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Annotated, Any, Literal, NamedTuple, Self, dataclass_transform, get_args, get_origin, get_type_hints

from factorize.errors import InvalidParameter
from factorize.numbers.scalars import MAX_STEPS

Document = Mapping[str, Any]


class Whole(NamedTuple):
    """The limits of a whole number, as the metadata of a field."""

    least: int
    most: int | None = None

    def check(self, name: str, value: object) -> None:
        """Raise InvalidParameter for anything but such a number."""
        if isinstance(value, bool) or not isinstance(value, int) or not self.least <= value <= (self.most or value):
            limits = f"{self.least} or more" if self.most is None else f"from {self.least} to {self.most}"
            raise InvalidParameter(f"{name} is {str(value)[:40]!r}; give a whole number, {limits}", field=name)

    def __get_pydantic_core_schema__(self, source: object, handler: Callable[[Any], Any]) -> Any:
        """Return pydantic's schema with the same limits, for whole numbers alone."""
        return handler(source) | {"strict": True, "ge": self.least} | ({} if self.most is None else {"le": self.most})


Steps = Annotated[int, Whole(1, MAX_STEPS)]
"""A number of steps or epochs."""
Often = Annotated[int, Whole(1)]
"""A number of times."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
@dataclasses.dataclass(frozen=True, kw_only=True)
class LightData:
    """Frozen data of one kind: `kind`, a literal, and whole numbers; equal by value.

    Raises:
        InvalidParameter: a number is outside its limits.
    """

    __pydantic_config__ = {"extra": "forbid"}

    kind: str

    def __init_subclass__(cls) -> None:
        """Make the subclass a dataclass."""
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        """Check the kind and the numbers."""
        for name, hint in _hints(type(self)).items():
            value = getattr(self, name)
            if get_origin(hint) is Literal and value not in get_args(hint):
                raise InvalidParameter(f"kind {str(value)[:40]!r} is not {get_args(hint)[0]!r}", field="kind")
            if value is not None or type(None) not in get_args(hint):
                for limits in _limits(hint):
                    limits.check(name, value)

    @classmethod
    def named(cls) -> str:
        """Return the contract's name of the kind."""
        return str(get_args(_hints(cls)["kind"])[0])

    @classmethod
    def read(cls, given: Document) -> Self:
        """Return the data that a document of this kind describes.

        Raises:
            InvalidParameter: it lacks a number, has an unknown one, or one outside its limits.
        """
        whole: dict[str, Any] = {
            name: int(x) if isinstance(x, Integral) and not isinstance(x, bool) else x for name, x in given.items()
        }
        try:
            return cls(**whole)
        except TypeError:
            fields = ", ".join(_hints(cls))
            raise InvalidParameter(f"{str(dict(given))[:80]} lacks a field or has others than {fields}") from None

    def document(self) -> dict[str, Any]:
        """Return the contract's JSON form, with every number that was given."""
        return {name: value for name, value in vars(self).items() if value is not None}


_HINTS: dict[type, dict[str, object]] = {}


def _hints(kind: type[LightData]) -> dict[str, object]:
    """Return the types of the fields, kept since evaluating these strings of the source takes longest."""
    if kind not in _HINTS:
        _HINTS[kind] = get_type_hints(kind, include_extras=True)
    return _HINTS[kind]


def _limits(hint: object) -> list[Whole]:
    """Return the limits in the metadata of a field, or of a part of its union."""
    own = [limits for limits in getattr(hint, "__metadata__", ()) if isinstance(limits, Whole)]
    return own + [limits for part in get_args(hint) for limits in _limits(part)]
