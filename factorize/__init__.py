"""Factorizations for private training with correlated noise: specs, certificates, files.

Names are loaded on first use, so that importing this package costs next to nothing in a training job.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from factorize import former_names as former_names

__version__ = "0.1.0"

_HOMES = {
    "Certificate": "factorize.certificate.certificate",
    "Factorization": "factorize.factorization",
    "Spec": "factorize.spec",
    "certify": "factorize.certificate.certificate",
    "load": "factorize.client.opening",
    "noise_of": "factorize.client.noise",
    "parse_spec": "factorize.spec",
}

if TYPE_CHECKING:
    from factorize.certificate.certificate import Certificate, certify
    from factorize.client.opening import load
    from factorize.factorization import Factorization
    from factorize.spec import Spec, parse_spec

__all__ = ["Certificate", "Factorization", "Spec", "certify", "load", "parse_spec"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'factorize' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
