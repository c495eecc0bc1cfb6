"""Every error of the project, drawn as one tree.

FactorizeError
├── InvalidParameter            a value is out of range, of the wrong type or not finite        (also a ValueError)
│   ├── InvalidSpec             a spec breaks the contract; carries a JSON pointer per problem
│   ├── MalformedJson           a text is not JSON by the strict rules
│   ├── InvalidWorkload         a workload or a user's matrix cannot be used
│   ├── InvalidStrategy         a strategy matrix is not lower-triangular, singular or not finite
│   ├── InvalidParticipation    a participation pattern does not fit n
│   ├── ConditionNotMet         a formula was asked for whose hypothesis fails
│   ├── UnsupportedAdjacency    a neighbouring relation that no bound here covers
│   ├── UnsupportedProblem      the spec is valid, and this mechanism has no answer for it
│   └── TooLarge                the estimate of bytes or steps is above the limit
├── SolveFailed                 a solver stopped without an answer that can be certified
│   ├── Cancelled
│   └── LimitExceeded           the solve ran out of memory or time
├── CertificateError            the recomputed numbers contradict the claim; nothing is stored
├── StoreError
│   ├── NotFound
│   ├── CorruptObject           stored bytes do not hash to their name
│   │   └── BadSignature        a signature is damaged, of other bytes, or of another key
│   ├── Revoked                 the operator has taken a result back, and says why
│   └── StoreUnavailable        no space, no permission, an I/O error; try again
├── ServiceError                the service answered with a problem, or cannot be reached
│   └── ServiceUnreachable
└── MissingExtra                what was asked needs a package of an extra            (also a ModuleNotFoundError)

`CacheUnusable` is a warning. Every message states the value, the limit and the way out. `slug` is the stable name of
the error in problem documents and in the command line's JSON.
"""

import copyreg
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Self


class FactorizeError(Exception):
    """Base of everything this project raises on purpose."""

    slug: ClassVar[str] = "error"

    def __reduce__(self) -> tuple[object, ...]:
        """Return how a pool's other process makes the same error, whatever its constructor takes."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class InvalidParameter(FactorizeError, ValueError):
    """A value is out of range, of the wrong type or not finite.

    Args:
        message: value, limit and remedy.
        field: name of the parameter or JSON pointer of the field, if there is one.
    """

    slug = "invalid-parameter"

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True)
class Violation:
    """One broken rule of a spec: where (an RFC 6901 JSON pointer) and what."""

    pointer: str
    message: str


_MAX_CHARACTERS = 1500
"""The most characters of all violations together in the message; `violations` has the others."""


class InvalidSpec(InvalidParameter):
    """A spec breaks the contract."""

    slug = "invalid-spec"

    def __init__(self, violations: list[Violation]) -> None:
        self.violations = violations
        said = [f"{v.pointer}: {v.message}" if v.pointer else v.message for v in violations]
        shown = next((count for count in range(len(said), 1, -1) if len("; ".join(said[:count])) < _MAX_CHARACTERS), 1)
        text = "; ".join(said[:shown] + [f"and {len(said) - shown} more"] * (shown < len(said)))
        super().__init__(text, field=violations[0].pointer if violations else None)

    @classmethod
    def at(cls, message: str, *pointers: str) -> Self:
        """Return the error of one rule that is broken at these places."""
        return cls([Violation(pointer, message) for pointer in pointers])

    def within(self, pointer: str) -> Self:
        """Return the error of a body that has the spec, or a part of it, at this pointer."""
        return type(self)([Violation(pointer + each.pointer, each.message) for each in self.violations])


class MalformedJson(InvalidParameter):
    """A text is not JSON as this project reads it (one strict reader for files, HTTP and the command line)."""

    slug = "malformed-json"


class InvalidWorkload(InvalidParameter):
    """A workload or a user's matrix cannot be used."""

    slug = "invalid-workload"


class InvalidStrategy(InvalidParameter):
    """A strategy matrix is not square, not lower-triangular, singular or not finite."""

    slug = "invalid-strategy"


class InvalidParticipation(InvalidParameter):
    """A participation pattern is empty or does not fit the number of steps."""

    slug = "invalid-participation"


class ConditionNotMet(InvalidParameter):
    """A formula was asked for whose hypothesis fails; the message names the safe alternative."""

    slug = "condition-not-met"


class UnsupportedAdjacency(InvalidParameter):
    """The neighbouring relation is one that no bound of this project covers."""

    slug = "unsupported-adjacency"


