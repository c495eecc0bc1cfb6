"""Scratch folders of one process, in the system's directory for temporary files."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Self


class ScratchFolder:
    """A new folder that only this user may enter; close it, or use it in a `with` statement.

    What a killed process leaves is removed by the system's own cleaner.

    Args:
        kind: word in its name that says what it is for.

    Raises:
        OSError: there is no room for it.
    """

    def __init__(self, kind: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix=f"factorize.{kind}.")

    @property
    def path(self) -> Path:
        """Where it is."""
        return Path(self._folder.name)

    def close(self) -> None:
        """Remove it and all that is in it; a second time does nothing."""
        self._folder.cleanup()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Remove it, whatever happened."""
        self.close()
