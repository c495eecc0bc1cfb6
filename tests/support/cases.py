"""Small examples of everything a spec can hold; the contract suite runs every mechanism on all of them."""

from __future__ import annotations

from typing import Any

from specs import spec_of

from factorize.spec import Spec

N = 12

WORKLOADS: dict[str, dict[str, Any]] = {
    "prefix": {"kind": "prefix", "n": N},
    "momentum": {"kind": "momentum", "n": N, "momentum": 0.9},
    "momentum with a schedule": {
        "kind": "momentum",
        "n": N,
        "momentum": 0.9,
        "learning_rates": {"kind": "linear_cooldown", "steps": 3, "final": 0.05},
    },
    "nesterov": {"kind": "momentum", "n": N, "momentum": 0.8, "nesterov": True},
    "momentum with rates of zero": {
        "kind": "momentum",
        "n": N,
        "momentum": 0.9,
        "learning_rates": [1.0] * 4 + [0.0] * 3 + [1.0] * 5,
    },
    "cosine schedule to zero": {"kind": "schedule", "n": N, "learning_rates": {"kind": "cosine"}},
    "decoupled weight decay": {"kind": "weight_decay", "n": N, "rate": 0.1, "mode": "decoupled"},
    "coupled weight decay": {"kind": "weight_decay", "n": N, "rate": 0.1, "mode": "coupled", "momentum": 0.5},
    "decay": {"kind": "decay", "n": N, "rate": 0.7},
    "window": {"kind": "window", "n": N, "width": 4},
    "srg": {"kind": "srg", "n": N, "momentum": 0.9, "decay": 0.5},
    "adam": {"kind": "adam", "n": N, "beta": 0.9},
    "mu2 q": {"kind": "mu2", "n": N, "output": "q"},
    "mu2 w": {"kind": "mu2", "n": N, "output": "w"},
    "mu2 x": {"kind": "mu2", "n": N, "output": "x"},
    "identity": {"kind": "identity", "n": N},
    "matrix": {
        "kind": "matrix",
        "rows": [[float((3 * i + 5 * j) % 7 - 2) * (j <= i) for j in range(N)] for i in range(N)],
    },
    "wide matrix": {"kind": "matrix", "rows": [[1.0 + (i * j) % 5 for j in range(N)] for i in range(N // 2)]},
    "tall matrix": {"kind": "matrix", "rows": [[float((i * i + j * j) % 11) for j in range(N)] for i in range(2 * N)]},
}

PARTICIPATIONS: dict[str, dict[str, Any]] = {
    "single": {"kind": "single"},
    "fixed epochs": {"kind": "fixed_epochs", "epochs": 3},
    "every step its own class": {"kind": "fixed_epochs", "epochs": N},
    "min_sep": {"kind": "min_sep", "min_sep": 4},
    "min_sep at most twice": {"kind": "min_sep", "min_sep": 3, "max_participations": 2},
}

OBJECTIVES: dict[str, dict[str, Any]] = {
    "mean": {"kind": "mean"},
    "lambda_tau": {"kind": "lambda_tau", "tau": 4},
    "max": {"kind": "max"},
    "weighted": {"kind": "weighted", "weights": [float(i % 3) for i in range(N)]},
}

MECHANISMS: dict[str, dict[str, Any]] = {
    "auto": {"kind": "auto"},
    "dense": {"kind": "dense"},
    "nu_toeplitz": {"kind": "nu_toeplitz", "nu": 0.1},
    "nu_toeplitz tuned": {"kind": "nu_toeplitz", "nu": "tune"},
    "nu_toeplitz normalised": {"kind": "nu_toeplitz", "nu": "tune", "normalization": "auto"},
    "square_root": {"kind": "square_root"},
    "square_root with unit columns": {"kind": "square_root", "normalization": "columns"},
    "identity": {"kind": "identity"},
    "banded": {"kind": "banded", "bands": 4},
    "buffered_linear": {"kind": "buffered_linear", "buffers": 2},
    "toeplitz": {"kind": "toeplitz"},
    "banded_toeplitz": {"kind": "banded_toeplitz", "bands": 4},
    "spectral": {"kind": "spectral", "learning_rate": 0.1, "eigenvalues": [1.0, 0.5]},
    "blt": {"kind": "blt", "buffers": 2},
    "banded_square_root": {"kind": "banded_square_root", "bands": 4},
    "banded_inverse_square_root": {"kind": "banded_inverse_square_root", "bands": 4},
    "banded_inverse_fractional_root": {"kind": "banded_inverse_fractional_root", "bands": 3, "gamma": 0.7},
    "lambda_cgd": {"kind": "lambda_cgd", "correlation": 0.8},
    "tree": {"kind": "tree", "decoder": "online"},
    "tree with estimates": {"kind": "tree", "decoder": "honaker_online"},
    "tree with all nodes, restarted": {"kind": "tree", "decoder": "honaker_full", "restart_every": 5},
    "fft": {"kind": "fft"},
    "fft with the best decoder": {"kind": "fft", "decoder": "optimal"},
    "anti_pgd": {"kind": "anti_pgd"},
    "semidefinite": {"kind": "semidefinite"},
}


def case_of(mechanism: str, workload: str, participation: str, objective: str, **more: Any) -> Spec:
    """Parse the spec of four names."""
    parts = (WORKLOADS[workload], MECHANISMS[mechanism], PARTICIPATIONS[participation], OBJECTIVES[objective])
    return spec_of(*parts, **{"tolerance": 1e-6, **more})
