"""Plain data that a spec is made of: frozen, strict, unknown fields refused, every problem reported at its field."""

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, TypeAdapter, ValidationError

from factorize.encoding import DIGEST
from factorize.errors import InvalidSpec, Violation
from factorize.numbers.scalars import MAX_STEPS
from factorize.plain_data.violations import violations


def _fold_zero(value: float) -> float:
    return value + 0.0  # -0.0 + 0.0 is 0.0, and every other double is itself


Real = Annotated[float, Field(allow_inf_nan=False), AfterValidator(_fold_zero)]
"""A finite double; `1` and `1.0`, `0` and `-0.0` are the same value."""
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), AfterValidator(_fold_zero)]
Fraction = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False), AfterValidator(_fold_zero)]
"""A real in [0, 1)."""
UnitInterval = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), AfterValidator(_fold_zero)]
Count = Annotated[int, Field(ge=1, le=MAX_STEPS)]
"""A number of steps, epochs or bands: 1 to 10^8."""
CountOrEndless = Annotated[
    Annotated[Count, Tag("number")] | Annotated[Literal["unbounded"], Tag("text")],
    Discriminator(lambda value: "text" if isinstance(value, str) else "number"),
]
"""A number of steps, or `unbounded`; told apart by type, so that a bad one is refused once."""
Long = Field(fail_fast=True)
"""Mark of lists that may be long: a bad one is refused at its first bad entry."""
Sha256 = Annotated[str, Field(pattern=f"^{DIGEST}$")]


class Frozen(BaseModel):
    """Immutable plain data: strict types, unknown fields refused, equal by value."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", ignored_types=(), allow_inf_nan=False)

    def document(self) -> dict[str, Any]:
        """Return the plain JSON form: every field but those left out, in the contract's names."""
        return self.model_dump(mode="json", exclude_none=True)

    def model_copy(self, *, update: Mapping[str, object] | None = None, deep: bool = False) -> Self:
        """Return a copy with other values, which keeps nothing that was computed from the old ones."""
        copied = super().model_copy(update=update, deep=deep)
        for name in copied.__dict__.keys() - type(self).model_fields:
            del copied.__dict__[name]
        return copied


def read_union(document: object, of: object) -> Any:
    """Return the model, of a class or of a union told apart by a tag, that a document describes.

    Raises:
        InvalidSpec: it is no JSON object, or describes none; one violation per problem (the first 20), each with a
            pointer to its field.
    """
    if not isinstance(document, Mapping):
        kinds = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "a boolean"}
        raise InvalidSpec([Violation("", f"a JSON object is expected; got {kinds.get(type(document), 'null')}")])
    data = dict(document)
    try:
        return _adapter_of(of).validate_python(data)
    except ValidationError as error:
        raise InvalidSpec(violations(data, error, of)) from None


_adapter_of = cache(TypeAdapter)
