"""The table of the solvers' docstring names the file that the register takes for `dense`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from cases import matrices_of, recursions_of

from factorize import parse_spec, solvers
from factorize.solvers import register

PARTICIPATIONS: dict[str, dict[str, Any]] = {
    "single": {"kind": "single"},
    "fixed_epochs": {"kind": "fixed_epochs", "epochs": 4},
    "min_sep": {"kind": "min_sep", "min_sep": 3},
}
LONG = recursions_of(144)
MEANT: dict[str, list[Any]] = {
    "under 128 steps; window, matrix": [*recursions_of(16).values(), LONG["window"], *matrices_of(16).values()],
    "decay, identity, prefix, schedule": [
        LONG[name] for name in ("prefix", "identity", "decay", "cosine schedule to zero")
    ],
    "adam, momentum, mu2, srg": [
        LONG[name]
        for name in (
            "momentum",
            "momentum with a schedule",
            "nesterov",
            "adam",
            "mu2 q",
            "mu2 w",
            "mu2 x",
            "srg",
        )
    ],
    "weight_decay": [LONG["decoupled weight decay"]],
    "weight_decay, coupled, oscillating": [LONG["coupled weight decay"]],
    "momentum, learning rates of zero": [LONG["momentum with rates of zero"]],
}
"""For each row of the table, workloads of all its kinds."""
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in solvers.__doc__.splitlines() if "|" in line]
HEAD, _, *TABLE = ROWS


@pytest.mark.parametrize("row", TABLE, ids=[row[0] for row in TABLE])
def test_the_file_that_is_named_is_the_one_that_solves(row: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The module of an entry is the one that it imports when it is asked about a spec."""
    asked: list[str] = []

    def note(name: str) -> object:
        asked.append(name)
        return import_module(name)

    monkeypatch.setattr(register, "import_module", note)
    for workload in MEANT[row[0]]:
        for kind, file in zip(HEAD[1:], row[1:], strict=True):
            spec = parse_spec(
                {"workload": workload, "participation": PARTICIPATIONS[kind], "mechanism": {"kind": "dense"}}
            )
            next(one for one in register.SOLVERS["dense"] if one.own(spec) and one.supports(spec) is None)
            assert asked[-1] == "factorize.solvers." + file.removesuffix(".py").replace("/", "."), workload
