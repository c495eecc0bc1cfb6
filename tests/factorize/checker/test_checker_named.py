"""Rules of mechanisms, one by one, on matrices written by hand: members, the last that passes, and the first that does not."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import pytest

from factorize.checker import mechanism
from factorize.checker.arithmetic.near import NotEnclosed
from factorize.checker.mechanism import Contradiction, Named, belongs, belongs_endless
from factorize.checker.strategy import Strategy

N = 6
NEAR = 1e-9 + 4 * N * 2.0**-53
PREFIX = {"kind": "prefix", "n": N}
ROOT = np.cumprod([1.0, *((2 * i - 1) / (2 * i) for i in range(1, N))])  # whose square is 1, 1, 1, ...


def given(structure: str, parts: dict[str, Any], kind: str, dtype: str = "float64", **more: Any) -> Named:
    """C of a structure, and a spec with a mechanism; `spec` holds what else the spec says."""
    arrays = {name.replace("whole", ""): np.array(part, dtype=float) for name, part in parts.items()}
    spec = {"workload": PREFIX, "mechanism": {"kind": kind, **more}} | more.pop("spec", {})
    spec["mechanism"].pop("spec", None)
    return Named(spec, Strategy(structure, arrays, N), dtype, arrays)


def column(values: Any, kind: str, **more: Any) -> Named:
    values = np.array(values, dtype=float)
    padded = np.concatenate([values, np.zeros(N - len(values))]) if len(values) < N else values
    return given("toeplitz", {"coefficients": padded}, kind, **more)


def dense(array: Any, kind: str, **more: Any) -> Named:
    return given("dense", {"whole": array}, kind, **more)


def inverse(values: Any, kind: str, **more: Any) -> Named:
    return given("inverse_banded_toeplitz", {"inverse_coefficients": values}, kind, **more)


def proved(named: Named, words: str) -> None:
    assert belongs(named) == f"C is of the mechanism {named.mechanism['kind']}: {words}"


def refused(named: Named, words: str) -> None:
    with pytest.raises(Contradiction) as reason:
        belongs(named)
    assert words in str(reason.value)


def undecided(named: Named, words: str) -> None:
    with pytest.raises(NotEnclosed) as reason:
        belongs(named)
    assert words in str(reason.value)


def lower(values: Any) -> np.ndarray:
    return np.array([[values[i - j] if i >= j else 0.0 for j in range(N)] for i in range(N)])


def test_what_is_named() -> None:
    named = column(2 * ROOT, "square_root")
    assert named.near == NEAR and named.bands == N and named.ratios == pytest.approx(ROOT, rel=1e-15)
    assert column(ROOT, "toeplitz", dtype="float32").near == 1e-9 + 4 * N * 2.0**-24
    assert column(ROOT, "banded", bands=3).bands == 3 and column(ROOT, "banded", bands=None).bands == N
    assert (named.workload == 1).all() and named.workload.shape == (N,)
    other = column(ROOT, "x", spec={"optimize_for": {"kind": "decay", "n": 8, "rate": 0.5}}).workload
    assert other.tolist() == [0.5**k for k in range(N)]
    with pytest.raises(NotEnclosed, match="formula is of a Toeplitz workload"):
        _ = column(ROOT, "x", spec={"workload": {"kind": "matrix", "sha256": ""}}).workload
    with pytest.raises(Contradiction, match="it is not Toeplitz"):
        _ = dense(np.diag(range(1, N + 1)), "x").ratios


def test_kinds_that_are_not_known() -> None:
    undecided(column(ROOT, "novel" + "x" * 50), f"the mechanism '{'novel' + 'x' * 35}'")


def test_classes() -> None:
    steep = np.tril(np.ones((N, N))) + np.diag(range(N))
    for kind in ("dense", "semidefinite"):
        proved(dense(steep, kind), "its class holds every lower-triangular matrix")
    two = np.eye(N) + np.diag([0.5] * 4 + [0.25], -1)
    proved(dense(two, "banded", bands=2), "it has at most 2 diagonals")
    refused(dense(two, "banded", bands=1), "it has 2 diagonals, and the mechanism has 1")
    proved(column(ROOT, "toeplitz"), "it is Toeplitz")
    refused(dense(steep, "toeplitz"), "it is not Toeplitz")
    proved(column([1.0, 0.5], "banded_toeplitz", bands=2), "it is Toeplitz, and it has at most 2 diagonals")
    refused(dense(two, "banded_toeplitz", bands=2), "it is not Toeplitz")
    refused(column([1.0, 0.5], "banded_toeplitz", bands=1), "it has 2 diagonals")
    proved(column([3.0], "identity"), "it is a multiple of the identity")
    for other in (dense(np.diag(range(1, N + 1)), "identity"), column([1.0, 1e-300], "identity")):
        refused(other, "it is no multiple of the identity")
    undecided(column(ROOT, "spectral"), "C is Toeplitz; that it is the optimum")
    refused(dense(steep, "spectral"), "it is not Toeplitz")


def test_buffers() -> None:
    blt = {"theta": [0.5, 0.25], "omega": [0.5, 0.25]}
    for most in (2, 3):
        proved(given("blt", blt, "blt", buffers=most), f"it has 2 of at most {most} buffers")
    refused(given("blt", blt, "blt", buffers=1), "it has 2 buffers, and the mechanism has 1")
    refused(column(ROOT, "blt", buffers=9), "it is stored as toeplitz, not by decays and scales")
    ones, states = np.ones(N), np.full((N, 2), 0.5)
    parts = {"diagonal": ones, "decay": states, "input": states, "output": states}
    proved(given("buffered", parts, "buffered_linear", buffers=2), "it has 2 of at most 2 buffers")
    proved(given("buffered", parts, "buffered_linear", buffers=2, redraws=None), "it has 2 of at most 2 buffers")
    refused(given("buffered", parts, "buffered_linear", buffers=1), "it has 2 buffers")
    refused(column(ROOT, "buffered_linear", buffers=2), "it is stored as toeplitz, not by buffers")
    direct = np.zeros((3, N))
    direct[0] = 1
    parts = {"decay": states, "output": states, "input": np.zeros((3, N, 2)), "direct": direct, "lag": [2.0]}
    for redraws in (2, 3, None):
        named = given("redrawn", parts, "buffered_linear", buffers=2, redraws=redraws)
        proved(named, "it has 2 of at most 2 buffers")
    for redraws in (0, 1):
        named = given("redrawn", parts, "buffered_linear", buffers=2, redraws=redraws)
        refused(named, f"it makes more earlier draws again than the mechanism's {redraws}")


def test_strategies_by_their_bytes() -> None:
    array = np.tril(np.ones((N, N)))
    sha256 = hashlib.sha256(array.tobytes()).hexdigest()
    proved(dense(array, "added", sha256=sha256), "its bytes hash to the sha256 that the mechanism names")
    refused(dense(array, "added", sha256=sha256[::-1]), "its bytes do not hash")
    undecided(dense(array, "added", dtype="float32", sha256=sha256), "is known where it is stored whole in float64")
    undecided(column(ROOT, "added", sha256=sha256), "is known where it is stored whole in float64")


def test_columns_and_their_norms() -> None:
    equal = "its columns of equal norm"
    scale = 1 / np.sqrt((lower(ROOT) ** 2).sum(axis=0))
    parts = {"coefficients": ROOT, "column_scale": scale}

    def scaled(more: Any = 1.0, kind: str = "square_root", **mechanism: Any) -> Named:
        return given("scaled", parts | {"column_scale": scale * more}, kind, **mechanism)

    formula = "its coefficients are (1 - (1 - nu) x)^(-1/2), nu = 0"
    proved(scaled(normalization="columns"), f"{formula}, {equal}")
    proved(scaled(normalization="auto"), f"{formula}, {equal}")
    proved(column(ROOT, "square_root", normalization="auto"), formula)
    for normalization in ("columns", "fitted", "auto"):
        refused(scaled(np.arange(1, N + 1), normalization=normalization), "its columns have different norms")
    refused(column(ROOT, "square_root", normalization="columns"), "its columns have different norms")
    for unscaled in ({}, {"normalization": "none"}):
        refused(scaled(**unscaled), "its columns have factors, and the mechanism is not normalised")
    fitted = scaled(np.arange(1, N + 1), normalization="fitted", spec={"sampling": {"kind": "x"}})
    proved(fitted, f"{formula}, its columns with factors of their own")
    refused(scaled(np.arange(1, N + 1), spec={"sampling": {"kind": "x"}}), "the mechanism is not normalised")
    # squares of norms differ by twice `near` of the largest
    for off, holds in ((0.97, True), (1.03, False)):
        moved = np.ones(N)
        moved[2] = math.sqrt(1 - 2 * NEAR * off)
        if holds:
            proved(scaled(moved, normalization="columns"), f"{formula}, {equal}")
        else:
            refused(scaled(moved, normalization="columns"), "its columns have different norms")
    far = np.tril(np.ones((N, N)))
    proved(dense(far, "dense", normalization="columns"), "its class holds every lower-triangular matrix")


FORMULAS: list[tuple[dict[str, Any], Any, str]] = [
    ({"kind": "square_root"}, ROOT, "(1 - (1 - nu) x)^(-1/2), nu = 0"),
    ({"kind": "nu_toeplitz", "nu": 0.25}, ROOT * 0.75 ** np.arange(N), "(1 - (1 - nu) x)^(-1/2), nu = 0.25"),
    ({"kind": "nu_toeplitz", "nu": "tune"}, ROOT * 0.75 ** np.arange(N), "(1 - (1 - nu) x)^(-1/2), nu = 0.25"),
    ({"kind": "anti_pgd"}, np.ones(N), "powers of 1.0"),
    ({"kind": "anti_pgd", "damping": None}, np.ones(N), "powers of 1.0"),
    ({"kind": "anti_pgd", "damping": 0.25}, 0.75 ** np.arange(N), "powers of 0.75"),
    ({"kind": "lambda_cgd", "correlation": 0.5}, 0.5 ** np.arange(N), "powers of 0.5"),
    ({"kind": "lambda_cgd", "correlation": "tune"}, 0.5 ** np.arange(N), "powers of 0.5"),
    ({"kind": "lambda_cgd", "correlation": 0.0}, np.eye(1, N)[0], "powers of 0.0"),
    ({"kind": "lambda_cgd", "correlation": 1.0}, np.ones(N), "powers of 1.0"),
]


@pytest.mark.parametrize(("named", "values", "words"), FORMULAS)
def test_columns_by_a_formula(named: dict[str, Any], values: np.ndarray, words: str) -> None:
    """Each coefficient may be off by `near` of it, and by 1e-30."""
    more = {name: value for name, value in named.items() if name != "kind"}
    proved(column(3 * values, named["kind"], **more), f"its coefficients are {words}")
    for off, holds in ((0.99, True), (1.01, False)):
        for sign in (-1, 1):
            moved = np.array(values)
            moved[4] *= 1 + sign * NEAR * off
            if moved[4]:
                made = column(moved, named["kind"], **more)
                if holds:
                    proved(made, f"its coefficients are {words}")
                else:
                    refused(made, f"its coefficient 4 differs from the formula {words} by ")
    if not values[4]:
        for small, holds in ((0.99e-30, True), (1.01e-30, False), (-1.01e-30, False)):
            made = column(np.array(values) + small * np.eye(N)[4], named["kind"], **more)
            if holds:
                proved(made, f"its coefficients are {words}")
            else:
                refused(made, f"its coefficient 4 differs from the formula {words} by 1.01e-30")


def test_correlations_within_zero_and_one() -> None:
    for ratio, holds in ((1 + NEAR, True), (1 + NEAR * 0.99, True), (1 + NEAR * 1.01, False), (-1e-12, False)):
        for kept in (ratio, "tune"):
            made = column([ratio**k for k in range(N)], "lambda_cgd", correlation=kept)
            if holds:
                assert "its coefficients are powers of 1.0000000" in belongs(made)
            else:
                refused(made, "outside [0, 1]")


def short(kind: str, *values: float, **more: Any) -> Named:
    """A Toeplitz C of as many steps as it has coefficients."""
    n, parts = len(values), {"coefficients": np.array(values)}
    spec = {"workload": {"kind": "prefix", "n": n}, "mechanism": {"kind": kind, **more}}
    return Named(spec, Strategy("toeplitz", parts, n), "float64", parts)


def one_step(kind: str, **more: Any) -> Named:
    return short(kind, 2.0, **more)


def test_two_steps_tell_a_parameter() -> None:
    assert "nu = 0.25" in belongs(short("nu_toeplitz", 2.0, 0.75, nu="tune"))
    assert "powers of 0.375" in belongs(short("lambda_cgd", 2.0, 0.75, correlation="tune")).replace("np.float64(", "")
    assert "power -0.375" in belongs(short("banded_inverse_fractional_root", 2.0, 0.75, bands=2, gamma="tune"))


def test_one_step_fits_every_formula() -> None:
    for kind, more in (
        ("nu_toeplitz", {"nu": "tune"}),
        ("lambda_cgd", {"correlation": "tune"}),
        ("banded_inverse_fractional_root", {"gamma": "tune"}),
        ("banded_inverse_square_root", {}),
        ("banded_square_root", {}),
    ):
        assert belongs(one_step(kind, **more)).startswith(f"C is of the mechanism {kind}")
    assert "nu = 0" in belongs(one_step("nu_toeplitz", nu="tune"))
    assert "power -0" in belongs(one_step("banded_inverse_fractional_root", gamma="tune"))
    assert "powers of 0.0" in belongs(one_step("lambda_cgd", correlation="tune"))


def test_banded_square_roots() -> None:
    few = np.array([*ROOT[:3], 0, 0, 0])
    words = "it has at most 3 diagonals, and their square is the workload's series"
    proved(column(2 * few, "banded_square_root", bands=3), words)
    decays = {"workload": {"kind": "decay", "n": N, "rate": 0.5}}
    proved(column(few * 0.5 ** np.arange(N), "banded_square_root", bands=3, spec=decays), words)
    refused(column(ROOT, "banded_square_root", bands=3), "it has 6 diagonals")
    refused(column(few * 0.5 ** np.arange(N), "banded_square_root", bands=3), "differ from the formula")
    for off, holds in ((0.49, True), (0.51, False), (-0.49, True), (-0.51, False)):  # the square moves by twice as much
        made = column(few + NEAR * off * np.eye(N)[2], "banded_square_root", bands=3)
        if holds:
            proved(made, words)
        else:
            refused(made, "its coefficients differ from the formula by 1.02e-09")


def test_what_is_not_finite_differs_from_every_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """The square of these coefficients has sums of infinities of both signs."""
    wild = [1.0, 1e200, 1e200, -1e200, 0, 0]
    refused(column(wild, "banded_square_root", bands=5), "its coefficients differ from the formula by nan")
    for kind, more in (("banded_inverse_square_root", {}), ("banded_inverse_fractional_root", {"gamma": 0.5})):
        undecided(column(wild, kind, bands=5, **more), "more diagonals of C^-1")
    named = column(ROOT, "x")
    for found, wanted in ((np.nan, 1.0), (np.inf, 1.0), (1.0, np.nan), (1.0, np.inf), (-np.inf, np.inf)):
        with pytest.raises(Contradiction, match="differ from the formula"):
            mechanism._same(named, np.array([found]), np.array([wanted]))
    with pytest.raises(Contradiction, match="its coefficient 5 differs from the formula"):
        mechanism._compared(named, np.array([*ROOT[:5], np.nan]), "x")
    numbers = np.array(TestTrees.ONLINE, dtype=float)
    numbers[0, 0] = np.nan
    monkeypatch.setattr(mechanism, "_completed", lambda *_, **__: numbers)
    refused(tree(np.array(TestTrees.ONLINE), 4, "online", restart_every=4), "it differs from the decoder online by nan")


HALF = np.array([1.0, -0.5, -0.125, -0.0625, -0.0390625, -0.02734375])  # (1 - x)^(1/2)


def inverse_column(few: Any) -> np.ndarray:
    """Coefficients of 1 / few."""
    found = [1.0 / few[0]]
    for t in range(1, N):
        found.append(-sum(few[d] * found[t - d] for d in range(1, min(t, len(few) - 1) + 1)) / few[0])
    return np.array(found)


def test_banded_inverse_square_roots() -> None:
    words = "C^-1 has at most 3 diagonals, and their square is the inverse of the workload's series"
    proved(inverse(HALF[:3], "banded_inverse_square_root", bands=3), words)
    proved(column(inverse_column(HALF[:3]), "banded_inverse_square_root", bands=3), words)
    proved(column(5 * inverse_column(HALF[:3]), "banded_inverse_square_root", bands=3), words)
    undecided(inverse(HALF[:3], "banded_inverse_square_root", bands=2), "more diagonals of C^-1 than the mechanism has")
    refused(inverse(HALF[:2], "banded_inverse_square_root", bands=3), "differ from the formula by 0.25")
    refused(inverse([1.0, -0.5, -0.25], "banded_inverse_square_root", bands=3), "differ from the formula by 0.25")
    for off, holds in ((0.99, True), (1.01, False)):  # of a fourth diagonal
        for sign in (-1, 1):
            made = column(inverse_column([*HALF[:3], sign * NEAR * off]), "banded_inverse_square_root", bands=3)
            if holds:
                proved(made, words)
            else:
                undecided(made, "more diagonals of C^-1")


def power(gamma: float) -> np.ndarray:
    """(1 - x)^gamma."""
    return np.cumprod([1.0, *((t - 1 - gamma) / t for t in range(1, N))])


def test_banded_inverse_fractional_roots() -> None:
    kind = "banded_inverse_fractional_root"
    words = "C^-1 has at most 4 diagonals, those of the workload's series to the power -"
    for gamma in (0.7, 1.0):
        for stated in (gamma, "tune"):
            proved(inverse(power(gamma)[:4], kind, bands=4, gamma=stated), f"{words}{gamma:.6g}")
            proved(column(3 * inverse_column(power(gamma)[:4]), kind, bands=4, gamma=stated), f"{words}{gamma:.6g}")
    proved(inverse([1.0], kind, bands=4, gamma=0.0), f"{words}0")
    refused(inverse(power(0.7)[:4], kind, bands=4, gamma=0.7 + 1e-6), "differ from the formula")
    refused(inverse(power(0.7)[:3], kind, bands=4, gamma=0.7), "differ from the formula")
    refused(inverse(power(0.7)[:2], kind, bands=2, gamma=0.5), "differ from the formula by 0.2")
    for gamma in (1 + NEAR, -NEAR):
        assert "to the power" in belongs(column(inverse_column(power(gamma)[:4]), kind, bands=4, gamma=gamma))
    for gamma, holds in ((1 + NEAR * 0.9, True), (1 + NEAR * 1.1, False), (-NEAR * 0.9, True), (-NEAR * 1.1, False)):
        for stated in (gamma, "tune"):
            made = column(inverse_column(power(gamma)[:4]), kind, bands=4, gamma=stated)
            if holds:
                assert "to the power" in belongs(made)
            else:
                refused(made, "outside [0, 1]")
    none = {"workload": {"kind": "identity", "n": N}}
    proved(
        column([2.0], kind, bands=3, gamma="tune", spec=none),
        "C^-1 has at most 3 diagonals, those of the workload's series to the power -0",
    )


def series_power(a: Any, gamma: float) -> np.ndarray:
    """a^gamma for a_0 = 1: t m_t = sum_k (gamma k - (t - k)) a_k m_(t-k), k >= 1."""
    found = [1.0]
    for t in range(1, len(a)):
        found.append(sum((gamma * k - (t - k)) * a[k] * found[t - k] for k in range(1, t + 1)) / t)
    return np.array(found)


@pytest.mark.parametrize(
    ("workload", "first"),
    [
        ({"kind": "momentum", "n": N, "momentum": 0.5, "nesterov": True}, [1.5, 1.75, 1.875]),
        ({"kind": "window", "n": N, "width": 2}, [1.0, 1.0, 0.0]),
    ],
)
def test_roots_of_another_workload(workload: dict[str, Any], first: list[float]) -> None:
    spec = {"workload": workload}
    a = column(ROOT, "x", spec=spec).workload
    assert a[:3].tolist() == first
    a = a / a[0]
    few = np.concatenate([series_power(a, 0.5)[:3], np.zeros(3)])
    words = "it has at most 3 diagonals, and their square is the workload's series"
    proved(column(few, "banded_square_root", bands=3, spec=spec), words)
    made = inverse_column(series_power(a, -0.5)[:3])
    words = "C^-1 has at most 3 diagonals, and their square is the inverse of the workload's series"
    proved(column(7 * made, "banded_inverse_square_root", bands=3, spec=spec), words)
    for gamma in (0.3, "tune"):
        for bands in (2, 3):
            made = inverse_column(series_power(a, -0.3)[:bands])
            words = f"C^-1 has at most {bands} diagonals, those of the workload's series to the power -0.3"
            proved(column(7 * made, "banded_inverse_fractional_root", bands=bands, gamma=gamma, spec=spec), words)


def test_banded_inverse_toeplitz() -> None:
    for bands in (3, 4):
        words = f"C^-1 is Toeplitz with 3 of at most {bands} diagonals"
        proved(inverse(HALF[:3], "banded_inverse_toeplitz", bands=bands), words)
    refused(inverse(HALF[:3], "banded_inverse_toeplitz", bands=2), "C^-1 has 3 diagonals, 2 are allowed")
    refused(column(ROOT, "banded_inverse_toeplitz", bands=9), "not stored by the diagonals of its inverse")


def tree(nodes: Any, restart: int, decoder: str, n: int = N, **more: Any) -> Named:
    parts = {"tree.nodes": np.array(nodes, dtype=float), "tree.restart": np.array([float(restart)])}
    spec = {"workload": {"kind": "prefix", "n": n}, "mechanism": {"kind": "tree", "decoder": decoder, **more}}
    return Named(spec, Strategy("tree", parts, n), "float64", parts)


class TestTrees:
    """Six steps, in trees of four leaves: the steps 0..5 complete nodes of 1, 2, 1, 4, 1, 2 leaves."""

    ONLINE = ((1, 1, 1, 1, 1, 1), (0, 1, 0, 1, 0, 1), (0, 0, 0, 1, 0, 0))

    def test_sums(self) -> None:
        words = "it is that of the decoder online, with trees of 4 leaves"
        proved(tree(self.ONLINE, 4, "online", restart_every=4), words)
        for off, holds in ((63, True), (66, False)):
            moved = np.array(self.ONLINE) + off * NEAR * np.array([[0, 0, 0, 0, 1, 0]] + [[0] * 6] * 2)
            if holds:
                proved(tree(moved, 4, "online", restart_every=4), words)
            else:
                refused(tree(moved, 4, "online", restart_every=4), "it differs from the decoder online by ")

    def test_how_many_leaves(self) -> None:
        for every in (None, 3, 5, 9):
            refused(tree(self.ONLINE, 4, "online", restart_every=every), "it is no tree of that many leaves")
        whole = [*self.ONLINE, [0] * 6]
        for every in (None, 6, 9):
            proved(
                tree(whole, 6, "online", restart_every=every),
                "it is that of the decoder online, with trees of 6 leaves",
            )
        for every in (None, 1, 6):
            refused(column(ROOT, "tree", decoder="online", restart_every=every), "it is no tree of that many leaves")

    def test_five_leaves(self) -> None:
        nodes = [[1] * N, [0, 1, 0, 1, 0, 0], [0, 0, 0, 1, 0, 0], [0] * N]
        proved(tree(nodes, 5, "online", restart_every=5), "it is that of the decoder online, with trees of 5 leaves")

    def test_best_estimates_from_the_subtree(self) -> None:
        """A node of two leaves has its own sum with the weight 2/3 and its leaves' with 1/3; then 4/7 and 3/7 of these.

        Rows of C are unit vectors of the nodes that are estimated with these weights, divided by their norm.
        """
        two = math.hypot(2 / 3, 1 / 3)
        four = math.hypot(4 / 7, 3 / 7 * 2 / 3, 3 / 7 * 1 / 3)
        first, second = 1.0, 1 / two
        rows = [
            [first, second, first, 1 / four, first, second],
            [0, 1 / two * (1 - 1 / 3), 0, (1 - (3 / 7) * (1 / 3)) / four, 0, (1 - 1 / 3) / two],
            [0, 0, 0, (1 - 3 / 7) / four, 0, 0],
        ]
        words = "it is that of the decoder honaker_online, with trees of 4 leaves"
        proved(tree(rows, 4, "honaker_online", restart_every=4), words)
        refused(tree(self.ONLINE, 4, "honaker_online", restart_every=4), "it differs from the decoder")

    def test_all_nodes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The Gram matrix of the trees 0..3 and 4..5: a pair is in as many nodes as hold both."""
        gram = np.eye(6)
        for nodes in ([0, 1], [2, 3], [4, 5], [0, 1, 2, 3]):
            gram[np.ix_(nodes, nodes)] += 1
        assert (mechanism._all_nodes(4, 6) == gram).all()
        five = np.eye(5)
        for nodes in ([0, 1], [2, 3], [0, 1, 2, 3]):
            five[np.ix_(nodes, nodes)] += 1
        assert (mechanism._all_nodes(5, 5) == five).all()
        # trees of two leaves: (1 0 / 1 1) and its node, whose Gram matrix is (2 1 / 1 2) = C^T C with C lower-triangular
        a = math.sqrt(2 - 0.5)
        nodes = [[a, math.sqrt(2)] * 3, [0, 1 / math.sqrt(2)] * 3]
        words = "it is that of the decoder honaker_full, with trees of 2 leaves"
        proved(tree(nodes, 2, "honaker_full", restart_every=2), words)
        refused(tree(np.array(nodes) * 1.001, 2, "honaker_full", restart_every=2), "it differs from the decoder")
        monkeypatch.setattr("factorize.checker.structures.base.LARGEST_WHOLE", 5)
        undecided(tree(nodes, 2, "honaker_full", restart_every=2), "the Gram matrix of all nodes")


