"""Factorizations in fewer bits: other bytes, certified from themselves, and never made on the way to a reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checker_files import parts, sealed
from command_line import CommandLine
from servers import LiveService
from specs import claimed, solved, spec_of

from factorize.checker.check import check_factor_file
from factorize.client import Service, fetch
from factorize.client import load as load_factors
from factorize.errors import CorruptObject, InvalidParameter, InvalidStrategy
from factorize.factors.factor_file import cast, load, round_down
from factorize.factors.factorization import Factorization
from factorize.format.manifest import Manifest
from factorize.noise.source import ComputedRows, source_of
from factorize.storage.fsck import fsck
from factorize.storage.store import open_store
from factorize.structures.dense import DenseMatrix
from factorize.structures.toeplitz import BltMatrix

SPECS: list[dict[str, Any]] = [
    {"workload": {"kind": "prefix", "n": 24}},
    {
        "workload": {"kind": "prefix", "n": 24},
        "participation": {"kind": "fixed_epochs", "epochs": 4},
        "tolerance": 1e-6,
    },
    {"workload": {"kind": "prefix", "n": 24}, "participation": {"kind": "min_sep", "min_sep": 6}, "tolerance": 1e-6},
    {"workload": {"kind": "momentum", "n": 24, "momentum": 0.9}, "mechanism": {"kind": "square_root"}},
]


@pytest.mark.parametrize("document", SPECS)
def test_a_cast_has_a_certificate_of_its_own(document: dict[str, Any], tmp_path: Path) -> None:
    base = solved(document)
    narrow = cast(base, "float32")
    assert narrow.spec_digest == base.spec_digest and narrow.digest != base.digest
    assert narrow.dtype == "float32" and narrow.manifest["solver"]["cast_from"] == base.digest
    assert all(array.dtype == np.float32 for name, array in narrow.tensors().items() if not name.startswith("dual"))
    report = check_factor_file(sealed(*parts(narrow)))
    assert any("stored as float32" in text for text in report.checked)
    narrow.save(tmp_path / "narrow.safetensors")
    again = load(tmp_path / "narrow.safetensors")
    assert again.digest == narrow.digest and again.tensors().keys() == narrow.tensors().keys()
    assert (again.rows("C", 0, 24) == narrow.rows("C", 0, 24)).all()
    again.verify()


def test_no_column_grows_where_nothing_is_negative() -> None:
    base = solved(SPECS[0])
    narrow = cast(base, "float32")
    assert (narrow.rows("C", 0, 24) <= base.rows("C", 0, 24)).all()
    assert narrow.certificate.sensitivity.value <= base.certificate.sensitivity.value
    rounded = round_down(np.array([0.1, -0.1, 1.0, 1e-60, -1e-60, 3e38]), "float32")
    assert (np.abs(rounded.astype(np.float64)) <= [0.1, 0.1, 1.0, 1e-60, 1e-60, 3e38]).all()


def test_what_cannot_be_cast() -> None:
    base = solved(SPECS[0])
    assert cast(base, "float64") is base
    with pytest.raises(InvalidParameter, match="bfloat16"):
        cast(base, "bfloat16")
    with pytest.raises(InvalidParameter, match="only float64"):
        cast(cast(base, "float32"), "float64")
    tiny = DenseMatrix(np.diag([1.0, 1e-60]))
    spec = spec_of({"kind": "identity", "n": 2}, "square_root")
    small = claimed(spec, tiny)
    near = BltMatrix(np.array([0.5, 0.5 + 1e-12]), np.array([0.1, 0.1]), 4)
    for made, told in ((small, "positive"), (claimed(spec_of(4, {"kind": "blt", "buffers": 2}), near), "too near")):
        with pytest.raises(InvalidStrategy, match=f"no strategy in float32: .*{told}.*; keep float64"):
            cast(made, "float32")
    manifest, tensors = parts(base)
    manifest["matrices"]["C"]["dtype"] = "float16"
    with pytest.raises(CorruptObject, match="float16"):
        check_factor_file(sealed(manifest, tensors))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("document", SPECS)
def test_adding_noise_has_a_claim_of_its_own(document: dict[str, Any], dtype: str) -> None:
    made = cast(solved(document), dtype).with_matrices(["C", "B"])
    stated = made.manifest["matrices"]["B"]["encoder_sensitivity"]
    decoder = made.tensors().get("B")
    if decoder is None:
        column = made.tensors()["B.coefficients"].astype(np.float64)
        decoder = np.array([np.concatenate([column[i::-1], np.zeros(23 - i)]) for i in range(24)])
    encoder = np.linalg.solve(decoder.astype(np.float64), made.spec.workload.dense())
    if document.get("participation") is None:
        assert np.linalg.norm(encoder, axis=0).max() <= stated["value"] * (1 + 1e-14)
    assert stated["value"] <= made.certificate.sensitivity.value * (1 + (1e-10 if dtype == "float64" else 1e-4))
    report = check_factor_file(sealed(*parts(made)))
    assert report.supported, report.failed
    assert any("adding noise" in text for text in report.checked)


def rectangular(rows: list[list[float]]) -> Factorization:
    spec = spec_of({"kind": "matrix", "rows": rows}, "dense")
    return claimed(spec, DenseMatrix(np.tril(np.ones((3, 3)))))


@pytest.mark.parametrize("rows", [[[1, 0, 0], [1, 1, 0]], [[1, 0, 0], [1, 1, 0], [1, 1, 1], [0, 1, 1]]])
def test_rectangular_decoders(rows: list[list[float]]) -> None:
    made = rectangular(rows).with_matrices(["C", "B"])
    numbers = {str(made.spec.workload.sha256): made.spec.workload.array}  # type: ignore[union-attr]
    report = check_factor_file(sealed(*parts(made)), user=numbers)
    assert report.supported, report.failed
    wide = len(rows) < 3
    assert ("encoder_sensitivity" in made.manifest["matrices"]["B"]) == wide
    assert any("adding noise" in text for text in (report.checked if wide else report.not_checked))


def test_an_inverse_beside_a_workload_of_fewer_rows_may_be_toeplitz(tmp_path: Path) -> None:
    rows = [[1.0, 0.0, 0.0], [1.0, 1.0, 0.5]]
    made = solved({"workload": {"kind": "matrix", "rows": rows}}, "anti_pgd").with_matrices(["C_inv", "B"])
    made.save(tmp_path / "made.safetensors")
    assert made.manifest["matrices"]["C_inv"]["structure"] == "toeplitz"
    numbers = {str(made.spec.workload.sha256): made.spec.workload.array}  # type: ignore[union-attr]
    assert load(tmp_path / "made.safetensors", matrices=numbers).digest == made.digest
    report = check_factor_file(sealed(*parts(made)), user=numbers)
    assert report.supported and any("stored C_inv" in text for text in report.checked)


@pytest.mark.parametrize("rate", [1e-50, 1e50])
def test_a_decoder_that_float32_cannot_hold_is_refused(rate: float) -> None:
    narrow = cast(
        solved({"workload": {"kind": "schedule", "n": 3, "learning_rates": [1, rate, 1]}}, "identity"), "float32"
    )
    with pytest.raises(InvalidStrategy, match="B has numbers outside the range of float32; .*store float64"):
        narrow.with_matrices(["B"])


def test_a_step_without_a_rate_leaves_a_decoder_that_cannot_hide_anything() -> None:
    document = {"workload": {"kind": "schedule", "n": 4, "learning_rates": [1.0, 0.0, 1.0, 1.0]}}
    made = solved(document, "square_root").with_matrices(["C", "B"])
    assert "encoder_sensitivity" not in made.manifest["matrices"]["B"]
    report = check_factor_file(sealed(*parts(made)))
    assert report.supported and any("singular" in text for text in report.not_checked)
    made.manifest["matrices"]["B"]["encoder_sensitivity"] = {"value": 9.0, "hex": (9.0).hex(), "kind": "upper_bound"}
    assert any("singular" in text for text in check_factor_file(sealed(*parts(made))).failed)


def test_the_command_line_stores_a_cast_beside_the_original(tmp_path: Path) -> None:
    run = CommandLine(tmp_path)
    spec = '{"workload": {"kind": "prefix", "n": 12}}'
    wide = run("solve", spec, "--output", "json").json()
    asked = ("solve", spec, "--dtype", "float32", "--matrices", "C,B", "--to", "f.safetensors", "--output", "json")
    narrow = run(*asked).json()
    assert narrow["spec_digest"] == wide["spec_digest"] and narrow["digest"] != wide["digest"]
    assert {entry["dtype"] for entry in narrow["matrices"].values()} == {"float32"}
    assert run("solve", spec, "--output", "json").json()["digest"] == wide["digest"], (
        "the first answer stays the answer"
    )
    for target in ("f.safetensors", narrow["digest"]):
        report = run("verify", target, "--output", "json").json()
        assert report["verified"] and any("adding noise" in text for text in report["checked"])
    assert "bfloat16" in run("solve", spec, "--dtype", "bfloat16").error(2)


def test_a_service_rounds_once_and_the_first_answer_stays(live_service: LiveService, tmp_path: Path) -> None:
    spec = {"workload": {"kind": "prefix", "n": 12}, "mechanism": {"kind": "dense"}}
    base = live_service.solve(spec)
    narrow = live_service.post(spec, query="?dtype=float32").json()
    assert narrow["solver"]["cast_from"] == base["digest"] and narrow["spec_digest"] == base["spec_digest"]
    both = live_service.post(spec, query="?dtype=float32&matrices=C,B").json()
    assert {name: entry["dtype"] for name, entry in both["matrices"].items()} == {"C": "float32", "B": "float32"}
    assert both["matrices"]["C"] == narrow["matrices"]["C"]
    live_service.service.forms._known.clear()  # as after a restart
    live_service.service.catalog._next = float("-inf")
    place = f"/v1/factorizations/{base['digest']}"
    assert live_service.get(f"{place}?dtype=float32").json() == narrow
    assert live_service.get(f"{place}?dtype=float32&matrices=B").json() == both
    for path in (f"{place}?dtype=float64", f"/v1/factorizations/{base['spec_digest']}"):
        assert live_service.get(path).json() == base
    assert live_service.get(f"/v1/factorizations/{both['digest']}?dtype=float32").json() == both
    live_service.get(f"{place}?dtype=bfloat16").problem(422, "invalid-parameter")
    live_service.send("POST", f"/v1/factorizations/{narrow['digest']}?dtype=float64").problem(422, "invalid-parameter")
    fetched = fetch(spec, url=live_service.url, to=tmp_path / "f.safetensors", dtype="float32")
    assert load(fetched).digest == narrow["digest"]
    factors = load_factors(fetched)
    assert (np.array(list(factors.rows("C"))) == load(fetched).rows("C", 0, 12)).all()
    assert factors.sensitivity.value == narrow["certificate"]["sensitivity"]["value"]
    assert check_factor_file(fetched.read_bytes()).supported


def test_a_service_that_answers_with_another_cast(live_service: LiveService, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = ({"workload": {"kind": "prefix", "n": n}, "mechanism": {"kind": "square_root"}} for n in (8, 9))
    wrong, base = live_service.solve(other), live_service.solve(one)
    client = Service(live_service.url)
    assert client.manifest(one, dtype="float64") == base
    narrow = live_service.post(other, query="?dtype=float32").json()
    for answer in (base, wrong, narrow):
        monkeypatch.setattr(client, "_call", lambda *_, answer=answer: answer)
        with pytest.raises(CorruptObject, match="in float32"):
            client._get_rounded(Manifest.check(base), "float32")


@pytest.mark.parametrize("first", [True, False])
def test_the_index_built_anew_names_what_was_solved(tmp_path: Path, first: bool) -> None:
    """Also if both were stored in one second, or the rounded one before."""
    store = open_store(str(tmp_path / "store"), create=True)
    base = solved(SPECS[0])
    narrow = cast(base, "float32")
    for made in (base, narrow, narrow.with_matrices(["B"])) if first else (narrow, base):
        store.put(made)
    for place in ("specs", "families"):
        for entry in list(store.objects.list(place)):
            store.objects.delete(entry.key)
    fsck(store, repair=True)
    assert store.digest_of(base.spec_digest) == base.digest


def test_noise_is_that_of_c_and_not_of_a_stored_inverse(tmp_path: Path) -> None:
    """The claim is that of C, and says nothing of a C_inv beside it."""
    base = solved(SPECS[0]).with_matrices(["C_inv"])
    for made in (base, cast(base, "float32").with_matrices(["C_inv"])):
        made.save(tmp_path / "f.safetensors")
        assert isinstance(source_of(load_factors(tmp_path / "f.safetensors")), ComputedRows)
