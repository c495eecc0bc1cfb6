"""The check for GPUs: on the CPU all that it has there holds, it finds what is wrong, and without a device it says so."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks import gpu_check

pytestmark = pytest.mark.single_use


def test_all_holds_on_the_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main(["--device", "cpu", "--size", "4000"]) == 0
    first, *lines, last = capsys.readouterr().out.splitlines()
    assert "says nothing of a GPU" in first and last.startswith("0 checks failed")
    assert len(lines) == 11 and all(line.startswith("holds: ") for line in lines)


def test_noise_of_another_strategy_fails() -> None:
    z = np.random.default_rng(0).standard_normal((gpu_check.STEPS, 500))
    assert gpu_check.law("itself", z, np.eye(len(z))).holds
    assert not gpu_check.law("too little", 0.9 * z, np.eye(len(z))).holds
    assert not gpu_check.law("summed", z.cumsum(0) / np.arange(1, len(z) + 1)[:, None] ** 0.5, np.eye(len(z))).holds
    assert not gpu_check.law(
        "uniform", np.sqrt(12) * (np.random.default_rng(0).random(z.shape) - 0.5), np.eye(32)
    ).holds


def test_without_a_device_nothing_is_checked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.main([]) == 2
    assert "nothing was checked" in capsys.readouterr().out
