"""Compiled kernels: what cannot be read is compiled again, what cannot be written is not kept, and nothing is fatal."""

from __future__ import annotations

import errno
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorize.errors import CacheUnusable
from factorize.numbers import kernel_cache

SOURCE = """
from factorize.numbers.compiling import kernel

@kernel()
def doubled(array):
    for i in range(len(array)):
        array[i] *= 2
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(kernel_cache._SETTINGS, "CACHE_DIR", "")
    monkeypatch.setattr(kernel_cache, "_warned", False)
    path = tmp_path / "kernels_of_a_test.py"
    path.write_text(SOURCE)
    return path


def doubled(source: Path) -> Any:
    """The kernel as another process would import it, after a call for each of two signatures."""
    spec = importlib.util.spec_from_file_location("kernels_of_a_test", source)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for dtype in (np.float64, np.int64):
        array = np.arange(3, dtype=dtype)
        module.doubled(array)
        assert array.tolist() == [0, 2, 4] and array.dtype == dtype
    return module.doubled


def hits(source: Path) -> int:
    return sum(doubled(source).stats.cache_hits.values())


def cut(pattern: str, length: int) -> Callable[[Path], None]:
    def shorten(folder: Path) -> None:
        for path in folder.glob(pattern):
            path.write_bytes(path.read_bytes()[:length])

    return shorten


def copied(folder: Path) -> None:
    """One signature leads to the code of the other, as after two processes that have written at once."""
    one, other = folder.glob("*.nbc")
    one.write_bytes(other.read_bytes())


def removed(folder: Path) -> None:
    for path in folder.glob("*.nbc"):
        path.unlink()


def flipped(pattern: str, place: int) -> Callable[[Path], None]:
    def flip(folder: Path) -> None:
        for path in folder.glob(pattern):
            data = bytearray(path.read_bytes())
            data[place] ^= 0xFF
            path.write_bytes(data)

    return flip


DAMAGE = {
    "empty index": cut("*.nbi", 0),
    "half an index": cut("*.nbi", 60),
    "flipped index": flipped("*.nbi", 20),
    "empty code": cut("*.nbc", 0),
    "half the code": cut("*.nbc", 500),
    "flipped code": flipped("*.nbc", -700),
    "another's code": copied,
    "no code": removed,
}


def test_damage_is_compiled_over(source: Path) -> None:
    doubled(source)
    assert hits(source) == 2
    for name, damage in DAMAGE.items():
        damage(source.parent / "__pycache__")
        assert hits(source) < 2, name
        assert hits(source) == 2, f"{name} was not written anew"


def test_without_any_folder_a_process_compiles_its_own(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (source.parent / "__pycache__").write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(source))
    with pytest.warns(CacheUnusable, match="NUMBA_CACHE_DIR") as told:
        assert hits(source) == 0
    assert len(told) == 1


def test_an_account_without_a_home_leaves_nothing_in_the_working_folder(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `~` is, where nobody knows what it stands for; what lies there is not run either."""
    (source.parent / "__pycache__").write_text("a file")
    (source.parent / "project").mkdir()
    monkeypatch.chdir(source.parent / "project")
    monkeypatch.setenv("XDG_CACHE_HOME", "~/.cache")
    with pytest.warns(CacheUnusable, match="NUMBA_CACHE_DIR"):
        doubled(source)
    assert not list(Path().iterdir())


def test_a_folder_that_is_read_only_is_read(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    doubled(source)

    def refuse(*_words: Any, **_more: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("numba.core.caching.tempfile.TemporaryFile", refuse)
    assert hits(source) == 2


def test_a_full_disk_costs_the_cache_alone(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_words: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(kernel_cache._SealedFiles, "_save_data", refuse)
    with pytest.warns(CacheUnusable, match="No space left.*NUMBA_CACHE_DIR"):
        doubled(source)
