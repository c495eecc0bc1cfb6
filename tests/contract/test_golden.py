"""Files of each release open, verify and stream the same bytes in every later one, and their claims hold (tests/golden)."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden.make import EXPANDED, EXPECTED, HERE, NARROW, REVOKED, SPECS, row_digest
from mirrors import at_the_time_of, served
from receipt_runs import KINDS, signed
from safetensors.numpy import load_file

import factorize
from factorize.checker.check import check_factor_file
from factorize.checker.receipt import check_receipt
from factorize.checker.sampling.calibrations import check_calibration
from factorize.encoding import json_digest
from factorize.errors import CorruptObject, Revoked
from factorize.factors.factor_file import load
from factorize.format.bins_claims import SAMPLINGS
from factorize.format.manifest import manifest_digest
from factorize.storage.fsck import fsck
from factorize.storage.store import open_store
from factorize.structures.layouts import BUILDERS, ENDLESS_BUILDERS

FILES = sorted(HERE.glob("*/*.safetensors"))
LARGEST = 300_000
STORES = sorted(HERE.glob("stores/*.json"))
RECEIPTS = sorted(HERE.glob("receipts/*/*.json"))
CLAIMS = {path.stem: json.loads(path.read_text()) for path in sorted(HERE.glob("claims/*.json"))}


def expected(path: Path) -> dict[str, Any]:
    return json.loads((path.parent / EXPECTED).read_text())[path.stem]


def test_every_structure_has_one() -> None:
    opened = [load(path) for path in FILES]
    assert {found.strategy.structure for found in opened if not found.endless} == set(BUILDERS)
    assert {found.strategy.structure for found in opened if found.endless} == set(ENDLESS_BUILDERS)


def test_the_folder_is_what_it_is_expected_to_be_and_small() -> None:
    for folder in {path.parent for path in FILES}:
        names = {path.stem for path in folder.glob("*.safetensors")}
        assert names == set(json.loads((folder / EXPECTED).read_text()))
        assert sum(path.stat().st_size for path in folder.iterdir()) < LARGEST
    assert {path.stem for path in FILES} >= {*SPECS, *EXPANDED, *NARROW}


@pytest.mark.always
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_golden_file_is_what_it_was(path: Path, tmp_path: Path) -> None:
    data, committed = path.read_bytes(), expected(path)
    assert hashlib.sha256(data).hexdigest() == committed["file"]
    found = load(path)
    assert found.digest == manifest_digest(found.manifest) == committed["digest"]
    assert found.spec.digest == found.spec_digest == committed["spec_digest"]
    assert json_digest(found.spec.canonical().document()) == committed["spec_digest"], "the same canonical spec"
    assert row_digest(found) == committed["rows"]
    found.verify()
    report = check_factor_file(data)
    assert report.supported, report.failed
    found.save(tmp_path / "again.safetensors")
    assert load(tmp_path / "again.safetensors").digest == committed["digest"]
    store = open_store(tmp_path / "store")
    store.put(found)
    assert store.find(found.spec) == committed["digest"]
    assert row_digest(store.load(found.spec_digest)) == committed["rows"]


@pytest.mark.parametrize("path", [p for p in FILES if p.stem in EXPANDED], ids=lambda path: path.stem)
@pytest.mark.parametrize("name", ["C_inv", "B"])
def test_stored_inverses_are_those_that_are_streamed(path: Path, name: Any) -> None:
    found, tensors = load(path), load_file(path)
    n = found.shape(name)[0]
    if name in tensors:
        stored = tensors[name]
    else:
        column = tensors[f"{name}.coefficients"]
        stored = np.array([[column[i - j] if i >= j else 0.0 for j in range(n)] for i in range(n)])
    np.testing.assert_allclose(found.rows(name, 0, n), stored, rtol=0, atol=1e-12)


def test_every_law_and_kind_of_evidence_of_a_claim_has_one() -> None:
    claims = [held["claim"] for held in CLAIMS.values()]
    rules = {
        name: {claim[part]["rule"] for claim in claims if claim["sampling"] == name for part in ("pq", "qp")}
        for name in SAMPLINGS
    }
    assert rules["balls_in_bins"] >= {"bet", "star_bound", "closed_form"}
    assert rules["random_allocation"] == {"loss_distribution"}
    assert "chain_bet" in rules["b_min_sep"]  # apart_at_random, a receipt, has a boosted one
    shared = {claim["pq"]["shared"] for claim in claims if claim["pq"]["rule"] == "bet"}
    assert (0.0).hex() in shared and len(shared) > 1


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_of_a_release_is_accepted_and_none_for_less_noise(name: str) -> None:
    held = CLAIMS[name]
    data = (HERE / held["file"]).read_bytes()
    report = check_calibration(data, held)
    assert report.supported, report.failed
    assert report.calibration["claim_digest"] == held["claim_digest"]
    claim = {**held["claim"], "sigma": (0.97 * float.fromhex(held["claim"]["sigma"])).hex()}
    assert not check_calibration(data, claim).supported


def test_every_kind_of_run_has_a_receipt() -> None:
    assert {path.stem for path in RECEIPTS} == {run.__name__ for run in KINDS}
    assert sum(path.stat().st_size for path in HERE.glob("receipts/*/*")) < LARGEST


@pytest.mark.parametrize("path", RECEIPTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_receipt_of_a_release_is_proved_and_none_that_says_more(path: Path) -> None:
    document = json.loads(path.read_bytes())
    files = [(path.parent / f"{each['digest']}.safetensors").read_bytes() for each in document["factors"]]
    report = check_receipt(path.read_bytes(), files)
    assert report.supported and not report.unseen, report.failed
    epsilon = math.nextafter(0.97 * document["epsilon"], 0.0)
    assert not check_receipt(signed({**document, "epsilon": epsilon}), files).supported


@pytest.mark.parametrize("path", STORES, ids=lambda path: path.stem)
def test_a_store_of_a_release_is_opened_whole_and_goes_on(path: Path, tmp_path: Path) -> None:
    shutil.copytree(path.with_suffix(""), tmp_path / "store")
    store, told = open_store(tmp_path / "store", create=False), json.loads(path.read_bytes())
    assert [finding.kind for finding in fsck(store).findings] == ["revoked"]
    with pytest.raises(Revoked, match="to be told for ever"):
        store.manifest(told.pop(REVOKED)["digest"])
    assert {manifest.digest for manifest in store.items()} == {one["digest"] for one in told.values()}
    for one in told.values():
        assert store.digest_of(one["spec"]) == one["digest"]
        found = store.load(one["digest"])  # with the numbers of a user's matrix
        found.verify()
        assert row_digest(found) == one["rows"]
    store.put(load(FILES[0]))
    assert [finding.kind for finding in fsck(store).findings] == ["revoked"]


@pytest.mark.parametrize("path", STORES, ids=lambda path: path.stem)
def test_a_mirror_of_a_release_is_believed_in_its_time(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, folder = json.loads(path.read_bytes()), HERE / "mirrors" / path.stem
    monkeypatch.setenv("FACTORIZE_CACHE", str(tmp_path / "cache"))
    with served(folder) as url:
        at_the_time_of(folder, monkeypatch)
        with pytest.raises(Revoked, match="to be told for ever"):
            factorize.load(told.pop(REVOKED)["digest"], url=url)
        del told["own"]  # stays in the store
        for name, one in told.items():
            found = factorize.load(SPECS[name], url=url).opened()
            found.verify()
            assert (found.digest, row_digest(found)) == (one["digest"], one["rows"])
        at_the_time_of(folder, monkeypatch, days=1)
        with pytest.raises(CorruptObject, match="expired"):
            factorize.load(one["digest"], url=url, cache=tmp_path / "other")
