"""Tests of the papers' systems; `make papers` and the continuous integration run them, `make test` does not."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from factorize.noise.single_use import NoiseUse

sys.path.append(str(Path(__file__).parent))

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=25)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def twins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let two generators of one noise be alive, since tests compare methods with the same draws."""
    monkeypatch.setattr(NoiseUse, "_others", lambda own: [])


@pytest.fixture(scope="session")
def vectors() -> dict[str, Any]:
    """The papers' published numbers."""
    found: dict[str, Any] = json.loads((Path(__file__).parents[2] / "tests" / "data" / "vectors.json").read_text())
    return found
