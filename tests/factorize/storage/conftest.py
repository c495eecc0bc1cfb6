"""What tests of stores share."""

from __future__ import annotations

from pathlib import Path

import pytest

from factorize.storage.store import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A new store in a directory."""
    return open_store(tmp_path / "store")
