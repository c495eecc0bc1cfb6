"""`load` finds a factorization by file, spec, digest, URL, store and cache, and believes none of them unchecked."""

from __future__ import annotations

import io
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hostile_server import HostileService, answering, make
from servers import serving

import factorize
from factorize.client import FactorCache, NoiseGenerator, connect, load
from factorize.client.cache import default_folder
from factorize.errors import (
    CacheUnusable,
    CorruptObject,
    InvalidParameter,
    InvalidSpec,
    InvalidWorkload,
    NotFound,
    ServiceUnreachable,
    StoreUnavailable,
)
from factorize.storage.store import open_store
from factorize.training.receipt import Receipt

N = 40
SPEC = {"workload": {"kind": "prefix", "n": N}, "mechanism": {"kind": "square_root"}}
AUTO = {"workload": {"kind": "prefix", "n": N}}
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def dense():
    return make(N, dense=True)


@pytest.fixture(scope="module")
def toeplitz():
    return make(N)


@pytest.fixture(autouse=True)
def cache():
    return FactorCache()


@pytest.fixture(scope="module")
def service(tmp_path_factory, dense):
    """A service that has the factorization and solves nothing."""
    with serving(tmp_path_factory.mktemp("behind") / "store", solver="no_solver") as running:
        running.store.put(dense)
        yield running


@pytest.fixture
def server(service):
    with HostileService(service) as hostile:
        yield hostile


@pytest.fixture
def file(tmp_path, dense):
    path = tmp_path / "f.safetensors"
    dense.save(path)
    return path


def blobs(server) -> int:
    return sum("/blobs/" in path for _, path, _ in server.seen)


class TestSources:
    def test_a_file(self, file, dense, cache):
        for source in (file, str(file)):
            assert load(source).digest == dense.digest
            assert factorize.load(source).digest == dense.digest
        assert not cache.folder.exists()

    def test_spec_digest_and_spec_digest_from_a_service_once(self, server, dense):
        sources = [SPEC, json.dumps(SPEC), factorize.Spec(**SPEC), dense.digest, dense.spec_digest]
        for source in sources:
            assert load(source, url=server.url).digest == dense.digest
            assert factorize.load(source, url=server.url).digest == dense.digest
        assert blobs(server) == 1

    def test_the_cache_answers_without_the_service(self, server, dense):
        load(SPEC, url=server.url)
        asked = len(server.seen)
        for source in (SPEC, dense.digest, dense.spec_digest):
            assert load(source).digest == load(source, url=NOWHERE).digest == dense.digest
        assert len(server.seen) == asked

    def test_a_url(self, server, dense):
        for digest in (dense.digest, dense.spec_digest):
            url = f"{server.url}/v1/factorizations/{digest}"
            assert load(url).digest == factorize.load(url).digest == dense.digest

    def test_a_store(self, tmp_path, dense):
        open_store(tmp_path / "store").put(dense)
        for source in (SPEC, dense.digest, dense.spec_digest):
            assert load(source, store=tmp_path / "store", cache=tmp_path / f"c{id(source)}").digest == dense.digest
        assert factorize.load(dense.digest, store=tmp_path / "store").digest == dense.digest
        (tmp_path / "store").rename(tmp_path / "gone")
        assert load(dense.digest).digest == dense.digest

    def test_a_store_without_it(self, tmp_path, server, dense):
        open_store(tmp_path / "store")
        for source in (SPEC, AUTO, dense.digest):
            with pytest.raises(NotFound):
                load(source, store=tmp_path / "store")
        assert load(dense.digest, store=tmp_path / "store", url=server.url).digest == dense.digest
        with pytest.raises(NotFound):
            load(dense.digest, store=tmp_path / "another", cache=tmp_path / "empty")
        assert not (tmp_path / "another").exists()

    def test_nowhere_to_look(self, dense):
        with pytest.raises(InvalidParameter, match="url= of a service or mirror, or a store="):
            load(dense.digest)
        with pytest.raises(ServiceUnreachable):
            load(SPEC, url=NOWHERE)
        with pytest.raises(FileNotFoundError):
            load("no such file")
        for url in ("http://127.0.0.1:9/", "http://127.0.0.1:9/v1/factorizations/abc"):
            with pytest.raises(InvalidParameter, match="does not end in"):
                load(url)

    def test_auto_is_remembered_under_what_was_asked(self, live_service):
        found = load(AUTO, url=live_service.url)
        assert found.manifest.spec["mechanism"]["kind"] == "dense"
        assert load(AUTO).digest == found.digest


