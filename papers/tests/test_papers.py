"""The reproductions run at small sizes, and judge agreement rightly; published numbers are compared by the full runs."""

from __future__ import annotations

import gzip
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made import Replayed, made_images

from factorize.accounting.loss_laws import PoissonLaw
from factorize.solvers import solve
from factorize.spec import parse_spec
from factorize.training import fixed_order
from papers import compare_algorithms
from papers.reproductions import accounting, adam_mnist, correlated_epsilons, correlated_figure, srg_mnist, together
from papers.reproductions.__main__ import NAMES, main
from papers.reproductions.comparison import Comparison, Row, mean_and_error
from papers.reproductions.correlated_quadratic import factorized, norms
from papers.reproductions.images import load_images
from papers.reproductions.kept_results import KeptResults
from papers.reproductions.user_data import load_npz
from papers.training import PlainSums, Sgd, SoftmaxRegression, dp_ftrl, method_spec, ones


def test_agreement_is_within_tolerance_and_three_errors() -> None:
    assert Row("a", 1.0, 1.05, tolerance=0.05 + 1e-12).agrees is True
    assert Row("a", 1.0, 1.05, error=0.02).agrees is True
    assert Row("a", 1.0, 1.07, error=0.02).agrees is False
    assert Row("a", None, 1.07).agrees is None
    assert mean_and_error([1.0, 3.0]) == (2.0, 1.0)
    assert mean_and_error([4.0]) == (4.0, 0.0)


def test_what_differs_is_listed(tmp_path: Path) -> None:
    found = Comparison("x", "X", folder=tmp_path)
    found.row("far", 1.0, 2.0)
    found.row("near", 1.0, 1.0)
    found.row("another route", None, 1.0, check=1.0)
    found.row("no other route", None, 1.0, check=2.0)
    found.claim("up", True)
    found.claim("down", False)
    assert found.differences == ["far", "no other route", "down"]
    rows = json.loads(found.write().read_text())["rows"]
    assert rows[0]["agrees"] is False
    assert [(row["agrees"], row["checked"]) for row in rows[2:]] == [(None, True), (None, False)]  # ours, not published


def test_what_is_tied_neither_holds_nor_differs(tmp_path: Path) -> None:
    level, spread = np.array([[80.0], [81.0], [82.0]]), np.array([[0.3], [-0.3], [0.0]])
    assert correlated_figure.order_of(level + 0.25, level).tolist() == [0]  # a quarter of a point
    assert correlated_figure.order_of(level + 0.26, level).tolist() == [1]  # trials share their noise
    assert correlated_figure.order_of(level - 0.3 + spread, level).tolist() == [0]  # two errors are 0.346
    assert correlated_figure.order_of(level - 0.4 + spread, level).tolist() == [-1]
    found = Comparison("x", "X", folder=tmp_path)
    for name, signs in (("won", [1, 1]), ("tied", [1, 0]), ("lost", [0, -1])):
        correlated_figure.decide(found, name, np.array(signs), (0.1, 1.0))
    assert [claim.verdict for claim in found.claims] == ["holds", "TIE", "DOES NOT HOLD"]
    assert found.differences == ["lost"]


def test_trials_are_computed_once_and_belong_to_their_settings(tmp_path: Path) -> None:
    path, settings = tmp_path / "trials.json", {"steps": 4, "taus": (2, 4)}
    assert KeptResults(path, settings).once("seed 0", lambda: np.array([1.5, 2.5])).tolist() == [1.5, 2.5]
    again = KeptResults(path, settings)
    assert len(again) == 1
    assert again.once("seed 0", lambda: np.zeros(2)).tolist() == [1.5, 2.5]  # read, not computed
    other = KeptResults(path, {**settings, "steps": 5})
    assert other.once("seed 0", lambda: np.zeros(2)).tolist() == [0.0, 0.0]


def small_run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> dict[str, Any]:
    """Run the program in its quick form, here where its imports are; return the document that it writes."""
    monkeypatch.setattr(sys, "argv", ["papers", name, "--quick", *options, "--out", str(folder)])
    main()
    document: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return document


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(NAMES) - {"nu_figure4"}))
def test_a_small_run_prints_and_writes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document = small_run(name, tmp_path, monkeypatch)
    assert document["quick"] and document["rows"]
    if name not in ("chess", "nu_figure3"):  # their noise is given, or that of a bound
        assert "noise multiplier" in capsys.readouterr().out
    assert all(row["published"] is None for row in document["rows"])  # small sizes are compared with nothing
    if name in ("nu_tables", "peers_golden"):
        assert document["claims"] and all(claim["holds"] for claim in document["claims"])


@pytest.mark.slow
def test_figure_4_runs_on_the_user_s_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, path = made_images(50), tmp_path / "own.npz"
    arrays = {"x_train": images.train, "y_train": images.train_labels, "x_test": images.test}
    np.savez(path, **arrays, y_test=images.test_labels)
    assert len(small_run("nu_figure4", tmp_path, monkeypatch, "--npz", str(path))["rows"]) == 6
    np.savez(path, **arrays)
    with pytest.raises(SystemExit, match="has no y_test"):
        load_npz(path)


