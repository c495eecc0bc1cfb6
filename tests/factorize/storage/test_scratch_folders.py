"""Scratch folders: private, and gone with their owner."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from factorize.storage.medium.scratch_folders import ScratchFolder


def test_a_folder_is_private_and_goes_with_its_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with ScratchFolder("solve") as folder:
        path = folder.path
        (path / "some").mkdir()
        assert path.parent == tmp_path and path.name.startswith("factorize.solve.")
        assert path.stat().st_mode & 0o777 == 0o700
    folder.close()
    assert not list(tmp_path.iterdir())
