"""The base of all plain data that a spec is made of: frozen, strict, unknown fields refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag

from factorize.numbers.scalars import MAX_STEPS


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

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Frozen(BaseModel):
    """Immutable plain data: strict types, unknown fields refused, equal by value."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", ignored_types=(), allow_inf_nan=False)

    def document(self) -> dict[str, Any]:
        """Return the plain JSON form: every field but those left out, in the contract's names."""
        return self.model_dump(mode="json", exclude_none=True)
