"""Receipts whose claims nobody can decide, since the numbers of their factor file leave the range of doubles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from checker_files import parts, sealed
from receipt_runs import in_fixed_order, signed

import factorize
from factorize.checker.__main__ import main


@pytest.fixture(scope="module")
def forged(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A receipt of epsilon 0.001, and the factor file that it names, whose C^-1 grows beyond what doubles enclose."""
    folder = tmp_path_factory.mktemp("forged")
    document = in_fixed_order(folder).document
    manifest, tensors = parts(factorize.load(folder / "0.safetensors").opened())
    tensors["C.decay"] *= 1e120
    (folder / "forged.safetensors").write_bytes(sealed(manifest, tensors))
    document["factors"][0]["digest"] = manifest["digest"]
    document["epsilon"] = document["calibration"]["epsilon"] = 0.001
    (folder / "forged.json").write_bytes(signed(document))
    return [str(folder / "forged.json"), str(folder / "forged.safetensors")]


@pytest.mark.parametrize("name", ["card", "nist", "registry"])
def test_no_page_states_an_epsilon_that_was_not_proved(
    forged: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*forged, "--output", name]) == 6
    told = capsys.readouterr().out
    assert told.startswith("NOT ALL SEEN\n") and "0.001" not in told


def test_a_receipt_that_was_not_proved_is_not_verified(forged: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*forged, "--output", "json"]) == 6
    told = json.loads(capsys.readouterr().out)
    assert (told["verified"], told["open"], told["complete"]) == (False, False, False)


def test_no_name_of_a_file_hides_its_report(
    forged: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report on all receipts is called together, as a receipt may be."""
    both = {"together": json.loads(Path(forged[0]).read_text()), "other.json": in_fixed_order(tmp_path).document}
    for place, (name, document) in enumerate(both.items()):
        document["noise"]["commitments"] = [str(place) * 64]
        (tmp_path / name).write_bytes(signed(document))
    monkeypatch.chdir(tmp_path)
    assert main(["together", "other.json", forged[1], "0.safetensors"]) == 6
    assert "together: NOT ALL SEEN" in capsys.readouterr().out


def test_a_page_of_an_open_run_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = in_fixed_order(tmp_path).document
    document["steps"]["ended"] = False
    (tmp_path / "open.json").write_bytes(signed(document))
    assert main([str(tmp_path / "open.json"), str(tmp_path / "0.safetensors"), "--output", "card"]) == 7
    assert "12 taken, run open" in capsys.readouterr().out
