"""Registers: what one part of the code knows, every other part that has to know it knows too, and says so if not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from cases import WORKLOADS
from golden.make import HERE
from structure_cases import strategies

from factorize import Spec, parse_spec
from factorize.checker.check import check_factor_file
from factorize.checker.mechanism import _ANY_COLUMNS, _RULES, FORMULAS
from factorize.checker.participation import KINDS as EXACT_PARTICIPATIONS
from factorize.checker.participation import allowed
from factorize.checker.spec.objectives import OBJECTIVES
from factorize.checker.spec.workloads import ARRAY_KINDS, PROGRAMS, balls_of, defines, program_of, toeplitz_column
from factorize.checker.spec.workloads import KINDS as EXACT_KINDS
from factorize.checker.structures import LIMITS, READINGS
from factorize.errors import InvalidParticipation, UnsupportedProblem
from factorize.factors.factor_file import load
from factorize.factors.sensitivity import SERVED_KINDS, sensitivity_of
from factorize.format.keywords import (
    MechanismKind,
    ObjectiveKind,
    ParticipationKind,
    ScheduleKind,
    SpecKeywords,
    WorkloadKind,
)
from factorize.format.manifest import ENDLESS_STEPS
from factorize.format.tensors import (
    ENDLESS_ONLY_STRUCTURES,
    ENDLESS_STRUCTURES,
    INNER_STRUCTURES,
    SCALED,
    SHAPES,
    VALUES,
)
from factorize.noise.source import _RECURRENCES, _ROWS, noise_source
from factorize.participation import KINDS as KINDS_OF_PARTICIPATION
from factorize.participation import AnyParticipation, MinSep, Participation, is_canonical, read_participation
from factorize.plain_data.words import words_of
from factorize.solvers.comparing.candidates import left_out, mechanisms
from factorize.solvers.register import SOLVERS
from factorize.spec.mechanisms import AnyMechanism
from factorize.spec.objective import AnyObjective
from factorize.structures.dense import DenseMatrix
from factorize.structures.layouts import BUILDERS, ENDLESS_BUILDERS
from factorize.workloads import KINDS, Prefix, UserMatrix
from factorize.workloads.base import kinds_among

ROOT = Path(__file__).parents[2]
N = 12
ASKED = {"workload": {"kind": "prefix", "n": N}}
PARTICIPATIONS: list[dict[str, Any]] = [
    {"kind": "single"},
    {"kind": "fixed_epochs", "epochs": 3},
    {"kind": "min_sep", "min_sep": 3, "max_participations": 2},
]
STRATEGIES = list(strategies(N).items())
FAMILIES = {
    **dict.fromkeys(("banded_toeplitz", "inverse_banded_toeplitz", "blt", "nu_toeplitz"), "toeplitz"),
    "state_space": "buffered",
    "banded": "dense",
}
"""Structures that stand in the file of another of their family."""


def rows_of(page: str, heading: str) -> set[str]:
    """Names in the first column of the table under a heading."""
    section = (ROOT / page).read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))


class TestWorkloads:
    def test_every_register_has_the_same_kinds(self) -> None:
        assert set(EXACT_KINDS) == set(KINDS)
        assert {document["kind"] for document in WORKLOADS.values()} == set(KINDS)
        named = ("cosine", "cosine_to_last", "linear_cooldown", "step", "warmup_cosine")  # schedules, on the same page
        assert rows_of("docs/spec.md", "Workloads") - set(named) == set(KINDS)

    @pytest.mark.parametrize("name", WORKLOADS)
    def test_the_exact_checker_has_a_program_for_each(self, name: str) -> None:
        spec = parse_spec({"workload": WORKLOADS[name]})
        document, workload = spec.document()["workload"], spec.workload
        user = {str(workload.sha256): workload.array} if isinstance(workload, UserMatrix) else {}
        found = balls_of(document, user)
        assert found is not None and found.shape == (workload.m, workload.n)
        if workload.coefficients is not None and document["kind"] != "matrix":
            assert (toeplitz_column(document) is None) == (document.get("learning_rates") is not None)
        assert (program_of(document) is None) == (document["kind"] in ARRAY_KINDS)

    def test_all_but_sliding_windows_and_matrices_are_programs(self) -> None:
        assert set(PROGRAMS) == set(KINDS) - {"window", "matrix"} == set(KINDS) - set(ARRAY_KINDS)

    def test_two_of_one_kind_are_refused(self) -> None:
        class Twin(Prefix):
            """Prefix sums again."""

        with pytest.raises(TypeError, match="the workload Twin states the kind"):
            kinds_among([Prefix, Prefix, Twin])
        with pytest.raises(TypeError, match="'prefix' has two programs"):
            defines("prefix")(PROGRAMS["identity"])


class TestParticipations:
    def test_every_register_has_the_same_kinds(self) -> None:
        kinds = set(get_args(AnyParticipation))
        assert set(SERVED_KINDS) == kinds
        names = {kind.named() for kind in kinds}
        assert rows_of("docs/spec.md", "Participations") == names == {document["kind"] for document in PARTICIPATIONS}
        assert set(EXACT_PARTICIPATIONS) == set(KINDS_OF_PARTICIPATION) == names
        for document in PARTICIPATIONS:
            found = parse_spec(ASKED | {"participation": document}).participation
            assert read_participation(document) == found and is_canonical(document, N)
            assert allowed(document, N).most == found.spread(N).most

    def test_an_unknown_kind_is_refused_and_never_passed_over(self) -> None:
        class Quarterly(Participation):
            """Says nothing about its patterns."""

        class Relaxed(MinSep):
            """A kind derived from another is another kind: what is proved for the one may not hold for it."""

        for asked in (Quarterly(kind="quarterly"), Relaxed(kind="min_sep", min_sep=2)):
            with pytest.raises(UnsupportedProblem, match=f"no rule of sensitivity is proved for .*{asked.kind}"):
                sensitivity_of(DenseMatrix(np.eye(4)), asked)
        with pytest.raises(UnsupportedProblem, match="'quarterly' does not define.*use single, fixed_epochs"):
            Quarterly(kind="quarterly").spread(4)
        with pytest.raises(InvalidParticipation, match="quarterly"):
            allowed({"kind": "quarterly"}, 4)


class TestObjectives:
    def test_the_exact_checker_reads_each(self) -> None:
        kinds = {get_args(kind.model_fields["kind"].annotation)[0] for kind in get_args(get_args(AnyObjective)[0])}
        assert set(OBJECTIVES) == kinds == rows_of("docs/spec.md", "Objectives")


class TestMechanisms:
    def test_every_register_has_the_same_kinds(self) -> None:
        kinds = {get_args(kind.model_fields["kind"].annotation)[0] for kind in get_args(get_args(AnyMechanism)[0])}
        assert set(_RULES) == kinds - {"auto"}
        assert set(SOLVERS) == kinds - {"auto", "added"}
        assert set(FORMULAS) < set(_RULES) and set(_ANY_COLUMNS) < set(_RULES)

    @pytest.mark.parametrize(("n", "buffers"), [(1, 0), (12, 0), (40, None)])
    def test_a_comparison_tries_each_or_says_why_not(self, n: int, buffers: int | None) -> None:
        spec = parse_spec({"workload": {"kind": "prefix", "n": n}})
        tried = {mechanism["kind"] for mechanism in mechanisms(spec, buffers)}
        assert tried | {kind for kind, _ in left_out(spec)} == set(SOLVERS)
        assert tried < set(SOLVERS)


class TestStructures:
    def test_every_register_has_the_same_names(self) -> None:
        every = set(BUILDERS) | set(ENDLESS_BUILDERS)
        assert set(SHAPES) | {SCALED} == every
        assert set(VALUES) == set(SHAPES)
        assert set(INNER_STRUCTURES) < set(BUILDERS)
        assert set(ENDLESS_STRUCTURES) == set(ENDLESS_BUILDERS)
        assert set(ENDLESS_ONLY_STRUCTURES) == set(ENDLESS_BUILDERS) - set(BUILDERS)
        assert set(_RECURRENCES) | set(_ROWS) == set(BUILDERS) - {SCALED}
        assert rows_of("docs/file-format.md", "Structures") == every
        assert {strategy.structure for _, strategy in STRATEGIES} == set(BUILDERS)

    def test_the_exact_checker_reads_each_in_the_file_of_its_family(self) -> None:
        assert set(READINGS) == set(BUILDERS) - {SCALED} and set(LIMITS) == set(ENDLESS_BUILDERS)
        for name, reading in [*READINGS.items(), *LIMITS.items()]:
            assert reading.__module__ == f"factorize.checker.structures.{FAMILIES.get(name, name)}"

    @pytest.mark.parametrize("structure", sorted(ENDLESS_BUILDERS))
    def test_every_one_without_end_is_served_or_refused_with_a_way_out(self, structure: str) -> None:
        path = next(path for path in HERE.glob(f"*/{structure.replace('_', '-')}-endless.safetensors"))
        assert check_factor_file(path.read_bytes()).supported
        strategy = load(path).strategy
        if structure in _RECURRENCES:
            assert noise_source(structure, strategy.tensors(), ENDLESS_STEPS, "").digest == ""
        else:
            with pytest.raises(UnsupportedProblem, match="use blt"):
                noise_source(structure, strategy.tensors(), ENDLESS_STEPS, "")


def test_keywords_are_those_of_the_spec() -> None:
    """A kind that is added is typed in factorize/format/keywords.py, so that editors complete it."""
    words = words_of(Spec)
    assert set(SpecKeywords.__annotations__) == set(words) - {"workload"}
    for name, kinds in (
        ("workload", WorkloadKind),
        ("participation", ParticipationKind),
        ("objective", ObjectiveKind),
        ("mechanism", MechanismKind),
        ("learning_rates", ScheduleKind),
    ):
        assert set(get_args(kinds)) == set(words[name][0].parts), name