@pytest.mark.slow
def test_all_algorithms_learn_beside_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    """Far above the 10 % of chance at a loose guarantee."""
    assert compare_algorithms.main(["--epsilon", "8", "--runs", "2"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "+-" in line]
    assert len(rows) == 10 and all(float(row[-3]) > 0.6 for row in rows)


def test_names_are_checked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["papers", "colours"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "no reproduction colours" in capsys.readouterr().err


def test_images_are_read_from_idx_files_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = {"train": (7, 2, 3), "t10k": (5, 2, 3)}
    pixels = {part: np.arange(np.prod(shape), dtype=np.uint8).reshape(shape) for part, shape in shapes.items()}
    for part, values in pixels.items():
        write_idx(tmp_path / f"{part}-images-idx3-ubyte.gz", values)
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte", np.arange(len(values), dtype=np.uint8))
    found = load_images(tmp_path, constant=True)
    assert found.train.shape == (7, 7) and found.test.shape == (5, 7)
    np.testing.assert_allclose(found.train[:, :6] * 255, pixels["train"].reshape(7, 6), rtol=1e-6)
    assert (found.train[:, 6] == 1).all() and found.test_labels.tolist() == [0, 1, 2, 3, 4]
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(b"\x00\x00\x0d\x01\x00\x00\x00\x00")
    with pytest.raises(SystemExit, match="not an IDX file of unsigned bytes"):
        load_images(tmp_path)
    with pytest.raises(SystemExit, match="neither train-images"):
        load_images(tmp_path / "elsewhere")


def write_idx(path: Path, values: np.ndarray) -> None:
    head = bytes([0, 0, 8, values.ndim]) + b"".join(side.to_bytes(4, "big") for side in values.shape)
    content = head + values.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.mark.slow
def test_many_noise_levels_at_once_are_dp_ftrl() -> None:
    images = load_images(None)
    order = fixed_order(len(images.train), 120, epochs=2)
    factors = solve(parse_spec(method_spec("dp_mf", ones(len(order)), epochs=2)))
    shape = images.model().shape
    noise = together.correlated_rows(factors, 3, shape[0] * shape[1])
    sigmas = np.array([0.0, 0.004, 0.02])
    found = together.train(
        images.train,
        images.train_labels,
        order,
        noise,
        sigmas,
        batch_size=120,
        clip_norm=0.7,
        learning_rate=0.5,
    )
    model = SoftmaxRegression(images.train.astype(float), images.train_labels, 10)
    for sigma, weights in zip(sigmas, found, strict=True):
        sums = PlainSums(divisor=120, clip_norm=0.7, noise=Replayed(noise, sigma, shape))
        one = dp_ftrl(model, np.zeros(shape), order, sums, optimizer=Sgd(learning_rate=0.5))
        np.testing.assert_allclose(weights, one.weights, atol=2e-5)


def test_rows_of_noise_are_c_inverse_times_normals() -> None:
    factors = solve(parse_spec(method_spec("dp_mf", ones(300))))
    rows = together.correlated_rows(factors, 5, 4)
    normals = np.random.default_rng(5).standard_normal((300, 4), dtype=np.float32)
    np.testing.assert_allclose(factors.rows("C", 0, 300) @ rows, normals, atol=1e-4)


@pytest.mark.slow
def test_accountants_return_the_smallest_multiplier() -> None:
    by_rdp, by_pld = accounting.multipliers(4.0, 1e-6, probability=0.1, steps=10)
    assert by_pld < by_rdp  # tighter
    assert PoissonLaw(10, 1, 1.0, 0.1).epsilon(by_pld * 1.003, 1e-6) <= 4.0 + 0.01
    assert PoissonLaw(10, 1, 1.0, 0.1).epsilon(by_pld * 0.95, 1e-6) > 4.0
    assert accounting.smallest(lambda z: 1 / z, 0.25, 1.0) == pytest.approx(4.0, rel=2e-3)
    assert accounting.smallest(lambda z: 1 / z, 4.0, 1.0) == pytest.approx(0.25, rel=2e-3)


def test_paper_conversion_of_zcdp_needs_more_noise() -> None:
    target = srg_mnist.zcdp(srg_mnist.TARGET)
    spent = target.rho + 2 * math.sqrt(target.rho * -math.log(1e-6))
    assert spent == pytest.approx(0.1, rel=1e-9)
    assert target.noise_multiplier > 1.3 * srg_mnist.TARGET.noise_multiplier


def test_published_epsilons_are_those_of_their_multipliers(tmp_path: Path) -> None:
    found = Comparison("x", "X", folder=tmp_path)
    correlated_epsilons.run(found)
    assert [row.agrees for row in found.rows] == [True] * 5


def test_many_runs_of_adam_at_once_are_adam() -> None:
    """Algorithm 1 of Kingma and Ba on clipped means and their noise, one run after the other."""
    images = made_images(360)
    order = list(fixed_order(288, 72, epochs=2, seed=1))
    noise = np.random.default_rng(2).standard_normal((len(order), 100)).astype(np.float32)
    sigmas, rates = np.array([0.0, 0.02]), np.array([0.03, 0.01])
    found = adam_mnist.adam(images, order, noise, sigmas, rates, 72)
    model = SoftmaxRegression(images.train.astype(float), images.train_labels, 10)
    for run_, (sigma, rate) in enumerate(zip(sigmas, rates, strict=True)):
        weights, m, v = np.zeros((10, 10)), 0.0, 0.0
        for t, (batch, row) in enumerate(zip(order, noise, strict=True), start=1):
            each = model(weights, batch)
            total = each.weighted_sum(np.minimum(1.0, 1.0 / each.norms()))
            gradient = total / 72 + sigma * row.reshape(10, 10)
            m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
            weights = weights - rate * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        np.testing.assert_allclose(found[run_], weights, atol=2e-4)


def test_restarts_of_one_block_are_the_optimum_of_all_steps() -> None:
    objective, workload = {"kind": "lambda_tau", "tau": 5}, {"kind": "prefix", "n": 20}
    whole = solve(parse_spec({"workload": workload, "objective": objective, "mechanism": {"kind": "dense"}}))
    for rate in (0.01, 0.1):
        expected, found = (norms(one, rate, 20) for one in (whole, factorized(20, 5)))
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-3, atol=1e-12)
