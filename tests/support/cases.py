"""Small examples of everything a spec can hold; the contract suite runs every mechanism on all of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from specs import spec_of

from factorize.spec import Spec

N = 12
"""The steps of the cases in which every mechanism meets every workload."""

SIZES = {144: (3, 8), 320: (4, 10), 2100: (3, 10)}
"""The larger counts of steps, each with two counts of epochs."""


def recursions_of(n: int) -> dict[str, dict[str, Any]]:
    """Return one of each kind but matrices, of so many steps, and those whose rates are their own case."""
    rates = [1.0] * (n // 3) + [0.0] * (n // 4) + [1.0] * (n - n // 3 - n // 4)
    cooldown = {"kind": "linear_cooldown", "steps": n // 4, "final": 0.05}
    return {
        "prefix": {"kind": "prefix", "n": n},
        "momentum": {"kind": "momentum", "n": n, "momentum": 0.9},
        "momentum with a schedule": {"kind": "momentum", "n": n, "momentum": 0.9, "learning_rates": cooldown},
        "nesterov": {"kind": "momentum", "n": n, "momentum": 0.8, "nesterov": True},
        "momentum with rates of zero": {"kind": "momentum", "n": n, "momentum": 0.9, "learning_rates": rates},
        "cosine schedule to zero": {"kind": "schedule", "n": n, "learning_rates": {"kind": "cosine_to_last"}},
        "decoupled weight decay": {"kind": "weight_decay", "n": n, "rate": 0.1, "mode": "decoupled"},
        "coupled weight decay": {"kind": "weight_decay", "n": n, "rate": 0.1, "mode": "coupled", "momentum": 0.5},
        "decay": {"kind": "decay", "n": n, "rate": 0.7},
        "window": {"kind": "window", "n": n, "width": 4},
        "srg": {"kind": "srg", "n": n, "momentum": 0.9, "decay": 0.5},
        "adam": {"kind": "adam", "n": n, "beta": 0.9},
        "mu2 q": {"kind": "mu2", "n": n, "output": "q"},
        "mu2 w": {"kind": "mu2", "n": n, "output": "w"},
        "mu2 x": {"kind": "mu2", "n": n, "output": "x"},
        "identity": {"kind": "identity", "n": n},
    }


def matrices_of(n: int) -> dict[str, dict[str, Any]]:
    """Return matrices of one's own, square, wide and tall."""
    square = [[float((3 * i + 5 * j) % 7 - 2) * (j <= i) for j in range(n)] for i in range(n)]
    wide = [[1.0 + (i * j) % 5 for j in range(n)] for i in range(n // 2)]
    tall = [[float((i * i + j * j) % 11) for j in range(n)] for i in range(2 * n)]
    named = {"matrix": square, "wide matrix": wide, "tall matrix": tall}
    return {name: {"kind": "matrix", "rows": rows} for name, rows in named.items()}


def participations_of(n: int) -> dict[str, dict[str, Any]]:
    """Return one of each kind and some of their edges."""
    few, many = SIZES.get(n, (3, n))
    return {
        "single": {"kind": "single"},
        "fixed epochs": {"kind": "fixed_epochs", "epochs": few},
        "many epochs": {"kind": "fixed_epochs", "epochs": many},
        "min_sep": {"kind": "min_sep", "min_sep": n // 3},
        "min_sep at most twice": {"kind": "min_sep", "min_sep": n // 4, "max_participations": 2},
    }


def objectives_of(n: int) -> dict[str, dict[str, Any]]:
    """Return one of each kind."""
    return {
        "mean": {"kind": "mean"},
        "lambda_tau": {"kind": "lambda_tau", "tau": 4},
        "max": {"kind": "max"},
        "weighted": {"kind": "weighted", "weights": [float(i % 3) for i in range(n)]},
    }


WORKLOADS, PARTICIPATIONS, OBJECTIVES = recursions_of(N) | matrices_of(N), participations_of(N), objectives_of(N)

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


def case_of(mechanism: str, workload: str, participation: str, objective: str, *, n: int = N, **more: Any) -> Spec:
    """Parse the spec of four names."""
    workloads = matrices_of(n) if workload.endswith("matrix") else recursions_of(n)
    where = (workloads[workload], participations_of(n)[participation], objectives_of(n)[objective])
    return spec_of(where[0], MECHANISMS[mechanism], *where[1:], **{"tolerance": 1e-6, **more})


FAST = [name for name in MECHANISMS if name != "semidefinite"]


def fits(workload: str, objective: str) -> bool:
    """Return whether weights fit: they are one per output, and two of the matrices have another number of outputs."""
    return objective != "weighted" or spec_of(WORKLOADS[workload]).workload.m == 12


def in_turn(mechanism: str, workload: str, participation: str) -> list[str]:
    """Return objectives that fit, from the one whose turn it is."""
    names = list(OBJECTIVES)
    turn = FAST.index(mechanism) + list(WORKLOADS).index(workload) + list(PARTICIPATIONS).index(participation)
    first = turn % len(names)
    return [name for name in names[first:] + names[:first] if fits(workload, name)]


def small(participations: int = 1) -> Iterator[tuple[str, str, str, str]]:
    """Yield names of cases of 12 steps: each mechanism and workload with the participations whose turn it is, one to all."""
    for (i, mechanism), (j, workload) in itertools.product(enumerate(FAST), enumerate(WORKLOADS)):
        for k, participation in enumerate(PARTICIPATIONS):
            if (k - i - j) % len(PARTICIPATIONS) < participations:
                yield mechanism, workload, participation, in_turn(mechanism, workload, participation)[0]


def covering(n: int) -> Iterator[tuple[str, str, str, str]]:
    """Yield names of cases: at 12 steps every two kinds have met; at more, few with each mechanism, at 2,100 some with a recursion."""
    if n == N:
        yield from small()
        return
    if n == 2100:
        yield "auto", "prefix", "single", "mean"
        yield "toeplitz", "decay", "fixed epochs", "mean"
        yield "banded", "momentum", "min_sep", "mean"
        yield "blt", "decoupled weight decay", "many epochs", "max"
        yield "buffered_linear", "cosine schedule to zero", "single", "lambda_tau"
        yield "square_root", "momentum with a schedule", "many epochs", "weighted"
        return
    workloads, objectives = list(WORKLOADS), list(OBJECTIVES)
    for i, mechanism in enumerate(FAST):
        yield mechanism, "prefix", "single", "mean"
        for k, participation in enumerate(PARTICIPATIONS):
            workload, objective = workloads[(5 * i + 7 * k) % len(workloads)], objectives[(i + k) % len(objectives)]
            if k in ((i % 5, (i + 2) % 5) if n == 144 else (i % 5,)):
                yield mechanism, workload, participation, objective if fits(workload, objective) else "mean"
                if not fits(workload, objective):
                    yield mechanism, "momentum", participation, objective
