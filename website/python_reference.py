"""Reference of Python names, as directives for mkdocstrings, which reads docstrings without importing anything."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAMES = {
    "factorize.client": [],
    "factorize.privacy": ["calibrate", "Calibration", "PrivacyTarget", "Adjacency"],
    "factorize.accounting.amplification": ["calibrate_amplified", "AmplifiedCalibration"],
    "factorize.training.auditor": ["ParticipationAuditor"],
    "factorize.training.orders": ["Order", "fixed_order", "min_sep_order", "balls_in_bins", "random_allocation"],
    "factorize.training.sampling": ["CyclicPoisson"],
    "factorize.training.bins_audit": ["BinsAuditor"],
    "factorize.training.batches": ["AuditedBatches"],
    "factorize.adapters.private": ["make_private"],
    "factorize.adapters.torch": ["TorchNoiseGenerator"],
    "factorize.adapters.opacus": ["CorrelatedOptimizer", "refuse_sampling"],
    "factorize.adapters.opacus_ranks": ["correlated_optimizer"],
    "factorize.adapters.jax": ["correlated_noise", "noising_matrix", "raised_sigma_of_sums"],
    "factorize.adapters.jax_private": ["make_private"],
}
"""The modules by import path, with the names that are shown; without names: all that the package exports."""


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
    """Return where the names are defined that a package imports under their own names, to hand them on."""
    imports = (node for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, ast.ImportFrom))
    homes = {alias.name: node.module for node in imports for alias in node.names if alias.asname == alias.name}
    return [f"{homes[name]}.{name}" for name in sorted(homes)]


def _directive(name: str) -> str:
    return f"::: {name}\n"
