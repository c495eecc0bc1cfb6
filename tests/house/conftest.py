"""Fixtures of the tests of the house."""

from __future__ import annotations

from pathlib import Path

import pytest
from house import ROOT

from release import distributions


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution of what git holds."""
    folder = tmp_path_factory.mktemp("built")
    distributions.build(folder, second=1_700_000_000, root=ROOT)
    return folder
