"""Modules that moved: an import of the earlier path gives the module at its new path, and warns with that path."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from importlib.abc import Loader

_OF_NOISE = [
    *("allowances", "checkpoints", "engines", "noise_kernels", "normals", "regions", "single_use"),
    *(f"recurrences.{name}" for name in ("banded", "base", "buffered", "redrawn", "state_rounding", "tree")),
]
"""The modules of `factorize.noise` that stood in the client under the same name."""

NEW_PATHS = {
    "factorize.accounting.calibration_request": "factorize.api.questions.calibration_request",
    "factorize.accounting.loss_distributions": "factorize.samplings.loss_distributions",
    "factorize.adapters.example_gradients": "factorize.adapters.gradients.example_gradients",
    "factorize.adapters.jax_gradients": "factorize.adapters.jax_arrays.jax_gradients",
    "factorize.adapters.ranks.opacus_ranks": "factorize.adapters.opacus_ranks",
    "factorize.adapters.statement": "factorize.training.statement",
    "factorize.adjacency": "factorize.privacy.adjacency",
    "factorize.any_factors": "factorize.factors",
    "factorize.auditor": "factorize.training.auditor",
    "factorize.certificate.certificate": "factorize.factors.certificate",
    "factorize.certificate.sensitivity": "factorize.factors.sensitivity",
    **{f"factorize.client.{name}": f"factorize.noise.{name}" for name in _OF_NOISE},
    "factorize.client.factors": "factorize.client.held_factors",
    "factorize.client.noise": "factorize.noise.generator",
    "factorize.client.noise_source": "factorize.noise.source",
    "factorize.client.rows": "factorize.factors.rows",
    "factorize.factor_file": "factorize.factors.factor_file",
    "factorize.factorization": "factorize.factors.factorization",
    "factorize.first_steps": "factorize.samplings.first_steps",
    "factorize.keywords": "factorize.format.keywords",
    "factorize.mechanisms": "factorize.spec.mechanisms",
    "factorize.numbers.selection": "factorize.privacy.selection",
    "factorize.objective": "factorize.spec.objective",
    "factorize.privacy_question": "factorize.privacy.question",
    "factorize.signatures": "factorize.format.signatures",
    "factorize.solution": "factorize.factors.solution",
    "factorize.storage.medium.files": "factorize.format.files",
    "factorize.strategy_file": "factorize.factors.strategy_file",
    "factorize.training.bins": "factorize.training.bins_order",
    "factorize.training.schedules": "factorize.training.learning_schedules",
    "factorize.workloads.state_space": "factorize.numbers.state_space",
}
EMPTY_ROOMS = {"factorize.certificate", "factorize.client.recurrences"}
"""The packages of which every module has moved."""


class MovedModules:
    """Finds and loads a module by its earlier path. It stands behind all other finders, so other imports never ask it.

    It has the methods of `importlib.abc` without that module, which takes 10 ms to import.
    """

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the loading specification of `name` if it is an earlier path."""
        if name in NEW_PATHS or name in EMPTY_ROOMS:
            return ModuleSpec(name, cast("Loader", self), is_package=name in EMPTY_ROOMS)
        return None

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to Python to make the module, which `exec_module` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the module at the new path in place of `module`, so that both paths name the same classes."""
        if module.__name__ in NEW_PATHS:
            path = NEW_PATHS[module.__name__]
            warnings.warn(f"{module.__name__} has moved to {path}", DeprecationWarning, stacklevel=2)
            sys.modules[module.__name__] = import_module(path)
