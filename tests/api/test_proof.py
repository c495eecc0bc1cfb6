"""Nothing is published before another process has checked the written bytes."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from specs import spec_of
from store_cases import factorization, overwrite, toeplitz

import factorize
from factorize import solvers
from factorize.api import proof
from factorize.api.local import obtain
from factorize.api.proof import inspect, prove
from factorize.api.workers.worker import Worker, WorkerEnded
from factorize.errors import CertificateError, CorruptObject, InvalidStrategy, StoreUnavailable, TooLarge
from factorize.factors.sensitivity import compare_plain
from factorize.factors.solution import Draft, Outcome, Solution
from factorize.format.manifest import manifest_digest
from factorize.participation import read_participation
from factorize.storage.objects import STAGING
from factorize.storage.store import Store, open_store
from factorize.structures.dense import DenseMatrix


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "store")


def claiming(**losses: float) -> Any:
    """A factorization whose stated sensitivity is 1e-8 too low, or some losses of it other ones, every digest made right."""
    found = factorization(4, strategy=toeplitz(4))
    found.manifest = deepcopy(found.manifest)
    certificate = found.manifest["certificate"]
    certificate["loss"] |= losses
    if not losses:
        value = certificate["sensitivity"]["value"] * (1 - 1e-8)
        certificate["sensitivity"] |= {"value": value, "hex": value.hex()}
    found.manifest["digest"] = manifest_digest(found.manifest)
    return found


def holds_nothing(store: Store) -> bool:
    return not list(store.items()) and not list(store.objects.list("blobs")) and not list(store.objects.list(STAGING))


def test_what_was_checked_is_kept_beside_the_file(store):
    manifest = store.put(
        factorization(5, mechanism="dense", strategy=toeplitz(5)), check=partial(prove, store=store.url)
    )
    proof = manifest["files"][0]["proof"]
    assert set(proof) == {"claims", "checked", "not_checked", "release", "seconds"}
    assert {one["claim"]: one["status"] for one in proof["claims"]} == {
        name: "proved" for name in ("spec.mechanism", "matrices.C", "certificate.sensitivity", "certificate.loss")
    }
    assert proof["release"] == factorize.__version__
    assert any("is not below the true one" in text for text in proof["checked"])
    assert any("every loss enclosed" in text for text in proof["checked"])
    assert store.manifest(manifest["digest"]) == manifest
    assert "proof" not in str(store.load(manifest["digest"]).manifest), "it is no part of what the digest names"


@pytest.mark.parametrize("losses", [{}, {"rmse": 0.5}], ids=["sensitivity", "loss"])
def test_a_claim_that_does_not_hold_is_never_published(store, losses):
    with pytest.raises(CertificateError, match="the exact checker rejected the result, so nothing was stored: "):
        store.put(claiming(**losses), check=partial(prove, store=store.url))
    assert holds_nothing(store)


@pytest.mark.parametrize(("of", "refusal"), [(5, None), (4, "nothing was stored: C is not of the mechanism identity")])
def test_a_solver_that_lies_stores_nothing(store, monkeypatch, of, refusal):
    """Of the number of steps, or of the mechanism."""
    spec, solution = spec_of(4, "identity"), Solution(toeplitz(of), Outcome.CLOSED_FORM, 1)
    monkeypatch.setattr(solvers, "search", lambda asked, **how: Draft(spec, solution, {"mechanism": "identity"}))
    with pytest.raises((CertificateError, InvalidStrategy), match=refusal):
        obtain(spec, store, progress=lambda step: None)
    assert holds_nothing(store)


@pytest.mark.parametrize("changed", [lambda data: data + b" ", lambda data: data[:-1] + bytes([data[-1] ^ 1])])
def test_bytes_that_change_after_the_check_are_not_published(store, changed):
    """The file is read back beside the check, and again where it was touched since."""

    def check(path: Path):
        proof = prove(path, store=store.url)
        overwrite(path, changed(path.read_bytes()))
        return proof

    with pytest.raises(CorruptObject, match="changed after it was checked|belong to no tensor"):
        store.put(factorization(4), check=check)
    assert holds_nothing(store)


def test_a_checker_that_dies_refuses(store, monkeypatch):
    monkeypatch.setattr(proof, "prover", lambda: Worker("no_solver"))
    with pytest.raises(WorkerEnded, match="ended with exit status 1 and without a result"):
        store.put(factorization(4), check=partial(prove, store=store.url))
    assert holds_nothing(store)


def test_a_file_that_is_none_or_gone_is_refused_by_name(store, tmp_path):
    (tmp_path / "x.safetensors").write_bytes(b"no factor file")
    with pytest.raises(CorruptObject, match="safetensors"):
        prove(tmp_path / "x.safetensors", store=store.url)
    with pytest.raises(StoreUnavailable, match="No such file"):
        prove(tmp_path / "none.safetensors", store=store.url)


def test_without_memory_for_whole_matrices_the_sensitivity_is_still_proved(store, tmp_path, monkeypatch):
    def scarce(*_given):
        raise MemoryError("Unable to allocate 2 GiB")

    solvers.solve(spec_of(6, "dense")).save(tmp_path / "f.safetensors")
    for name in ("losses.whole_matrices.entries_of", "losses.loss_balls.losses"):
        monkeypatch.setattr(f"factorize.checker.{name}", scarce)
    found = inspect(tmp_path / "f.safetensors", store.url, strict=False)
    assert any("is not below the true one" in text for text in found["checked"])
    assert any("Unable to allocate" in text for text in found["not_checked"])


def test_a_sensitivity_beyond_the_exact_checker_rests_on_double_precision_and_says_so(store, tmp_path, monkeypatch):
    def refuse(data, **more):
        raise TooLarge("n=9000 is above 8192")

    monkeypatch.setattr(proof, "check_factor_file", refuse)
    factorization(4).save(tmp_path / "f.safetensors")
    found = inspect(tmp_path / "f.safetensors", store.url, strict=False)
    assert "n=9000 is above 8192" in found["not_checked"][0]
    with pytest.raises(TooLarge):
        inspect(tmp_path / "f.safetensors", store.url, strict=True)


def test_the_second_program_may_differ_by_what_the_bound_leaves_open():
    """C whose states cancel is enclosed to 4e-9 only; its rows lie anywhere within. A longer search may find less."""
    strategy, once = DenseMatrix(np.eye(3)), read_participation({"kind": "single"})
    compare_plain(1 + 3e-9, strategy, once, 4e-9)
    compare_plain(1.1, strategy, once, 0.0, least=0.9)
    for bound, off, least in (
        (1 + 3e-9, 0.0, None),
        (1 + 6e-9, 4e-9, None),
        (1 - 6e-9, 4e-9, None),
        (1 - 6e-9, 0.0, 0.9),
        (1.1, 0.0, 1.01),
    ):
        with pytest.raises(CertificateError, match="this is a fault of factorize"):
            compare_plain(bound, strategy, once, off, least=least)


@pytest.mark.parametrize("mechanism", ["dense", {"kind": "blt", "buffers": 1}])
def test_a_second_program_has_to_find_the_sensitivity(mechanism, store, tmp_path, monkeypatch):
    solvers.solve(spec_of(6, mechanism)).save(tmp_path / "f.safetensors")
    found = inspect(tmp_path / "f.safetensors", store.url, strict=False)
    assert any("by a second program" in text for text in found["checked"])
    monkeypatch.setattr("factorize.factors.plain_sensitivity.plain_sensitivity", lambda *_given: 2.0)
    with pytest.raises(CertificateError, match="this is a fault of factorize"):
        inspect(tmp_path / "f.safetensors", store.url, strict=False)
