"""The reproductions run at small sizes, and judge agreement rightly; published numbers are compared by the full runs."""

from __future__ import annotations

import gzip
import json
import math
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from factorize.accounting.amplification import amplified_epsilon
from factorize.privacy import PrivacyTarget
from factorize.solvers import solve
from factorize.spec import parse_spec
from factorize.training import PlainSums, Sgd, SoftmaxRegression, dp_ftrl, fixed_order, method_spec, ones

ROOT = Path(__file__).parents[2]


@pytest.fixture
def comparison(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT)
    return import_module("papers.reproductions.comparison")


def test_agreement_is_within_tolerance_and_three_errors(comparison: Any) -> None:
    assert comparison.Row("a", 1.0, 1.05, tolerance=0.05 + 1e-12).agrees is True
    assert comparison.Row("a", 1.0, 1.05, error=0.02).agrees is True
    assert comparison.Row("a", 1.0, 1.07, error=0.02).agrees is False
    assert comparison.Row("a", None, 1.07).agrees is None
    assert comparison.mean_and_error([1.0, 3.0]) == (2.0, 1.0)
    assert comparison.mean_and_error([4.0]) == (4.0, 0.0)


def test_what_differs_is_listed(comparison: Any, tmp_path: Path) -> None:
    found = comparison.Comparison("x", "X", folder=tmp_path)
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


def test_what_is_tied_neither_holds_nor_differs(comparison: Any, tmp_path: Path) -> None:
    figure = import_module("papers.reproductions.correlated_figure")
    level, spread = np.array([[80.0], [81.0], [82.0]]), np.array([[0.3], [-0.3], [0.0]])
    assert figure.order_of(level + 0.25, level).tolist() == [0]  # a quarter of a point
    assert figure.order_of(level + 0.26, level).tolist() == [1]  # trials share their noise: no error of the difference
    assert figure.order_of(level - 0.3 + spread, level).tolist() == [0]  # two errors are 0.346
    assert figure.order_of(level - 0.4 + spread, level).tolist() == [-1]
    found = comparison.Comparison("x", "X", folder=tmp_path)
    for name, signs in (("won", [1, 1]), ("tied", [1, 0]), ("lost", [0, -1])):
        figure.decide(found, name, np.array(signs), (0.1, 1.0))
    assert [claim.verdict for claim in found.claims] == ["holds", "TIE", "DOES NOT HOLD"]
    assert found.differences == ["lost"]


def test_trials_are_computed_once_and_belong_to_their_settings(comparison: Any, tmp_path: Path) -> None:
    kept = import_module("papers.reproductions.kept_results").KeptResults
    path, settings = tmp_path / "trials.json", {"steps": 4, "taus": (2, 4)}
    assert kept(path, settings).once("seed 0", lambda: np.array([1.5, 2.5])).tolist() == [1.5, 2.5]
    again = kept(path, settings)
    assert len(again) == 1
    assert again.once("seed 0", lambda: np.zeros(2)).tolist() == [1.5, 2.5]  # read, not computed
    other = kept(path, {**settings, "steps": 5})
    assert other.once("seed 0", lambda: np.zeros(2)).tolist() == [0.0, 0.0]


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "papers.reproductions", *arguments, "--out", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)


@pytest.fixture
def small_run(
    comparison: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[dict[str, Any], str]]:
    """The document that the program writes, run in this process, which has its imports; and what it prints."""
    monkeypatch.chdir(ROOT)

    def ran(name: str, *arguments: str) -> tuple[dict[str, Any], str]:
        monkeypatch.setattr(sys, "argv", ["papers", name, "--quick", *arguments, "--out", str(tmp_path)])
        with warnings.catch_warnings():
            warnings.simplefilter("default")  # as in a program
            import_module("papers.reproductions.__main__").main()
        return json.loads((tmp_path / f"{name}.json").read_text()), capsys.readouterr().out

    return ran


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["chess", "correlated_quadratic", "nu_figure1", "nu_figure2", "nu_figure3", "matrices"]
)
def test_a_small_run_prints_and_writes(name: str, small_run: Any, tmp_path: Path) -> None:
    document, _ = small_run(name)
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000
    assert document["quick"] and document["rows"] and document["claims"]
    assert all(row["published"] is None for row in document["rows"])  # small sizes are compared with nothing


@pytest.mark.slow
@pytest.mark.parametrize("name", ["srg_mnist", "mu2_mnist", "correlated_mnist", "skgd_gain"])
def test_small_runs_on_digits_print_their_noise(name: str, small_run: Any) -> None:
    document, said = small_run(name)
    assert document["quick"] and document["rows"] and document["claims"]
    assert "noise multiplier" in said


@pytest.mark.slow
def test_the_program_prints_and_writes(tmp_path: Path) -> None:
    done = run("skgd_blocks", "--quick", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "skgd_blocks.json").read_text())
    assert document["quick"] and document["rows"] and document["claims"]
    assert "noise multiplier" in done.stdout


