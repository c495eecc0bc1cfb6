"""Noise with draws that are made again: which, how many, in how much memory, and the same ones."""

from __future__ import annotations

from redrawn_cases import likely

from factorize.certificate.sensitivity import Sensitivity
from factorize.client import NoiseGenerator
from factorize.client.noise_source import noise_source
from factorize.client.normals import BLOCK, ReplayableNormals
from factorize.privacy import Calibration, PrivacyTarget, calibrate
from factorize.structures.redrawn import RedrawnMatrix

N, LAG = 24, 6


def calibration() -> Calibration:
    return calibrate(Sensitivity(1.0, "exact", "by hand", {"kind": "single"}), PrivacyTarget(mu=1.0), clip_norm=1.0)


def generator(matrix: RedrawnMatrix, shape: int = 40, **options) -> NoiseGenerator:
    source = noise_source(matrix.structure, matrix.tensors(), matrix.n, "digest")
    return NoiseGenerator(source, calibration(), shape, **({"seed": 7} | options))


def drawn_steps(monkeypatch, made: NoiseGenerator) -> list[list[int]]:
    """The steps that each step draws."""
    steps: list[list[int]] = []
    fill = ReplayableNormals.fill

    def recorded(self, out, step, block):
        steps[-1].append(step)
        fill(self, out, step, block)

    monkeypatch.setattr(ReplayableNormals, "fill", recorded)
    while made.step < made.steps:
        steps.append([])
        made.next()
    return steps


def test_each_step_draws_itself_and_its_steps_of_earlier_epochs(monkeypatch):
    steps = drawn_steps(monkeypatch, generator(likely(N, redraws=2, lag=LAG)))
    assert steps == [[i - m * LAG for m in range(3) if i >= m * LAG] for i in range(N)]


def test_what_has_no_weight_is_not_drawn(monkeypatch):
    given = likely(N, redraws=2, lag=LAG)
    inputs, direct = given.input.copy(), given.direct.copy()
    inputs[1, LAG + 1 :], direct[1, LAG + 1 :] = 0, 0
    inputs[2, :-1], direct[2] = 0, 0
    matrix = RedrawnMatrix(given.decay, given.output, inputs, direct, LAG)
    steps = drawn_steps(monkeypatch, generator(matrix))
    assert [i for i, some in enumerate(steps) if len(some) > 1] == [LAG, N - 1]
    assert steps[-1] == [N - 1, N - 1 - 2 * LAG]


def test_memory_is_the_state_and_blocks():
    made = generator(likely(N, buffers=3, redraws=2, lag=LAG), shape=3 * BLOCK)
    made.skip(2 * LAG + 1)
    assert made._engine.state.shape == (3, 3 * BLOCK)
    assert sum(part.nbytes for part in made._engine._again) == 2 * 8 * BLOCK