class TestFourier:
    @staticmethod
    def covariance(rate: float = 1.0) -> np.ndarray:
        """r_k = 1 / 2n times the sum of |F_j| cos(pi j k / n), F the transform of six powers of a rate and six zeros."""
        sizes = [abs(sum(rate**t * np.exp(-2j * np.pi * j * t / 12) for t in range(N))) for j in range(12)]
        r = [sum(size * math.cos(2 * math.pi * j * k / 12) for j, size in enumerate(sizes)) / 12 for k in range(N)]
        return np.array([[r[abs(i - j)] for j in range(N)] for i in range(N)])

    def test_both_decoders(self) -> None:
        wanted = self.covariance()
        decoder = np.linalg.cholesky(wanted)
        circulant = np.linalg.solve(decoder, np.tril(np.ones((N, N))))
        best = np.linalg.cholesky(wanted[::-1, ::-1])[::-1, ::-1].T
        words = "the covariance of its noise is the transform's"
        proved(dense(circulant, "fft"), words)
        proved(dense(circulant, "fft", decoder="circulant"), words)
        proved(dense(best, "fft", decoder="optimal"), words)
        refused(dense(best, "fft"), "the covariance of its noise differs from the transform's")
        refused(dense(circulant, "fft", decoder="optimal"), "the covariance of its noise differs")
        for off, holds in ((0.98, True), (1.02, False)):
            for factor in (1 + off * 1e3 * NEAR, 1 - off * 1e3 * NEAR):
                for array, more in (
                    (best * math.sqrt(factor), {"decoder": "optimal"}),
                    (circulant / math.sqrt(factor), {}),
                ):
                    if holds:
                        proved(dense(array, "fft", **more), words)
                    else:
                        refused(dense(array, "fft", **more), "the covariance of its noise differs")

    def test_another_workload(self) -> None:
        spec = {"workload": {"kind": "decay", "n": N, "rate": 0.5}}
        circulant = np.linalg.solve(np.linalg.cholesky(self.covariance(0.5)), lower(0.5 ** np.arange(N)))
        proved(dense(circulant, "fft", spec=spec), "the covariance of its noise is the transform's")
        refused(dense(circulant, "fft"), "the covariance of its noise differs")


def test_mechanisms_without_end() -> None:
    blt = {"theta": np.array([0.5, 0.25])}
    for most in (2, 3):
        assert belongs_endless({"kind": "blt", "buffers": most}, "blt", blt) == f"C has 2 of at most {most} buffers"
    nu = {"nu": np.array([0.25])}
    assert belongs_endless({"kind": "nu_toeplitz", "nu": 0.25}, "nu_toeplitz", nu) == "C has the parameter nu = 0.25"
    for named, structure, parts, words in (
        ({"kind": "blt", "buffers": 1}, "blt", blt, "its parameters are not"),
        ({"kind": "nu_toeplitz", "nu": 0.5}, "nu_toeplitz", nu, "its parameters are not"),
        ({"kind": "blt", "buffers": 2}, "nu_toeplitz", nu, "it is stored as nu_toeplitz"),
        ({"kind": "nu_toeplitz", "nu": 0.25}, "blt", blt, "it is stored as blt"),
        ({"kind": "dense", "buffers": 9, "nu": 0.25}, "dense", blt | nu, "its parameters are not"),
    ):
        with pytest.raises(Contradiction, match=words):
            belongs_endless(named, structure, parts)
