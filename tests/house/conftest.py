"""Fixtures of the tests of the house."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def benchmark_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import one of the benchmarks, which are no installed package."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2])

    def load(name: str) -> ModuleType:
        return import_module(f"benchmarks.{name}")

    return load
