"""The cache of compiled kernels, which no answer depends on: a kernel that cannot be read is compiled again.

numba keeps machine code in NUMBA_CACHE_DIR, beside the source or in the user's folder for caches, and fails where none
of these can be written or a file is damaged. Here a folder that cannot be written is still read, and one warning
names it. Each file carries its digest and the signature that it was compiled for, since damaged code would run.
"""

from __future__ import annotations

import errno
import hashlib
import os
import pickle
import warnings
from collections.abc import Callable, Hashable
from pathlib import Path
from types import FunctionType
from typing import Any

import numba
from numba.core.base import BaseContext
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    _CacheLocator,
    _SourceFileBackedLocatorMixin,
)
from numba.core.compiler import CompileResult
from numba.core.typing.templates import Signature

from factorize.errors import CacheUnusable
from factorize.numbers.processor_time import stop_clock

VARIABLE = "NUMBA_CACHE_DIR"
_DIGEST_BYTES = 32
_SETTINGS: Any = numba.config
_warned = False


class KernelCache(FunctionCache):
    """The compiled forms of one function; it raises nothing that a compilation could replace.

    Args:
        function: the Python function.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__(function)
        stamp = self._impl.locator.get_source_stamp()
        self._cache_file = _SealedFiles(self.cache_path, self._impl.filename_base, stamp)
        if _SETTINGS.CACHE_DIR and not Path(self.cache_path).is_relative_to(_SETTINGS.CACHE_DIR):
            warn_of_folder("it is not writable")

    def load_overload(self, sig: Signature, target_context: BaseContext) -> CompileResult | None:
        """Return the compiled form of a signature, or None where it has to be compiled."""
        try:
            with stop_clock():
                return self._load_overload(sig, target_context)  # The compiler (50 MB, 0.3 s) is not imported.
        except Exception as error:  # Unpickling, LLVM or the disk may fail in any way.
            if isinstance(error, OSError):
                warn_of_folder(error.strerror)
            return None

    def save_overload(self, sig: Signature, data: CompileResult) -> None:
        """Keep a compiled form, where the folder can be written."""
        try:
            with stop_clock():
                super().save_overload(sig, data)
        except OSError as error:
            warn_of_folder(error.strerror)


class _SealedFiles(IndexDataCacheFile):
    """Cache files whose damage is found before their code runs; a damaged index counts as empty and is written anew."""

    def load(self, key: Hashable) -> object:
        named, data = super().load(key) or ("", None)
        return data if named == repr(key) else None

    def save(self, key: Hashable, data: object) -> None:
        super().save(key, (repr(key), data))

    def _load_index(self) -> dict[Hashable, object]:
        try:
            return super()._load_index()
        except OSError:
            raise
        except Exception:  # Damaged bytes may raise anything in pickle.
            return {}

    def _load_data(self, name: str) -> object:
        content = Path(self._data_path(name)).read_bytes()
        digest, pickled = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        return pickle.loads(pickled) if hashlib.sha256(pickled).digest() == digest else None

    def _save_data(self, name: str, data: object) -> None:
        pickled = self._dump(data)
        with self._open_for_write(self._data_path(name)) as file:
            file.write(hashlib.sha256(pickled).digest() + pickled)


class _ReadOnlyLocator(_SourceFileBackedLocatorMixin, _CacheLocator):
    """The locator of NUMBA_CACHE_DIR, or else of the folder beside the source, whether it can be written or not."""

    def __init__(self, py_func: FunctionType, py_file: str) -> None:
        self._py_file, self._lineno = py_file, py_func.__code__.co_firstlineno
        given = _SETTINGS.CACHE_DIR and os.path.join(_SETTINGS.CACHE_DIR, self.get_suitable_cache_subpath(py_file))
        self._cache_path = given or os.path.join(os.path.dirname(py_file), "__pycache__")

    def get_cache_path(self) -> str:
        return self._cache_path

    @classmethod
    def from_function(cls, py_func: FunctionType, py_file: str) -> _ReadOnlyLocator:
        return cls(py_func, py_file)


_USER_LOCATOR: Any = next(one for one in CompileResultCacheImpl._locator_classes if "UserWide" in one.__name__)


class _HomeLocator(_USER_LOCATOR):  # Its class has other names in other releases of numba.
    """The locator of the user's folder for caches, which for an account without a home is not the working folder."""

    def ensure_cache_path(self) -> None:
        if not os.path.isabs(self.get_cache_path()):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        super().ensure_cache_path()


class _Places(CompileResultCacheImpl):
    _locator_classes = [
        *(_HomeLocator if one is _USER_LOCATOR else one for one in CompileResultCacheImpl._locator_classes),
        _ReadOnlyLocator,
    ]


KernelCache._impl_class = _Places


def warn_of_folder(reason: str | None) -> None:
    """Warn once in a process that compiled kernels are not kept."""
    global _warned
    if not _warned:
        _warned = True
        folder = _SETTINGS.CACHE_DIR or Path(__file__).parents[1]
        text = f"factorize cannot store compiled kernels in {folder} ({reason}), so each process compiles them again"
        warnings.warn(f"{text}; set {VARIABLE} to a writable folder", CacheUnusable, stacklevel=2)
