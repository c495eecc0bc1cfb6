"""Former names of modules, so that what imports them goes on working: the same modules, never second copies.

`factorize.gaussian` is `factorize.numbers.gaussian`. In a checkout, where the folders `solvers/` and `api/` lie
beside `factorize/`, `solvers.x` and `api.x` are `factorize.solvers.x` and `factorize.api.x`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType

MODULES = {
    "factorize.amplification": "factorize.accounting.amplification",
    "factorize.accounting.gaussian": "factorize.numbers.gaussian",
    "factorize.certificate.rounded": "factorize.rounded",
    "factorize.client.light_reader": "factorize.format.reading",
    "factorize.gaussian": "factorize.numbers.gaussian",
    "factorize.manifest": "factorize.format.manifest",
    "factorize.sensitivity": "factorize.certificate.sensitivity",
    "factorize.structures.names": "factorize.format.names",
    "factorize.training.mu2_noise": "factorize.training.algorithms.mu2_noise",
}
"""Former dotted names, and those of today."""

_PACKAGES: set[str] = set()


def hand_out(package: str) -> None:
    """Let the modules below a package's former name be those below `factorize.<package>`.

    Args:
        package: `solvers` or `api`, in a process that has imported our folder under that name; a user's own package
            of the name is none of ours.
    """
    _PACKAGES.add(package)
    import_module(f"factorize.{package}")
    sys.modules[package] = sys.modules[f"factorize.{package}"]
    sys.meta_path.remove(_FINDER)
    sys.meta_path.insert(0, _FINDER)  # before those that would find the files again


def _todays(name: str) -> str | None:
    if name.partition(".")[0] in _PACKAGES and "." in name:
        return f"factorize.{name}"
    return MODULES.get(name)


def _no_code(name: str) -> None:
    """What a loader without code gives; the class of those with it is in `importlib.abc`, which loads bz2 and lzma."""


class _Loader:
    """Gives the module of today under a former name."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(str(_todays(spec.name)))
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # which the import system has replaced

    def get_code(self, name: str) -> CodeType | None:
        """Return what `python -m <former name>` runs."""
        todays = str(_todays(name))
        spec = find_spec(todays)
        return getattr(spec.loader, "get_code", _no_code)(todays) if spec else None


class _Finder:
    """Finds modules by their former names, where no module of today has the name."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        todays = _todays(name)
        if todays is None:
            return None
        found = find_spec(todays)
        if found is None:
            return None
        package = found.submodule_search_locations is not None
        return ModuleSpec(name, _Loader(), origin=found.origin, is_package=package)  # type: ignore[arg-type]


_FINDER = _Finder()
sys.meta_path.append(_FINDER)
