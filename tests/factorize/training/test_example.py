"""The training example, on a real service: all ways train, the optimum is better in public order, the figures repeat."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from servers import LiveService

PATH = Path(__file__).parents[3] / "examples" / "train_digits.py"
# Small batches, where independent noise hurts most: the accuracies lie a dozen standard errors apart.
SMALL = ["--epochs", "4", "--batch-size", "24", "--runs", "6"]


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_digits", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["train_digits"] = module
    spec.loader.exec_module(module)
    return module


def accuracies(printed: str) -> dict[str, tuple[float, float]]:
    found = re.findall(r"^(\w[^,\n]*, \w+ \w+) .* ([\d.]+) \+- ([\d.]+)$", printed, re.MULTILINE)
    return {name: (float(mean), float(error)) for name, mean, error in found}


def test_the_optimal_factorization_beats_dp_sgd(
    example: ModuleType,
    live_service: LiveService,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    picture = tmp_path / "accuracy.png"
    assert example.main(["--service", live_service.url, *SMALL, "--plot", str(picture)]) == 0
    printed = capsys.readouterr().out
    found = accuracies(printed)
    assert set(found) == {way.name for way in example.WAYS}
    (plain, plain_error), (optimal, optimal_error) = found["DP-SGD, public order"], found["buffered, public order"]
    assert optimal - plain > 3 * np.hypot(plain_error, optimal_error)
    assert optimal > 0.7
    for name in (
        "recommended, secret bins",
        "DP-SGD, secret Poisson",
    ):  # amplification is worth more than the order here
        assert found[name][0] - plain > 3 * np.hypot(plain_error, found[name][1])
    assert "n = 240 steps" in printed and "2.0000 (exact)" in printed and "Measured:" in printed
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_no_service(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert example.main(["--service", "http://127.0.0.1:1"]) == 5
    assert "factorize serve" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [["--batch-size", "2000"], ["--runs", "1"], ["--mnist", "nowhere"]])
def test_settings_that_cannot_work(example: ModuleType, wrong: list[str]) -> None:
    with pytest.raises(SystemExit):
        example.main(wrong)


@pytest.mark.parametrize("wrong", [["--epsilon", "-1"], ["--delta", "2"], ["--clip-norm", "nan"]])
def test_privacy_parameters_that_cannot_work(
    example: ModuleType, live_service: LiveService, wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert example.main(["--service", live_service.url, *SMALL, *wrong]) == 3
    assert wrong[0].strip("-").replace("-", "_") in capsys.readouterr().err


class TestGradient:
    def test_is_the_clipped_sum_of_the_examples_gradients(self, example: ModuleType) -> None:
        """Against central differences of the loss, one example at a time."""
        rng = np.random.default_rng(5)
        weights, x, y = rng.standard_normal((4, 10)), 3 * rng.standard_normal((6, 4)), rng.integers(0, 10, 6)
        x[0] *= 0.01  # one example that is not clipped

        def loss(flat: np.ndarray, i: int) -> float:
            scores = x[i] @ flat.reshape(4, 10)
            return float(np.log(np.exp(scores).sum()) - scores[y[i]])

        expected = np.zeros((4, 10))
        norms = []
        for i in range(6):
            steps = 1e-6 * np.eye(40)
            gradient = np.array([(loss(weights.ravel() + s, i) - loss(weights.ravel() - s, i)) / 2e-6 for s in steps])
            norms.append(np.linalg.norm(gradient))
            expected += (gradient * min(1, 0.5 / norms[-1])).reshape(4, 10)
        assert min(norms) < 0.5 < max(norms)
        assert np.allclose(example.clipped_gradient_sum(weights, x, y, 0.5), expected, atol=1e-7)

    def test_no_example_moves_the_sum_by_more_than_the_clip_norm(self, example: ModuleType) -> None:
        rng = np.random.default_rng(6)
        for _ in range(50):
            weights, x, y = 9 * rng.standard_normal((4, 10)), rng.standard_cauchy((1, 4)), rng.integers(0, 10, 1)
            assert np.linalg.norm(example.clipped_gradient_sum(weights, x, y, 0.7)) <= 0.7 * (1 + 1e-12)


def test_runs_as_a_program() -> None:
    environment = {**os.environ, "PYTHONPATH": str(PATH.parents[1])}
    done = subprocess.run([sys.executable, PATH, "--help"], capture_output=True, text=True, check=True, env=environment)
    assert "--mnist" in done.stdout
