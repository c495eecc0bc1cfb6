"""Fixtures of the tests of the house."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from house import ROOT

from release import distributions


@pytest.fixture
def benchmark_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import one of the benchmarks, which are no installed package."""
    monkeypatch.syspath_prepend(ROOT)

    def load(name: str) -> ModuleType:
        return import_module(f"benchmarks.{name}")

    return load


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution of what git holds."""
    folder = tmp_path_factory.mktemp("built")
    distributions.build(folder, second=1_700_000_000, root=ROOT)
    return folder