class TestTrust:
    @pytest.mark.parametrize("damage", ["flipped", "cut", "another", "empty"])
    def test_a_damaged_file_in_the_cache_is_fetched_again(self, server, dense, toeplitz, cache, damage):
        load(SPEC, url=server.url)
        path = cache.path(dense.digest)
        data = path.read_bytes()
        if damage == "another":
            toeplitz.save(path)
        else:
            changed = bytearray(data)
            changed[-8] ^= 1
            path.write_bytes({"flipped": bytes(changed), "cut": data[:-100], "empty": b""}[damage])
        assert load(SPEC, url=server.url).digest == dense.digest
        assert path.read_bytes() == data
        assert blobs(server) == 2

    def test_a_damaged_file_of_the_caller_is_refused(self, file):
        data = bytearray(file.read_bytes())
        data[-8] ^= 1
        file.write_bytes(data)
        with pytest.raises(CorruptObject):
            load(file)
        assert file.exists()

    def test_a_file_that_changes_after_it_was_checked(self, file, toeplitz):
        factors = load(file)
        toeplitz.save(file)
        with pytest.raises(CorruptObject):
            factors.noise(factors.calibrate(rho=1.0), 3, seed=1 << 64)
        with pytest.raises(CorruptObject, match="now contains"):
            list(factors.rows())

    def test_an_answer_to_another_spec_is_refused(self, server, cache):
        other = make(N + 1)
        server.plan("post", answering(other.manifest))
        with pytest.raises(CorruptObject):
            load(SPEC, url=server.url)
        with pytest.raises(InvalidParameter, match="not in the cache"):
            load(SPEC)

    def test_a_name_in_the_cache_that_leads_to_another_spec(self, server, dense, cache):
        load(dense.digest, url=server.url)
        other = {**SPEC, "workload": {"kind": "prefix", "n": N + 1}}
        cache.remember(factorize.parse_spec(other).digest, dense.digest)
        with pytest.raises(CorruptObject, match="a different spec"):
            load(other)


class TestCache:
    def test_workers_that_start_together_download_once(self, server, dense):
        with ThreadPoolExecutor(6) as pool:
            found = list(pool.map(lambda _: load(dense.digest, url=server.url).digest, range(6)))
        assert set(found) == {dense.digest}
        assert blobs(server) == 1

    def test_folder(self, monkeypatch, tmp_path):
        monkeypatch.setenv("FACTORIZE_CACHE", str(tmp_path / "cache"))
        assert default_folder() == tmp_path / "cache"
        monkeypatch.delenv("FACTORIZE_CACHE")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        monkeypatch.setattr(sys, "platform", "linux")
        assert default_folder() == tmp_path / "xdg" / "factorize"
        monkeypatch.setattr(sys, "platform", "darwin")
        assert default_folder() == Path.home() / "Library" / "Caches" / "factorize"

    def test_a_folder_that_cannot_be_made(self, dense, tmp_path):
        (tmp_path / "plain").write_text("")
        with pytest.raises(StoreUnavailable, match="FACTORIZE_CACHE"):
            load(dense.digest, cache=tmp_path / "plain", url=NOWHERE)

    def test_a_default_folder_that_cannot_be_written_is_replaced_by_one_of_the_process(
        self, server, dense, tmp_path, monkeypatch
    ):
        (tmp_path / "plain").write_text("")
        monkeypatch.setenv("FACTORIZE_CACHE", str(tmp_path / "plain"))
        with pytest.warns(CacheUnusable, match=r"plain.*FACTORIZE_CACHE"):
            assert load(SPEC, url=server.url).digest == dense.digest
        with pytest.warns(CacheUnusable, match=r"plain.*FACTORIZE_CACHE"):
            assert load(dense.digest, url=server.url).digest == dense.digest
        assert blobs(server) == 1

    def test_a_filled_folder_that_is_read_only_answers(self, server, dense, cache, monkeypatch):
        load(dense.digest, url=server.url)
        monkeypatch.setattr("factorize.client.cache.os.access", lambda *_: False)
        assert load(dense.digest, cache=cache.folder).digest == dense.digest
        with pytest.raises(StoreUnavailable, match="FACTORIZE_CACHE"):
            load("0" * 64, cache=cache.folder, url=NOWHERE)

    def test_a_solve_that_cannot_be_kept_is_answered(self, tmp_path, monkeypatch):
        (tmp_path / "plain").write_text("")
        monkeypatch.setenv("FACTORIZE_CACHE", str(tmp_path / "plain"))
        with pytest.warns(CacheUnusable, match=r"could not be kept[^;]*; set FACTORIZE_CACHE[^;]*$"):
            answer = factorize.solve("prefix", n=4, mechanism="square_root", progress=False)
        monkeypatch.setenv("FACTORIZE_CACHE", str(tmp_path))
        (tmp_path / "specs" / answer.spec_digest).mkdir(parents=True)
        with pytest.warns(CacheUnusable, match=r"could not be kept.*is a folder.*FACTORIZE_CACHE"):
            assert factorize.solve(answer.spec, progress=False).digest == answer.digest

    def test_a_note_that_is_no_digest(self, server, dense, cache):
        load(SPEC, url=server.url)
        (cache.folder / "specs" / dense.spec_digest).write_bytes(b"\xff../..")
        assert load(SPEC, url=server.url).digest == dense.digest


