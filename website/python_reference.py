"""Reference of Python names, as directives for mkdocstrings, which reads docstrings without importing anything."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAMES = {
    "factorize.client": [],
    "factorize.privacy": ["calibrate", "Calibration", "PrivacyTarget", "Adjacency"],
    "factorize.accounting.amplification": ["calibrate_amplified", "AmplifiedCalibration"],
    "factorize.auditor": ["ParticipationAuditor"],
    "factorize.training.orders": ["Order", "fixed_order", "min_sep_order", "balls_in_bins", "random_allocation"],
    "factorize.training.sampling": ["CyclicPoisson"],
    "factorize.training.bins_audit": ["BinsAuditor"],
    "factorize.training.audited": ["AuditedBatches"],
    "factorize.adapters.private": ["make_private"],
    "factorize.adapters.torch": ["TorchNoiseGenerator"],
    "factorize.adapters.opacus": ["CorrelatedOptimizer", "refuse_sampling"],
    "factorize.adapters.ranks.opacus_ranks": ["correlated_optimizer"],
    "factorize.adapters.jax": ["correlated_noise", "noising_matrix", "raised_sigma_of_sums"],
    "factorize.adapters.jax_private": ["make_private"],
}
"""Modules by import path, with the names that are shown; without names: all that the package exports."""


_HEAD = """# Names in Python

What `import factorize` has, and the modules that training jobs use. These pages say how they play together:
[in Python](../python.md), [in the training job](../training.md), [adapters](../adapters.md).
"""


def names() -> str:
    """Return the page."""
    text = _HEAD
    text += "\n## `factorize`\n\n" + "\n".join(_directive(home) for home in _exports("factorize/__init__.pyi"))
    for module, shown in NAMES.items():
        package = ROOT / module.replace(".", "/") / "__init__.py"
        homes = [f"{module}.{name}" for name in shown] or _exports(str(package.relative_to(ROOT)))
        text += f"\n## `{module}`\n\n" + "\n".join(_directive(home) for home in homes)
    return text


def _exports(path: str) -> list[str]:
    """Where the names of a package's `__all__` are defined, by the imports of the package."""
    tree = ast.parse((ROOT / path).read_text())
    homes = {
        alias.name: f"{node.module}.{alias.name}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assigned = (node for node in tree.body if isinstance(node, ast.Assign))
    listed = next(node.value for node in assigned if getattr(node.targets[0], "id", "") == "__all__")
    return [homes[name] for name in ast.literal_eval(listed)]


def _directive(name: str) -> str:
    return f"::: {name}\n"