def test_images_are_read_from_idx_files_and_nothing_else(
    comparison: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = import_module("papers.reproductions.images")
    shapes = {"train": (7, 2, 3), "t10k": (5, 2, 3)}
    pixels = {part: np.arange(np.prod(shape), dtype=np.uint8).reshape(shape) for part, shape in shapes.items()}
    for part, values in pixels.items():
        write_idx(tmp_path / f"{part}-images-idx3-ubyte.gz", values)
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte", np.arange(len(values), dtype=np.uint8))
    found = images.load_images(tmp_path, constant=True)
    assert found.train.shape == (7, 7) and found.test.shape == (5, 7)
    np.testing.assert_allclose(found.train[:, :6] * 255, pixels["train"].reshape(7, 6), rtol=1e-6)
    assert (found.train[:, 6] == 1).all() and found.test_labels.tolist() == [0, 1, 2, 3, 4]
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(b"\x00\x00\x0d\x01\x00\x00\x00\x00")
    with pytest.raises(SystemExit, match="not an IDX file of unsigned bytes"):
        images.load_images(tmp_path)
    with pytest.raises(SystemExit, match="neither train-images"):
        images.load_images(tmp_path / "elsewhere")


def write_idx(path: Path, values: np.ndarray) -> None:
    head = bytes([0, 0, 8, values.ndim]) + b"".join(side.to_bytes(4, "big") for side in values.shape)
    content = head + values.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


class Replayed:
    """Rows that were drawn before, scaled."""

    def __init__(self, rows: np.ndarray, sigma: float, shape: tuple[int, int]) -> None:
        self._rows, self._sigma, self._shape = iter(rows), sigma, shape

    def next(self) -> np.ndarray:
        """Return the next row."""
        return self._sigma * next(self._rows).reshape(self._shape)


@pytest.mark.slow
def test_many_noise_levels_at_once_are_dp_ftrl(comparison: Any) -> None:
    images = import_module("papers.reproductions.images").load_images(None)
    together = import_module("papers.reproductions.together")
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


def test_rows_of_noise_are_c_inverse_times_normals(comparison: Any) -> None:
    together = import_module("papers.reproductions.together")
    factors = solve(parse_spec(method_spec("dp_mf", ones(300))))
    rows = together.correlated_rows(factors, 5, 4)
    normals = np.random.default_rng(5).standard_normal((300, 4), dtype=np.float32)
    np.testing.assert_allclose(factors.rows("C", 0, 300) @ rows, normals, atol=1e-4)


@pytest.mark.slow
def test_accountants_return_the_smallest_multiplier(comparison: Any) -> None:
    accounting = import_module("papers.reproductions.accounting")
    by_rdp, by_pld = accounting.multipliers(4.0, 1e-6, probability=0.1, steps=10)
    assert by_pld < by_rdp  # tighter
    assert amplified_epsilon(by_pld * 1.003, 1e-6, probability=0.1, compositions=10) <= 4.0 + 0.01
    assert amplified_epsilon(by_pld * 0.95, 1e-6, probability=0.1, compositions=10) > 4.0
    assert accounting.smallest(lambda z: 1 / z, 0.25, 1.0) == pytest.approx(4.0, rel=2e-3)
    assert accounting.smallest(lambda z: 1 / z, 4.0, 1.0) == pytest.approx(0.25, rel=2e-3)


def test_paper_conversion_of_zcdp_needs_more_noise(comparison: Any) -> None:
    srg = import_module("papers.reproductions.srg_mnist")
    target = srg.zcdp(srg.TARGET)
    spent = target.rho + 2 * math.sqrt(target.rho * -math.log(1e-6))
    assert spent == pytest.approx(0.1, rel=1e-9)
    assert target.noise_multiplier > 1.3 * srg.TARGET.noise_multiplier


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nu_tables", "peers_golden"])
def test_tables_hold_at_small_sizes(name: str, small_run: Any) -> None:
    document, _ = small_run(name)
    assert document["rows"] and all(claim["holds"] for claim in document["claims"])


def test_published_epsilons_are_those_of_their_multipliers(comparison: Any, tmp_path: Path) -> None:
    found = comparison.Comparison("x", "X", folder=tmp_path)
    import_module("papers.reproductions.correlated_epsilons").run(found)
    assert [row.agrees for row in found.rows] == [True] * 5


@pytest.mark.slow
def test_figure_4_runs_on_the_user_s_files(comparison: Any, small_run: Any, tmp_path: Path) -> None:
    user_data = import_module("papers.reproductions.user_data")
    luck = np.random.default_rng(0)
    for name in (*user_data.CIFAR_TRAIN, *user_data.CIFAR_TEST):
        rows = luck.integers(0, 256, (8, user_data.CIFAR_BYTES), dtype=np.uint8)
        rows[:, 0] %= 10
        rows[:, 1:1000] = 25 * rows[:, :1]
        (tmp_path / name).write_bytes(rows.tobytes())
    cifar = user_data.load_cifar(tmp_path)
    assert cifar.train.shape == (40, 3072) and cifar.test.shape == (8, 3072) and cifar.classes == 10
    np.savez(
        tmp_path / "own.npz",
        x_train=cifar.train,
        y_train=cifar.train_labels,
        x_test=cifar.test,
        y_test=cifar.test_labels,
    )
    for option, path in (("--cifar", tmp_path), ("--npz", tmp_path / "own.npz")):
        document, said = small_run("nu_figure4", option, str(path))
        assert len(document["rows"]) == 6 and "noise multiplier" in said
    (tmp_path / "test_batch.bin").write_bytes(b"12")
    with pytest.raises(SystemExit, match="no multiple of 3073"):
        user_data.load_cifar(tmp_path)
    np.savez(tmp_path / "half.npz", x_train=cifar.train)
    with pytest.raises(SystemExit, match="has no y_train, x_test, y_test"):
        user_data.load_npz(tmp_path / "half.npz")
    with pytest.raises(SystemExit, match="has no data_batch_1.bin"):
        user_data.load_cifar(tmp_path / "elsewhere")


def test_names_are_checked_and_data_is_asked_for(tmp_path: Path) -> None:
    refused = run("colours", folder=tmp_path)
    assert refused.returncode == 2 and "no reproduction colours" in refused.stderr


def made_images() -> Any:
    luck = np.random.default_rng(0)
    labels = luck.integers(0, 10, 350)
    pixels = (np.eye(10)[labels] + luck.normal(scale=0.2, size=(350, 10))).astype(np.float32)
    return import_module("papers.reproductions.images").Images(pixels[:288], labels[:288], pixels[288:], labels[288:])


def test_adam_on_mnist_runs_on_made_images(comparison: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("papers.reproductions.adam_mnist")
    monkeypatch.setattr(module, "load_images", lambda *_, **__: made_images())
    found = comparison.Comparison("adam_mnist", module.TITLE, quick=True, folder=tmp_path)
    module.run(found, None)
    assert len(found.rows) == 3 and len(found.claims) == 2
    assert all(10 < row.reproduced <= 100 and row.error >= 0 for row in found.rows)
    assert len(json.loads((tmp_path / "adam_mnist.trials.json").read_text())["results"]) == 6


def test_many_runs_of_adam_at_once_are_adam(comparison: Any) -> None:
    """Algorithm 1 of Kingma and Ba on clipped means and their noise, one run after the other."""
    module, images = import_module("papers.reproductions.adam_mnist"), made_images()
    order = list(fixed_order(288, 72, epochs=2, seed=1))
    noise = np.random.default_rng(2).standard_normal((len(order), 100)).astype(np.float32)
    sigmas, rates = np.array([0.0, 0.02]), np.array([0.03, 0.01])
    found = module.adam(images, order, noise, sigmas, rates, 72)
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


def test_ways_past_the_figure_run_on_digits(comparison: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beyond = import_module("papers.reproductions.srg_beyond")
    monkeypatch.setattr(beyond, "CLIPS", (1.0,))
    run = comparison.Comparison("srg_beyond", beyond.TITLE, quick=True, folder=tmp_path)
    beyond.run(run, None)
    assert [row.name for row in run.rows] == ["DP-MEMF, lambda_T", "DP-GD, full batch"]
    assert all(30 < row.reproduced < 100 for row in run.rows) and len(run.claims) == 2


def test_full_batches_are_gradient_descent_with_the_noise_of_all_steps(
    comparison: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    beyond, images = import_module("papers.reproductions.srg_beyond"), import_module("papers.reproductions.images")
    digits, target, sigmas, train = images.load_images(None), PrivacyTarget(mu=1e4), [], beyond.train

    def seen(*given: Any, **named: Any) -> np.ndarray:
        sigmas.append(given[4])
        return np.asarray(train(*given, **named))

    monkeypatch.setattr(beyond, "train", seen)
    found = beyond.descended(digits, target, 4, (0.5, 2.0), 7)
    np.testing.assert_allclose(sigmas, [[1e-4 * 2 / 1440] * 2])  # the root of four steps, in means of all examples
    weights = np.zeros((64, 10))
    for _ in range(4):  # at this mu nothing but clipping is left
        scores = np.exp(digits.train @ weights)
        residuals = scores / scores.sum(axis=1, keepdims=True) - np.eye(10)[digits.train_labels]
        lengths = np.linalg.norm(digits.train, axis=1) * np.linalg.norm(residuals, axis=1)
        weights -= 2.0 * digits.train.T @ (residuals / np.maximum(1, lengths)[:, None]) / len(digits.train)
    assert found[1, 1] == pytest.approx(100 * digits.judge().accuracy(weights), abs=0.3)


def test_restarts_of_one_block_are_the_optimum_of_all_steps(comparison: Any) -> None:
    quadratic = import_module("papers.reproductions.correlated_quadratic")
    objective, workload = {"kind": "lambda_tau", "tau": 5}, {"kind": "prefix", "n": 20}
    whole = solve(parse_spec({"workload": workload, "objective": objective, "mechanism": {"kind": "dense"}}))
    for rate in (0.01, 0.1):
        expected, found = (quadratic.norms(one, rate, 20) for one in (whole, quadratic.factorized(20, 5)))
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-3, atol=1e-12)
