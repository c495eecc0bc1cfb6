"""Refusals of callers: not known, not allowed or above a quota."""

from __future__ import annotations

from factorize.errors import FactorizeError


class AccessRefused(FactorizeError):
    """A caller who is refused. The message repeats nothing of what was sent.

    Args:
        message: why, and what to do.
        problem: type of the problem document: `unauthorized`, `forbidden` or `bad-request`.
    """

    slug = "unauthorized"

    def __init__(self, message: str, problem: str = "unauthorized") -> None:
        super().__init__(message)
        self.problem = problem


class QuotaExhausted(FactorizeError):
    """A caller who has used a quota up.

    Args:
        message: limit, use and remedy.
        seconds: after which the same request may be taken.
    """

    slug = "quota-exhausted"

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds
