"""What every store must do, whatever it lies on; a new medium adds one opener here."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from specs import solved, spec_of
from store_cases import factorization, put_checked, toeplitz

from factorize.encoding import json_digest, raw_bytes
from factorize.errors import CorruptObject, InvalidParameter, InvalidWorkload, NotFound, Revoked
from factorize.factors.factor_file import load
from factorize.format.manifest import manifest_digest
from factorize.storage.blobs import CHUNK_BYTES
from factorize.storage.fsck import fsck
from factorize.storage.store import Store, open_store

Opener = Callable[[], Store]
LOWER = [[1.0, 0.0, 0.0], [2.0, 1.0, 0.0], [0.5, 0.0, 1.0]]
UNKNOWN = "0" * 64


@pytest.fixture(params=["directory", "bucket"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Opens the same store anew at each call, as another process would."""
    url = tmp_path / "store" if request.param == "directory" else request.getfixturevalue("bucket")
    return lambda: open_store(url)


@pytest.fixture
def store(opener: Opener) -> Store:
    return opener()


def test_a_factorization_comes_back_as_it_was_put(store, opener):
    put = solved(5, "square_root")
    manifest = store.put(put)
    for found in (store, opener()):
        got = found.load(put.digest)
        assert got.manifest == put.manifest
        np.testing.assert_array_equal(got.rows("C", 0, 5), put.rows("C", 0, 5))
        assert found.load(put.spec_digest).digest == put.digest
        assert found.manifest(put.digest) == found.manifest(put.spec_digest) == manifest
        got.verify()


def test_the_manifest_names_the_file(store, tmp_path):
    put = factorization(700)
    manifest = store.put(put)
    assert manifest_digest(manifest) == manifest["digest"] == put.digest
    assert json_digest(manifest["spec"]) == manifest["spec_digest"]
    (file,) = manifest["files"]
    data = b"".join(store.blob(file["sha256"]).read())
    assert file["bytes"] == len(data) > file["chunk_bytes"] - 2 * 700 * 8 * 30
    assert hashlib.sha256(data).hexdigest() == file["sha256"]
    parts = [data[i : i + CHUNK_BYTES] for i in range(0, len(data), CHUNK_BYTES)]
    assert file["chunk_bytes"] == CHUNK_BYTES
    assert file["chunks"] == [hashlib.sha256(part).hexdigest() for part in parts]
    (tmp_path / "copy.safetensors").write_bytes(data)
    copy = load(tmp_path / "copy.safetensors")
    assert copy.digest == put.digest and "files" not in copy.manifest


def test_putting_again_changes_nothing(store, opener):
    first = store.put(factorization())
    listed = [entry for entry in store.objects.list()]
    assert store.put(factorization()) == first
    assert opener().put(factorization(seconds=99.0)) == first
    assert [entry for entry in store.objects.list()] == listed


def test_a_loaded_factorization_can_be_put_into_another_store(store, tmp_path):
    put = factorization(of=spec_of({"kind": "matrix", "rows": LOWER}, "identity"))
    manifest = store.put(put)
    other = open_store(tmp_path / "other")
    copied = other.put(store.load(put.digest))
    assert copied["files"] == manifest["files"]
    other.load(put.digest).verify()


def test_the_first_answer_to_a_spec_stays_the_answer(store, opener):
    first, second = factorization(4), factorization(4, strategy=toeplitz(4))
    store.put(first)
    assert store.put(second)["digest"] == second.digest
    assert store.digest_of(first.spec_digest) == opener().digest_of(first.spec_digest) == first.digest
    assert opener().load(second.digest).digest == second.digest


def test_find_prefers_the_exact_spec_then_the_loosest_tighter_converged_one(store):
    put = {t: factorization(tolerance=t, seconds=t) for t in (1e-9, 1e-6, 1e-4)}
    unmet = factorization(tolerance=1e-5, converged=False)
    for each in (*put.values(), unmet):
        store.put(each)
    assert store.find(spec_of(4, "identity", tolerance=1e-6)) == put[1e-6].digest
    assert store.find(spec_of(4, "identity", tolerance=1e-5)) == unmet.digest, (
        "an answer that did not converge is still the answer"
    )
    assert store.find(spec_of(4, "identity", tolerance=5e-5)) == put[1e-6].digest, "and is no answer to another spec"
    assert store.find(spec_of(4, "identity", tolerance=1e-3)) == put[1e-4].digest
    assert store.find(spec_of(4, "identity", tolerance=1e-7)) == put[1e-9].digest
    assert store.find(spec_of(4, "identity", tolerance=1e-12)) is None
    assert store.find(spec_of(5, "identity", tolerance=1e-3)) is None
    assert store.digest_of(spec_of(4, "identity", tolerance=1e-7).digest) is None


def test_what_is_not_there_is_not_found(store):
    for ask in (store.manifest, store.load, store.blob, lambda name: store.matrices.read(name, (2, 2))):
        with pytest.raises(NotFound):
            ask(UNKNOWN)
    assert store.digest_of(UNKNOWN) is None
    assert list(store.items()) == []


@pytest.mark.parametrize("name", ["", "..", "../../etc/passwd", "A" * 64, "0" * 63, "0" * 65, "0" * 63 + "/", 5, None])
def test_names_that_are_no_digests_are_refused_before_any_key_is_made(store, name):
    for ask in (
        store.manifest,
        store.load,
        store.blob,
        store.digest_of,
        lambda text: store.matrices.read(text, (1, 1)),
    ):
        with pytest.raises(InvalidParameter):
            ask(name)


def test_user_matrices_are_kept_under_the_digest_of_their_numbers(store, opener):
    array = np.array(LOWER)
    array[2, 1] = -0.0
    name = store.put_matrix(array)
    assert name == store.put_matrix(array) == hashlib.sha256(raw_bytes(array + 0.0)).hexdigest()
    got = opener().matrices.read(name, (3, 3))
    np.testing.assert_array_equal(got, array)
    assert not got.flags.writeable and not np.signbit(got).any()
    with pytest.raises(InvalidParameter, match="72 bytes, but shape 3 x 4 needs 96"):
        store.matrices.read(name, (3, 4))
    with pytest.raises(InvalidWorkload):
        store.put_matrix(array.T)


def test_specs_are_bound_to_the_matrices_of_the_store(store, opener):
    asked = spec_of({"kind": "matrix", "rows": LOWER}, "identity")
    assert store.matrices.bind(asked) == asked  # it has its numbers
    named = spec_of(asked.document()["workload"], "identity")
    with pytest.raises(NotFound):
        store.matrices.bind(named)
    store.put(factorization(of=asked))
    bound = opener().matrices.bind(named)
    np.testing.assert_array_equal(bound.workload.array, LOWER)
    assert bound.digest == asked.digest
    assert store.matrices.bind(spec_of(4, "identity")) == spec_of(4, "identity")
    np.testing.assert_array_equal(opener().load(asked.digest).spec.workload.array, LOWER)


def test_a_factorization_of_an_unknown_matrix_is_not_stored(store, opener):
    put = factorization(of=spec_of({"kind": "matrix", "rows": LOWER}, "identity"))
    put.spec = spec_of(put.spec.document()["workload"], "identity")
    with pytest.raises(NotFound):
        store.put(put)
    store.put_matrix(np.array(LOWER))
    store.put(put)
    opener().load(put.digest).verify()


def test_items_are_listed_by_digest_and_filtered(store, opener):
    put = [factorization(n) for n in (2, 3, 4)]
    put += [factorization(n, workload={"kind": "decay", "n": n, "rate": 0.5}) for n in (3, 4)]
    put += [factorization(of=spec_of({"kind": "matrix", "rows": LOWER}, "identity"))]
    for each in put:
        store.put(each)
    digests = sorted(each.digest for each in put)
    assert [manifest["digest"] for manifest in opener().items()] == digests
    assert [manifest["spec"]["workload"]["n"] for manifest in store.items(workload="decay")] in ([3, 4], [4, 3])
    assert len(list(store.items(n=3))) == 3
    assert [manifest["digest"] for manifest in store.items(workload="matrix", n=3)] == [put[-1].digest]


def test_an_expanded_factorization_keeps_its_matrices(store):
    put = factorization(4, strategy=toeplitz(4)).with_matrices(["C_inv", "B"])
    store.put(put)
    got = store.load(put.digest)
    assert set(got.tensors()) == {"C.coefficients", "C_inv.coefficients", "B.coefficients"}
    assert got.digest == put.digest


def test_concurrent_puts_of_one_spec_agree(store, opener):
    candidates = [factorization(4, strategy=toeplitz(4, decay=0.1 * (1 + k))) for k in range(6)]
    stores = [opener() for _ in candidates]
    with ThreadPoolExecutor(len(candidates)) as pool:
        manifests = list(pool.map(lambda pair: pair[0].put(pair[1]), zip(stores, candidates, strict=True)))
    assert [m["digest"] for m in manifests] == [c.digest for c in candidates]
    answers = {each.digest_of(candidates[0].spec_digest) for each in stores}
    assert len(answers) == 1 and answers <= {c.digest for c in candidates}
    assert fsck(store).clean


def test_a_used_store_is_clean(store):
    store.put(factorization(of=spec_of({"kind": "matrix", "rows": LOWER}, "identity")))
    store.put(factorization(converged=False))
    report = fsck(store)
    assert report.clean and not report.findings
    assert report.objects == 3 + 2 + 4, "a matrix and two files, two manifests, two entries of each"


def test_a_checked_file_is_put_as_its_result_is(store, opener, tmp_path):
    alone = open_store(tmp_path / "alone")
    result = factorization(3)
    for found in (put_checked(store, result), put_checked(opener(), result)):
        kept = dict(found["files"][0])
        assert kept.pop("proof") == {"release": "test"}
        assert kept == alone.put(result)["files"][0]
    assert opener().find(result.spec) == result.digest
    assert opener().load(result.digest).digest == result.digest
    store.revoke(result.digest, "wrong")
    with pytest.raises(Revoked, match="found it again, so use a later release or another mechanism"):
        put_checked(store, result)
    with store.objects.stage() as staged, pytest.raises(CorruptObject, match="changed after it was checked"):
        staged.produce(factorization(4).save)
        store.put_checked(staged, {"digest": result.digest, "sha256": "0" * 64})
    assert opener().find(factorization(4).spec) is None
