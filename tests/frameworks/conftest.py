"""Tests of the adapters against the real libraries; collected by `make test-frameworks` alone."""

from __future__ import annotations

import os

import pytest

SAID = (
    "Full backward hook is firing",
    "Secure RNG",
    "optax.global_norm is deprecated",
    "Error reading persistent compilation cache entry",
)
"""Of torch about how Opacus hooks in, of Opacus about its own generator, which is not used here, of optax about what
jax_privacy calls, and of JAX where another process is just writing what it reads, which it then compiles itself."""


def pytest_configure(config: pytest.Config) -> None:
    """Let these warnings pass, and have all processes and runs share what XLA has compiled."""
    if cache := getattr(config, "cache", None):
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(cache.mkdir("jax"))
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"  # each test compiles many small programs
        os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    for words in SAID:
        config.addinivalue_line("filterwarnings", f"ignore:{words}")
