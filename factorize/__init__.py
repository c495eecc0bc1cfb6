"""Factorizations for private training with correlated noise: specs, certificates, files.

Names are loaded on first use, so that importing this package costs next to nothing in a training job.
"""

import sys
from importlib import import_module
from typing import Any

from factorize.moved_modules import MovedModules

__version__ = "0.1.0"

_HOMES = {
    "Advice": "factorize.api.questions.documents",
    "Certificate": "factorize.factors.certificate",
    "ComparisonTable": "factorize.api.questions.documents",
    "Factorization": "factorize.factors.factorization",
    "Factors": "factorize.factors",
    "Spec": "factorize.spec",
    "certify": "factorize.api.calls",
    "compare": "factorize.api.calls",
    "load": "factorize.client.held_factors",
    "parse_spec": "factorize.spec",
    "recommend": "factorize.api.calls",
    "solve": "factorize.api.calls",
}
"""The public names and the modules that hold them; `__init__.pyi` declares the same for type checkers and editors."""

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'factorize' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


sys.meta_path.append(MovedModules())


def __dir__() -> list[str]:
    """Return the public names, whatever has been imported so far."""
    return sorted([*__all__, "__version__"])
