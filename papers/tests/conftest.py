"""Tests of the papers' systems; `make papers` and the continuous integration run them, `make test` does not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))


@pytest.fixture
def paper() -> Callable[[str], Any]:
    """A module of this folder by its name."""
    return lambda name: import_module(f"papers.{name}")
