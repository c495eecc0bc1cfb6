"""Descriptions of tensors in a manifest as the exact checker reads them: one that is sound, and each way to spoil it."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest

from factorize.errors import CorruptObject, InvalidParticipation
from factorize.exact.description import check_description, check_parts, part_of
from factorize.exact.participation import KINDS, allowed, allowed_endless, check_canonical

N, M = 4, 6
HASH = "0123456789abcdef" * 4
MISSING = object()


def entry(name: str, shape: list[Any], structure: str = "dense", *parts: str) -> dict[str, Any]:
    tensors = [f"{name}.{part}" for part in parts] or [name]
    return {
        "structure": structure,
        "shape": shape,
        "dtype": "float64",
        "tensors": tensors,
        "sha256": HASH,
        "bytes": 8,
    }


def sound(*, wide: bool = False, endless: bool = False) -> dict[str, Any]:
    """A manifest with C, C_inv and B; with M rows of a user's matrix; or with C alone, without a last row."""
    n: Any = None if endless else N
    workload: dict[str, Any] = {"kind": "prefix", "n": "unbounded" if endless else N}
    if wide:
        workload = {"kind": "matrix", "shape": [M, N]}
    matrices = {"C": entry("C", [n, n])}
    if endless:
        matrices = {"C": entry("C", [n, n], "blt", "theta", "omega")}
    else:
        matrices |= {"B": entry("B", [M if wide else N, N]), "C_inv": entry("C_inv", [N, N])}
    participation = {"kind": "single"}
    losses = dict.fromkeys(("total_squared", "mean_squared", "rmse", "max_error", "last_iterate", "objective"), 1.5)
    return {
        "spec": {"workload": workload, "participation": participation},
        "matrices": matrices,
        "dual": {"tensors": ["dual.weights"], "sha256": HASH},
        "certificate": {
            "sensitivity": {"value": 1.5, "hex": (1.5).hex(), "rule": "columns", "participation": dict(participation)},
            "loss": losses,
            "residual": {"max_abs": 0},
            "lower_bound": {"objective": 1.25, "rule": "dual"},
            "class_lower_bound": None,
            "relative_gap": 0.2,
            "warnings": ["words"],
            "converged": False,
        },
    }


