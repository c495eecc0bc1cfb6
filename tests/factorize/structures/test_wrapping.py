"""What `scaled` wraps: every structure around which it can be written is served by every reader, and the rest by none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exact_files import SOLVER, fractions, parts, sealed, true_squares
from structure_cases import strategies

from factorize import load, parse_spec
from factorize.adapters.coefficients import PlanTable
from factorize.client import load as load_factors
from factorize.client.noise_source import Streamable, noise_source
from factorize.errors import CorruptObject, InvalidStrategy
from factorize.exact import check_factor_file
from factorize.exact.strategy import Strategy
from factorize.factorization import Factorization
from factorize.format.names import BESIDE, COLUMN_SCALE, WRAPPED
from factorize.format.tensors import TENSORS
from factorize.solution import Outcome, Solution
from factorize.structures.base import Matrix
from factorize.structures.layouts import BUILDERS, ENDLESS_BUILDERS, build_matrix
from factorize.structures.scaled import ColumnScaled

N = 12
SCALE = np.linspace(0.5, 1.5, N)
INNER = {strategy.structure: strategy for strategy in reversed(strategies(N).values())}
REFUSED = sorted(set(INNER) - set(WRAPPED))
PARTICIPATIONS: list[dict[str, Any]] = [
    {"kind": "single"},
    {"kind": "fixed_epochs", "epochs": 3},
    {"kind": "min_sep", "min_sep": 4, "max_participations": 2},
]


def scaled_tensors(inner: Matrix) -> dict[str, np.ndarray]:
    return {**inner.tensors(), COLUMN_SCALE: SCALE}


def result(inner: Matrix, participation: dict[str, Any]) -> Factorization:
    document = {"workload": {"kind": "prefix", "n": N}, "participation": participation}
    spec = parse_spec({**document, "mechanism": {"kind": "dense"}})
    claim = Solution(ColumnScaled(inner, SCALE), Outcome.CLOSED_FORM, 0)
    return Factorization.from_solution(spec, claim, solver=SOLVER)


def noising(source: Any) -> np.ndarray:
    """C^-1 as the client makes noise: every z a unit vector."""
    if not isinstance(source, Streamable):
        return np.array(list(source.iterate()))
    recurrence, rows = source.recurrence(), []
    state, scratch = np.zeros((recurrence.vectors, N)), np.zeros((recurrence.scratch, N))
    for step in range(N):
        x = recurrence.gain(step) * np.eye(N)[step]
        recurrence.advance(step, x, state, scratch)
        rows.append(x)
    return np.array(rows)


def followed(table: PlanTable) -> np.ndarray:
    """C^-1 as the frameworks make noise, from the coefficients of each step."""
    state, rows = np.zeros((table.reads.shape[1], N)), []
    for step, z in enumerate(np.eye(N)):
        u = table.gain[step] * z
        x = u - table.reads[step] @ state
        move, loads = table.moves[step], table.loads[step]
        state = (move @ state if move.ndim == 2 else move[:, None] * state) + np.outer(table.writes[step], x)
        if loads.size:
            state = state + np.outer(loads[:, 0], u)
        rows.append(table.scale[step] * x)
    return np.array(rows)


def test_every_structure_is_one_of_the_pairs() -> None:
    assert set(INNER) == set(BUILDERS)
    assert set(TENSORS) == (set(BUILDERS) | set(ENDLESS_BUILDERS)) - {"scaled"}
    assert set(WRAPPED) <= set(BUILDERS) - {"scaled"}


@pytest.mark.parametrize("structure", sorted(set(INNER) - {"scaled"}))
def test_the_table_names_the_tensors_that_are_written(structure: str) -> None:
    written = set(INNER[structure].tensors())
    assert set(TENSORS[structure]) <= written <= {*TENSORS[structure], *BESIDE.get(structure, ())}


@pytest.mark.parametrize("participation", PARTICIPATIONS, ids=lambda participation: str(participation["kind"]))
@pytest.mark.parametrize("structure", WRAPPED)
def test_what_can_be_written_is_served_everywhere(
    structure: str, participation: dict[str, Any], tmp_path: Path
) -> None:
    inner, path = INNER[structure], tmp_path / "scaled.safetensors"
    whole = inner.dense() * SCALE
    made = result(inner, participation)
    made.save(path)
    opened, factors = load(path), load_factors(path)
    assert isinstance(opened.strategy, ColumnScaled) and opened.strategy.inner.structure == structure
    np.testing.assert_array_equal(opened.rows("C", 0, N), whole)
    opened.verify()
    claimed = opened.certificate.sensitivity
    assert claimed.value**2 >= float(true_squares(whole, participation)[0]) * (1 - 1e-12)
    report = check_factor_file(path.read_bytes())
    assert report.supported, report.failed
    for source in (factors.noise_source(), noise_source("scaled", made.strategy.tensors(), N, "")):
        inverse = noising(source)
        np.testing.assert_allclose(whole @ inverse, np.eye(N), rtol=0, atol=1e-12)
        if isinstance(source, Streamable):
            np.testing.assert_allclose(followed(PlanTable.of(source)), inverse, rtol=0, atol=1e-12)
    noise = factors.noise(factors.calibrate(mu=1.0), 5, seed=1)
    assert np.isfinite([noise.next() for _ in range(N)]).all()


@pytest.mark.parametrize("structure", WRAPPED)
def test_the_exact_checker_reads_the_same_matrix(structure: str) -> None:
    found = Strategy("scaled", scaled_tensors(INNER[structure]), N)
    entries, whole = found.numbers(), INNER[structure].dense() * SCALE
    exact = np.array(entries.values, dtype=float) * 2.0**entries.exponent
    np.testing.assert_allclose(exact, whole, rtol=1e-12, atol=1e-12)
    assert found.structure == structure
    if structure not in ("buffered", "state_space", "blt", "inverse_banded_toeplitz"):  # computed, so enclosed
        inner = fractions(INNER[structure].dense())
        scale = fractions(SCALE[None])[0]
        unit = 2 ** abs(entries.exponent)
        assert all(int(entries.values[i, j]) == inner[i][j] * scale[j] * unit for i in range(N) for j in range(N))


@pytest.mark.parametrize("structure", REFUSED)
def test_what_no_reader_serves_cannot_be_written(structure: str) -> None:
    with pytest.raises(InvalidStrategy, match=f"a {structure} matrix cannot be scaled.*scale one of dense, toeplitz"):
        ColumnScaled(INNER[structure], SCALE)


@pytest.mark.parametrize("structure", [name for name in REFUSED if name != "scaled"])
def test_what_cannot_be_written_is_read_by_nobody(structure: str) -> None:
    manifest, tensors = parts(result(INNER["banded"], PARTICIPATIONS[0]))
    inner = INNER[structure].tensors()
    del tensors["C.bands"]
    named = {name if name.startswith("tree.") else f"C.{name}".rstrip("."): part for name, part in inner.items()}
    manifest["matrices"]["C"]["tensors"] = [*named, "C.column_scale"]
    data = sealed(manifest, {**tensors, **named})
    with pytest.raises(CorruptObject, match="beside column_scale are not those of one structure"):
        check_factor_file(data)
    with pytest.raises(CorruptObject, match="of no structure that can be scaled; scaled wraps dense, toeplitz"):
        build_matrix("scaled", scaled_tensors(INNER[structure]), N)
    with pytest.raises(CorruptObject, match="of no structure that can be scaled; scaled wraps dense, toeplitz"):
        noise_source("scaled", scaled_tensors(INNER[structure]), N, "")


@pytest.mark.parametrize("extra", ["row_scale", "bands", "theta", ""])
@pytest.mark.parametrize("structure", ["inverse_banded_toeplitz", "buffered"])
def test_no_tensor_may_be_beside_those_of_one_structure(structure: str, extra: str) -> None:
    tensors = {**scaled_tensors(INNER[structure]), extra: np.ones(N)}
    for read in (
        lambda: build_matrix("scaled", tensors, N),
        lambda: noise_source("scaled", tensors, N, ""),
        lambda: Strategy("scaled", tensors, N),
    ):
        with pytest.raises(CorruptObject):
            read()


@pytest.mark.parametrize("scale", [np.ones(N - 1), np.ones((N, 1)), np.array(1.0), None])
def test_there_is_one_scale_for_each_column(scale: np.ndarray | None) -> None:
    tensors = {"coefficients": np.ones(N)} | ({} if scale is None else {COLUMN_SCALE: scale})
    for read in (
        lambda: build_matrix("scaled", tensors, N),
        lambda: noise_source("scaled", tensors, N, ""),
        lambda: Strategy("scaled", tensors, N),
    ):
        with pytest.raises(CorruptObject):
            read()