class UnsupportedProblem(InvalidParameter):
    """The spec is valid, and this mechanism (of this release) has no answer for it."""

    slug = "unsupported-problem"


class TooLarge(InvalidParameter):
    """The estimate of bytes or steps is above the limit; nothing was allocated."""

    slug = "too-large"


class SolveFailed(FactorizeError):
    """A solver stopped without an answer that can be certified."""

    slug = "solve-failed"


class Cancelled(SolveFailed):
    """The caller asked the solver to stop."""

    slug = "cancelled"


class LimitExceeded(SolveFailed):
    """A solve ran out of the memory or the time it was admitted with."""

    slug = "limit-exceeded"


class CertificateError(FactorizeError):
    """The recomputed numbers contradict the claim, or evidence is missing; nothing is stored."""

    slug = "certificate-error"


class StoreError(FactorizeError):
    """Base of the store's errors."""

    slug = "store-error"


class NotFound(StoreError, LookupError):
    """No object has that name."""

    slug = "not-found"


class CorruptObject(StoreError):
    """Stored bytes do not hash to their name; they are never served."""

    slug = "corrupt-object"


class BadSignature(CorruptObject):
    """A signature is damaged, of other bytes, or of another key than the one that is trusted."""

    slug = "bad-signature"


class Revoked(StoreError):
    """The operator has taken a result back; it is kept and never given out again.

    Args:
        message: which result was revoked, since when and why.
        digest: digest of the result.
        reason: the operator's words.
    """

    slug = "revoked"

    def __init__(self, message: str, *, digest: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.digest = digest
        self.reason = reason


class StoreUnavailable(StoreError):
    """The store's medium refused: no space, no permission, an I/O error. Nothing was published; try again.

    Args:
        message: the failure, and the way out.
        state: name of the failure, one of those in api/readiness.py.
    """

    slug = "store-unavailable"

    def __init__(self, message: str, *, state: str = "store-unreachable") -> None:
        super().__init__(message)
        self.state = state


class ServiceError(FactorizeError):
    """The service answered with a problem document.

    Args:
        message: title and detail of the problem.
        status: HTTP status.
        problem: the decoded problem document.
        retry_after: seconds after which to ask the service again, if it said so.
    """

    slug = "service-error"

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        problem: dict[str, object] | None = None,
        retry_after: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.status, self.problem, self.retry_after = status, problem or {}, retry_after


class ServiceUnreachable(ServiceError):
    """No service answered at that address."""

    slug = "service-unreachable"


_PACKAGES_OF_EXTRAS = {
    "accounting": "dp_accounting",
    "cli": "matplotlib pydantic_settings rich typer",
    "cloud": "obstore",
    "cluster": "dask distributed msgpack psutil sqlalchemy tornado",
    "conic": "cvxpy scs",
    "flower": "flwr",
    "huggingface": "transformers",
    "jax": "jax jax_privacy optax",
    "nvflare": "nvflare",
    "otel": "opentelemetry",
    "postgres": "psycopg",
    "serve": "anyio fastapi h11 jwt prometheus_client setuptools starlette uvicorn",
    "signing": "OpenSSL cryptography model_signing",
    "solve": "flint llvmlite numba scipy threadpoolctl",
    "torch": "opacus torch",
}
EXTRAS = {package: extra for extra, packages in _PACKAGES_OF_EXTRAS.items() for package in packages.split()}
"""The packages that are no base dependency, and the smallest extra that brings each."""


class CacheUnusable(RuntimeWarning):
    """A folder that no answer needs cannot be read or written; the message names it, and the variable that sets it."""


class MissingExtra(FactorizeError, ModuleNotFoundError):
    """A feature needs a package that a plain `pip install factorize` does not bring.

    Args:
        what: the feature that is asked for, as the subject of a sentence.
        package: the package that is not installed.
    """

    slug = "missing-extra"

    def __init__(self, what: str, package: str) -> None:
        self.extra = EXTRAS[package]
        super().__init__(f"{what} needs {package}, which is not installed; pip install 'factorize[{self.extra}]'")
        self.name = package


@contextmanager
def extras_named(what: str) -> Iterator[None]:
    """Say which extra is missing if the block imports a package of one.

    Raises:
        MissingExtra: raised in place of the `ModuleNotFoundError` of such a package; any other error goes on as it is.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package not in EXTRAS or isinstance(missing, MissingExtra):
            raise
        raise MissingExtra(what, package) from missing