def changed(manifest: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    whole = copy.deepcopy(manifest)
    place = whole
    *outer, last = path.split("/")
    for name in outer:
        place = place[name]
    if value is MISSING:
        del place[last]
    else:
        place[last] = value
    return whole


def refused(manifest: dict[str, Any], words: str) -> None:
    with pytest.raises(CorruptObject) as reason:
        check_description(manifest)
    assert words in str(reason.value)


def test_sound_ones() -> None:
    for manifest in (sound(), sound(wide=True), sound(endless=True)):
        check_description(manifest)
        check_description(changed(manifest, "dual", None))
        del manifest["matrices"]["C"]["bytes"]
        refused(manifest, "C is described by ['dtype', 'sha256', 'shape', 'structure', 'tensors']")
    alone = sound()
    alone["matrices"] = {"C": alone["matrices"]["C"]}
    check_description(alone)


SIZES: list[tuple[Any, bool]] = [(1, True), (0, False), (-4, False), (True, False), (4.0, False), ("4", False)]


@pytest.mark.parametrize(("size", "counts"), [*SIZES, ("unbounded", True), (None, False)])
def test_sizes_of_a_spec(size: Any, counts: bool) -> None:
    """A whole number of at least 1 on either side, or no end of both."""
    wide = sound(wide=True)
    for side in (0, 1):
        shape: list[Any] = [M, N]
        shape[side] = size
        if type(size) is int and size == 1:
            wide["matrices"] = {"C": entry("C", [shape[1], shape[1]])}
            check_description(changed(wide, "spec/workload/shape", shape))
        else:
            refused(changed(wide, "spec/workload/shape", shape), "the spec states")
    if not counts:
        refused(changed(sound(), "spec/workload/n", size), "the spec states")


RIGHT: list[tuple[str, Any]] = [
    ("matrices/C/dtype", "float32"),
    ("matrices/C/bytes", 1),
    ("matrices/B/encoder_sensitivity", {}),
    ("matrices/B", entry("B", [N, N], "toeplitz", "coefficients")),
    ("matrices/C", entry("C", [N, N], "banded", "bands")),
    ("matrices/C", entry("C", [N, N], "blt", "omega", "theta")),
    ("matrices/C", entry("C", [N, N], "tree", "nodes", "restart") | {"tensors": ["tree.nodes", "tree.restart"]}),
    ("matrices/C", entry("C", [N, N], "tree") | {"tensors": ["C", "tree.nodes", "tree.restart"]}),
    ("matrices/C", entry("C", [N, N], "scaled", "bands", "column_scale")),
    ("matrices/C", entry("C", [N, N], "scaled") | {"tensors": ["C", "C.column_scale"]}),
    ("certificate/relative_gap", None),
    ("certificate/lower_bound", None),
    ("certificate/class_lower_bound", {"objective": -3, "rule": ""}),
    ("certificate/warnings", []),
    ("certificate/converged", True),
    ("certificate/loss/rmse", None),
    ("certificate/loss/objective", 3),
    ("dual/tensors", [f"dual.{n}" for n in ("weights", "row_weights", "factors", "class_column", "class_signs")]),
]


@pytest.mark.parametrize(("path", "value"), RIGHT)
def test_what_else_is_sound(path: str, value: Any) -> None:
    check_description(changed(sound(), path, value))


NO_NUMBER = "a claim of the certificate is no finite number"
NO_TEXT = "a rule or a warning of the certificate is no text"
NO_OBJECT = "the certificate's losses are not"
NO_CLAIM = "the sensitivity is not stated as a number"
WRONG: list[tuple[str, Any, str]] = [
    ("matrices/C", MISSING, "the matrices are ['B', 'C_inv']; C has to be there"),
    ("matrices/D", {}, "the matrices are ['B', 'C', 'C_inv', 'D']"),
    ("matrices/C/more", 1, "C is described by"),
    ("matrices/C/encoder_sensitivity", {}, "C is described by"),
    ("matrices/C_inv/encoder_sensitivity", {}, "C_inv is described by"),
    ("matrices/B/more", 1, "B is described by"),
    ("matrices/C/structure", MISSING, "C is described by"),
    ("matrices/C/shape", [N, N + 1], "C is stated to have shape"),
    ("matrices/C/shape", [N, float(N)], "C is stated to have shape"),
    ("matrices/C/shape", (N, N), "C is stated to have shape"),
    ("matrices/C/shape", [N], "C is stated to have shape"),
    ("matrices/C/shape", [None, None], "C is stated to have shape"),
    ("matrices/C/dtype", "float16", "C is not stored as 'float16'"),
    ("matrices/C/bytes", 0, "C does not have the number of bytes"),
    ("matrices/C/bytes", 8.0, "C does not have the number of bytes"),
    ("matrices/C/tensors", "C", "the tensors of C are 'C', no list"),
    ("matrices/C/tensors", ("C",), "no list"),
    ("matrices/C/tensors", ["B"], "'B' is not the name of a part of C"),
    ("matrices/C/tensors", [], "a dense matrix has no tensors [], which are not its own"),
    ("matrices/C/tensors", ["C", "C"], "two tensors of C are the same part"),
    ("matrices/C/tensors", ["C", "C.more"], "a dense matrix has no tensors ['C', 'C.more'], which are not its own"),
    ("matrices/C/structure", "other", "knows no structure 'other' of C"),
    ("matrices/C/structure", "toeplitz", "a toeplitz matrix has no tensors ['C'], which are not its own"),
    ("matrices/C/structure", "scaled", "which beside column_scale are not those of one structure"),
    ("matrices/C", entry("C", [N, N], "nu_toeplitz", "nu"), "knows no structure 'nu_toeplitz' of C"),
    ("matrices/C", entry("C", [N, N], "scaled", "column_scale"), "beside column_scale are not"),
    ("matrices/C", entry("C", [N, N], "scaled", "theta", "column_scale"), "beside column_scale are not"),
    ("matrices/C", entry("C", [N, N], "tree") | {"tensors": ["C", "tree.nodes"]}, "which are not its own"),
    (
        "matrices/C",
        entry("C", [N, N], "scaled") | {"tensors": ["tree.nodes", "tree.restart", "C.column_scale"]},
        "beside column_scale are not",
    ),
    ("matrices/C", entry("C", [N, N], "banded") | {"tensors": ["C", "C.bands"]}, "which are not its own"),
    ("matrices/B/structure", "banded", "knows no structure 'banded' of B"),
    ("matrices/C/sha256", HASH[1:], "is no sha256"),
    ("matrices/C/sha256", HASH + "0", "is no sha256"),
    ("matrices/C/sha256", HASH.upper(), "is no sha256"),
    ("matrices/C/sha256", list(HASH), "is no sha256"),
    ("dual/tensors", [], "the evidence is described by"),
    ("dual/tensors", ("dual.weights",), "the evidence is described by"),
    ("dual/more", 1, "the evidence is described by"),
    ("dual/sha256", MISSING, "the evidence is described by"),
    ("dual/sha256", "0", "is no sha256"),
    ("dual/tensors", ["dual.weights", "dual.weights"], "the evidence has the tensors"),
    ("dual/tensors", ["dual.weights", "dual.more"], "the evidence has the tensors"),
    ("spec/participation", {"kind": "fixed_epochs", "epochs": 1}, "is no participation of the 4 steps"),
    ("certificate/sensitivity/hex", "0x3p-1", NO_CLAIM),
    ("certificate/sensitivity/value", "1.5", NO_CLAIM),
    ("certificate/sensitivity/value", True, NO_CLAIM),
    ("certificate/sensitivity/rule", None, NO_CLAIM),
    ("certificate/loss", [1], NO_OBJECT),
    ("certificate/loss/rmse", MISSING, NO_OBJECT),
    ("certificate/loss/more", 1.0, NO_OBJECT),
    ("certificate/residual", [], NO_OBJECT),
    ("certificate/residual/max_abs", None, NO_NUMBER),
    ("certificate/residual/max_abs", math.nan, NO_NUMBER),
    ("certificate/lower_bound", [], NO_OBJECT),
    ("certificate/class_lower_bound", 5, NO_OBJECT),
    ("certificate/lower_bound/objective", None, NO_NUMBER),
    ("certificate/lower_bound/objective", True, NO_NUMBER),
    ("certificate/lower_bound/rule", 1, NO_TEXT),
    ("certificate/class_lower_bound", {"objective": math.inf, "rule": ""}, NO_NUMBER),
    ("certificate/class_lower_bound", {"objective": 1.0, "rule": None}, NO_TEXT),
    ("certificate/relative_gap", -math.inf, NO_NUMBER),
    ("certificate/relative_gap", "0.2", NO_NUMBER),
    ("certificate/loss/rmse", math.inf, NO_NUMBER),
    ("certificate/loss/rmse", "1", NO_NUMBER),
    ("certificate/warnings", [1], NO_TEXT),
    ("certificate/converged", 1, "the certificate's converged is '1', neither"),
    ("certificate/converged", None, "the certificate's converged is 'None', neither"),
]


@pytest.mark.parametrize(("path", "value", "words"), WRONG)
def test_what_is_not(path: str, value: Any, words: str) -> None:
    refused(changed(sound(), path, value), words)


class Texts(list):
    """A list of another class, which another reader may not take for one."""


def test_warnings_that_are_no_list() -> None:
    refused(changed(sound(), "certificate/warnings", Texts()), NO_TEXT)


def test_an_endless_one_holds_c_alone_by_parameters() -> None:
    for name in ("B", "C_inv"):
        refused(changed(sound(endless=True), f"matrices/{name}", entry(name, [None, None])), "the matrices are")
    refused(changed(sound(endless=True), "matrices/C", entry("C", [None, None])), "knows no structure 'dense' of C")
    check_description(changed(sound(endless=True), "matrices/C", entry("C", [None, None], "nu_toeplitz", "nu")))
    refused(
        changed(sound(endless=True), "matrices/C", entry("C", [None, None], "blt", "theta")), "which are not its own"
    )
    refused(changed(sound(endless=True), "spec/participation", {"kind": "fixed_epochs", "epochs": 2}), "the None steps")


def test_a_wide_workload_has_a_b_of_its_rows_and_no_toeplitz_one() -> None:
    wide = sound(wide=True)
    for name, shape in (("B", [N, N]), ("B", [N, M]), ("C", [M, M]), ("C_inv", [M, N])):
        refused(changed(wide, f"matrices/{name}/shape", shape), f"{name} is stated to have shape")
    refused(
        changed(wide, "matrices/B", entry("B", [M, N], "toeplitz", "coefficients")),
        "knows no structure 'toeplitz' of B",
    )
    check_description(changed(wide, "matrices/C_inv", entry("C_inv", [N, N], "toeplitz", "coefficients")))


def test_participations_with_numbers_of_another_type() -> None:
    asked = {"kind": "min_sep", "min_sep": 2, "max_participations": 2}
    manifest = changed(sound(), "spec/participation", asked)
    for stated in (asked, {"kind": "single"}, {"kind": "other", "more": 2.0}, asked | {"min_sep": 3}):
        check_description(changed(manifest, "certificate/sensitivity/participation", stated))
    for stated in (asked | {"min_sep": 2.0}, asked | {"max_participations": True}):
        refused(changed(manifest, "certificate/sensitivity/participation", stated), "with numbers of another type")


def test_names_of_parts() -> None:
    for matrix, tensor, part in (
        ("C", "C", ""),
        ("C", "C.bands", "bands"),
        ("C", "C.a.b", "a.b"),
        ("C", "tree.nodes", "tree.nodes"),
        ("dual", "dual.weights", "weights"),
    ):
        assert part_of(matrix, tensor) == part
    wrong = [("C", "D"), ("C", "D.bands"), ("C", "C."), ("C", "Cbands"), ("C", "tree.other"), ("B", "tree.nodes")]
    for matrix, tensor in [*wrong, ("C", "C.tree.nodes"), ("B", "B.tree.restart"), ("C", "")]:
        with pytest.raises(CorruptObject, match="is not the name of a part"):
            part_of(matrix, tensor)


def parts_are_refused(words: str, structure: str, n: int | None, **parts: Any) -> None:
    given = {name.replace("whole", ""): np.array(part) for name, part in parts.items()}
    with pytest.raises(CorruptObject, match=words):
        check_parts(structure, given, n)


def test_numbers_of_parts() -> None:
    """Each at its limit, and beyond."""

    def fine(structure: str, n: int | None, **parts: Any) -> None:
        check_parts(structure, {name.replace("whole", ""): np.array(part) for name, part in parts.items()}, n)

    fine("scaled", N, column_scale=[1e-60, 1.0, 1e60])
    for beyond in (0.99e-60, 1.01e60, -1.0, 0.0, math.nan):
        parts_are_refused("a factor of a column", "scaled", N, column_scale=[1.0, beyond])
    fine("tree", 1024, whole=[1.0])
    fine("tree", 1025)
    parts_are_refused("stored whole", "tree", 1025, whole=[1.0])
    parts_are_refused("stored whole", "tree", 1024)
    parts_are_refused("stored whole", "tree", None, whole=[1.0])
    fine("tree", None)
    fine("state_space", N, transition=np.ones((1, 1, 1)))
    fine("state_space", N, transition=np.ones((1, 1, 1, 1)))
    fine("buffered", N, decay=np.ones((1, 1)))
    for wrong in ({"transition": np.ones((1, 1))}, {"decay": np.ones(1)}, {"decay": np.ones((1, 1, 1))}):
        parts_are_refused("another shape than its structure", "buffered", N, **wrong)
    near = 2.0**-43
    fine("blt", N, theta=[0.5, 0.5 + near, 0.0], omega=[0.0, 0.5, 2.0])
    for theta, omega in (
        ([0.5, 0.5 + near / 2], [1.0, 1.0]),
        ([0.5 + near / 2, 0.25, 0.5], [1.0, 1.0, 1.0]),
        ([-1e-9], [1.0]),
        ([0.5], [-1e-9]),
    ):
        parts_are_refused("not negative, and no two", "blt", N, theta=theta, omega=omega)
    fine("blt", None, theta=[0.5, 0.0], omega=[0.75, 0.25])
    fine("blt", N, theta=[0.5, 0.0], omega=[0.75, 0.5])
    parts_are_refused("would grow", "blt", None, theta=[0.5, 0.0], omega=[0.75, 0.5])
    parts_are_refused("would grow", "blt", None, theta=[0.5, 0.0], omega=[0.75, 0.75])
    fine("inverse_banded_toeplitz", N, inverse_coefficients=[1.0, -1e-100, 0.0])
    fine("inverse_banded_toeplitz", N, inverse_coefficients=[1.0, 1e-300])
    parts_are_refused("between -1e-100 and 0", "inverse_banded_toeplitz", N, inverse_coefficients=[1.0, -0.99e-100])


SINGLE: dict[str, Any] = {"kind": "single"}


def epochs(number: Any) -> dict[str, Any]:
    return {"kind": "fixed_epochs", "epochs": number}


def min_sep(apart: Any, most: Any = MISSING) -> dict[str, Any]:
    return {"kind": "min_sep", "min_sep": apart} | ({} if most is MISSING else {"max_participations": most})


def test_canonical_participations() -> None:
    for given, n in (
        (SINGLE, 1),
        (SINGLE, None),
        (epochs(2), 12),
        (epochs(12), 12),
        (min_sep(1, 2), 12),
        (min_sep(12, 2), 12),
        (min_sep(99, 2), None),
    ):
        check_canonical(given, n)
    for given, n in (
        (epochs(1), 12),
        (epochs(5), 12),
        (epochs(2), None),
        (epochs(2.0), 12),
        (min_sep(12, 1), 12),
        (min_sep(13, 2), 12),
        (min_sep(3), 12),
        (min_sep(3, None), 12),
        (min_sep(0, 2), 12),
        (min_sep(True, 2), 12),
        (SINGLE | {"epochs": 1}, 12),
        ({"kind": "other"}, 12),
        ({"kind": ["single"]}, 12),
    ):
        with pytest.raises(CorruptObject, match=f"is no participation of the {n} steps"):
            check_canonical(given, n)


def test_patterns_that_are_not() -> None:
    """A count below 1 would allow no step, and C any sensitivity."""
    other = {"kind": "poisson", "epochs": 1, "more": "x" * 99}
    for given in (
        epochs(0),
        epochs(-1),
        epochs(5),
        epochs(13),
        min_sep(0),
        min_sep(13),
        min_sep(3, 0),
        min_sep(13, 2),
        other,
    ):
        with pytest.raises(InvalidParticipation) as reason:
            allowed(given, 12)
        known = "this checker knows single, fixed_epochs, min_sep"
        assert str(reason.value) == f"participation {str(given)[:80]} does not fit n=12; {known}"
    for given in (epochs(2), min_sep(3), min_sep(3, None), min_sep(3, 0), min_sep(0, 3), other):
        with pytest.raises(InvalidParticipation) as reason:
            allowed_endless(given)
        assert str(reason.value) == f"participation {str(given)[:80]} has no finite sensitivity without end"


def test_patterns_that_are_allowed() -> None:
    assert allowed(SINGLE, 12) == (12, 1, False)
    assert allowed(epochs(1), 12) == (12, 1, True) and allowed(epochs(3), 12) == (4, 3, True)
    assert allowed(min_sep(5), 12) == (5, 3, False) and allowed(min_sep(4), 12) == (4, 3, False)
    assert allowed(min_sep(5, 2), 12) == (5, 2, False) and allowed(min_sep(5, 9), 12) == (5, 3, False)
    assert allowed(min_sep(12, 1), 12) == (12, 1, False) and allowed(min_sep(1), 1) == (1, 1, False)
    assert allowed_endless(SINGLE) == (1, 1, False)
    assert allowed_endless(min_sep(1, 1)) == (1, 1, False) and allowed_endless(min_sep(7, 3)) == (7, 3, False)
    assert sorted(KINDS) == ["fixed_epochs", "min_sep", "single"]
