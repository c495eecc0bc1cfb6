"""The solver of a pool that has no answer to any spec."""

from __future__ import annotations

from typing import Any

from factorize.api.workers.worker_process import Tell
from factorize.errors import SolveFailed


def make_ready() -> None:
    """Nothing is needed."""


def solve(_request: dict[str, Any], _tell: Tell) -> str:
    raise SolveFailed("no")


QUESTIONS = {"solve": solve}
