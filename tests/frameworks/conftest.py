"""Tests of the adapters against the real libraries; collected by `make test-frameworks` alone."""

from __future__ import annotations

import pytest

SAID = ("Full backward hook is firing", "Secure RNG", "optax.global_norm is deprecated")
"""Of torch about how Opacus hooks in, of Opacus about its own generator, which is not used here, and of optax about what
jax_privacy calls."""


def pytest_configure(config: pytest.Config) -> None:
    """Let these warnings pass."""
    for words in SAID:
        config.addinivalue_line("filterwarnings", f"ignore:{words}")
