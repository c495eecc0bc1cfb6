"""`factorize profile`: the curve of a given noise, against the accountants, and its picture."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import CommandLine
from specs import solved

from factorize.factors.factorization import Factorization
from factorize.numbers.gaussian import gaussian_delta
from factorize.privacy.question import SamplingOptions
from factorize.samplings import SAMPLINGS

EPSILONS = [0.5, 2.0, 6.0]


@pytest.fixture(scope="module")
def base() -> Factorization:
    return solved(32, "square_root", 4)


@pytest.fixture
def command(base: Factorization, tmp_path: Path) -> CommandLine:
    base.save(tmp_path / "c.safetensors")
    return CommandLine(tmp_path)


def test_the_curve_is_the_accountants(base: Factorization, command: CommandLine, tmp_path: Path) -> None:
    options = ("profile", tmp_path / "c.safetensors", "--sigma", "3", "--clip-norm", "1.5")
    listed = ("--epsilons", "6,0.5,2", "--output", "json")
    law = SAMPLINGS["balls_in_bins"].law(base, SamplingOptions())
    assert law is not None
    bounds = [law.delta(3.0 / 1.5, epsilon) for epsilon in EPSILONS]
    kept = command(*options, *listed, "--sampling", "balls_in_bins").json()
    assert [point["epsilon"] for point in kept["profile"]] == EPSILONS and kept["sigma_of_sums"] == 3.0
    assert [point["delta"] for point in kept["profile"]] == pytest.approx(bounds, rel=1e-6)
    fixed = command(*options, *listed).json()["profile"]
    exact = [gaussian_delta(e, 1.5 * base.certificate.sensitivity.value / 3) for e in EPSILONS]
    assert [point["delta"] for point in fixed] == pytest.approx(exact, rel=1e-9)
    assert all(point["delta"] == point["delta_without_secrecy"] for point in fixed)
    for point, plain in zip(kept["profile"], fixed, strict=True):
        assert point["delta"] <= point["delta_without_secrecy"] == pytest.approx(plain["delta"], rel=1e-6)


@pytest.mark.parametrize("sampling", ["balls_in_bins", "fixed"])
def test_it_is_drawn_and_written_as_text(command: CommandLine, tmp_path: Path, sampling: str) -> None:
    picture = tmp_path / "profile.png"
    text = command("profile", tmp_path / "c.safetensors", "--sigma", "3", "--sampling", sampling, "--plot", picture).out
    assert picture.read_bytes().startswith(b"\x89PNG") and "picture of both curves" in text
    assert len(text.splitlines()) == 42 and f"delta, {sampling}" in text