class TestFactors:
    def test_rows_stream_and_noise_fetches_the_file_whose_c_is_certified(self, service, server, dense, toeplitz):
        factors = connect(dense.digest, url=server.url)
        assert len(list(factors.rows())) == N
        with pytest.raises(InvalidParameter, match=r"Rows is not a source of noise.*factors\.noise"):
            NoiseGenerator(
                factors.rows(), factors.calibrate(mu=1.0), 5, seed=1 << 64
            )  # no proof is about rows that are sent
        assert blobs(server) == 0
        factors.noise(factors.calibrate(mu=1.0), 5, seed=1 << 64).next()
        assert blobs(server) == 1
        service.store.put(toeplitz)
        factors = connect(toeplitz.digest, url=server.url)
        factors.noise(factors.calibrate(mu=1.0), 5, seed=1 << 64).next()
        assert blobs(server) == 2
        asked = len(server.seen)
        assert len(list(factors.rows())) == N and len(server.seen) == asked


def test_a_path_may_be_text_bytes_or_begin_with_the_home_folder(toeplitz, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for number, to in enumerate((b"saved-0", "~/saved-1", Path("~/saved-2"))):
        toeplitz.save(to)
        assert load(tmp_path / f"saved-{number}").digest == toeplitz.digest
    for source in (str(tmp_path / "saved-1"), b"saved-0", "~/saved-1", Path("~/saved-2"), b"~/saved-2"):
        assert load(source).digest == toeplitz.digest, source
    np.save("C.npy", toeplitz.C)
    for source in ("~/C.npy", os.fsencode(tmp_path / "C.npy")):
        assert factorize.certify(source, toeplitz.spec).strategy.n == N
    open_store("~/store").put(toeplitz)
    for number, to in enumerate((b"to-0", "~/to-1")):
        factorize.solve(toeplitz.spec, store="~/store", to=to, progress=False)
        assert (tmp_path / f"to-{number}").is_file()
    assert load(toeplitz.digest, store="~/store", cache="~/cache").path().is_relative_to(tmp_path / "cache")
    monkeypatch.setenv("FACTORIZE_CACHE", "~/other")
    assert load(toeplitz.digest, store="~/store").path().is_relative_to(tmp_path / "other")
    assert Receipt("~/receipt.json").path == tmp_path / "receipt.json"
    assert not (tmp_path / "~").exists()


def test_what_is_no_path_is_named_in_few_words(toeplitz, tmp_path):
    toeplitz.save(tmp_path / "held")
    doors = (load, toeplitz.save, open_store, factorize.certify, Receipt)
    doors += (lambda name: factorize.solve(toeplitz.spec, store=name), lambda name: load(toeplitz.digest, store=name))
    doors += (lambda name: factorize.solve(toeplitz.spec, store=tmp_path, to=name), FactorCache)
    for door in doors:
        for name in ("a\0b", b"a\0b", Path("a\0"), "", "half \ud800", (tmp_path / "held").read_bytes()):
            with pytest.raises(InvalidParameter, match="is not a path") as told:
                door(name)
            assert len(str(told.value)) < 500
    for name in ("blt", "prefix"):
        with pytest.raises(
            InvalidParameter, match=f"no file {name}, and its name alone is not a spec; give a whole one"
        ):
            load(name)
    for door in (toeplitz.save, open_store, Receipt, *doors[-4:-1]):
        for name in (3.5, True, ["a"], io.BytesIO(b"a")):
            with pytest.raises(InvalidParameter, match="is not a path"):
                door(name)
    with pytest.raises(FileNotFoundError):
        toeplitz.save(tmp_path / "no folder" / "file")
    os.mkfifo(tmp_path / "pipe")  # a device alike, whose place the file of a user who may would take
    for door in (toeplitz.save, lambda name: factorize.solve(toeplitz.spec, to=name)):
        for name in (tmp_path / "pipe", tmp_path):
            with pytest.raises(InvalidParameter, match="name the file to write"):
                door(name)
    assert (tmp_path / "pipe").is_fifo()
    for shape in ((2.7,), "2", (2**70,), (2**30, 2**30)):
        with pytest.raises(InvalidParameter, match="give the parameters' shape"):
            toeplitz.noise(toeplitz.calibrate(mu=1.0), shape, seed=1 << 64)
    with pytest.raises(InvalidSpec, match="this ndarray is not a spec"):
        factorize.Factorization.from_strategy(toeplitz.C, toeplitz.spec)


def test_a_file_without_its_own_workload_says_where_to_give_it(tmp_path: Path) -> None:
    own = np.tril(np.arange(1.0, 10.0).reshape(3, 3))
    solved = factorize.solve(own, progress=False)
    solved.save(tmp_path / "own.safetensors")
    held = load(tmp_path / "own.safetensors")
    with pytest.raises(InvalidWorkload, match=r"opened\(matrices=\{sha256: array\}\)"):
        _ = held.B
    named = held.manifest.spec["workload"]["sha256"]
    np.testing.assert_array_equal(held.opened(matrices={named: own}).B, solved.B)
