"""Shared settings: hypothesis without luck, and the published vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("repeatable")

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def vectors() -> dict[str, Any]:
    """The test vectors of the formulas, by id."""
    return json.loads((DATA / "vectors.json").read_text())


@pytest.fixture(scope="session")
def reference_values() -> dict[str, dict[str, Any]]:
    """Certified optima of small problems, by id."""
    return {entry["id"]: entry for entry in json.loads((DATA / "reference-values.json").read_text())["entries"]}
