"""Mirrors as clients see them: found by spec and digest, looked at first, and refused where they are spoilt or old."""

from __future__ import annotations

import json
import os
import shutil
import ssl
from pathlib import Path
from random import Random
from unittest import mock

import numpy as np
import pytest
from mirrors import OBJECTS, rewrite, served

import factorize
from factorize.api.commands.application import run
from factorize.api.mirror_writer import write_mirror
from factorize.client import FactorCache, fetch
from factorize.client.held_factors import look_first
from factorize.client.mirror import Mirror
from factorize.client.service import Service
from factorize.errors import (
    CacheUnusable,
    CorruptObject,
    FactorizeError,
    InvalidParameter,
    MissingExtra,
    NotFound,
    Revoked,
    ServiceError,
    SolveFailed,
    StoreUnavailable,
)
from factorize.format.quantities import at_most
from factorize.solvers import choose, solve
from factorize.spec import Spec
from factorize.storage.medium.bucket import connect
from factorize.storage.store import Store, open_store

SPECS = [
    ("prefix", {"n": 8}),
    ("prefix", {"n": 12, "mechanism": "square_root"}),
    ("prefix", {"n": 6, "mechanism": "identity"}),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of three results and a matrix of somebody's own, and its mirror."""
    home = tmp_path_factory.mktemp("mirror")
    results = open_store(home / "store")
    for workload, words in [*SPECS, (np.tril(np.ones((3, 3))), {"mechanism": "identity"})]:
        results.put(solve(choose(Spec.of(workload, **words))))
    notes: list[str] = []
    write_mirror(open_store(home / "store"), str(home / "mirror"), remark=notes.append)
    assert len(notes) == 4 and sum("left out" in note for note in notes) == 1
    return home


@pytest.fixture
def mirror(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the mirror, a cache of its own, and a key that no mirror may see."""
    monkeypatch.setenv("FACTORIZE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FACTORIZE_KEY", "secret")
    monkeypatch.setitem(Mirror.__init__.__kwdefaults__, "patience", 0.1)  # with files of another length
    shutil.copytree(made / "mirror", tmp_path / "mirror")
    return tmp_path / "mirror"


def asked(index: int, **more: object) -> dict[str, object]:
    workload, words = SPECS[index]
    mechanism = {"mechanism": {"kind": words["mechanism"]}} if "mechanism" in words else {}
    return {"workload": {"kind": workload, "n": words["n"]}, **mechanism, **more}


def stored(home: Path) -> Store:
    return open_store(home / "store", create=False)


def test_results_are_found_by_spec_and_digest(mirror: Path, made: Path, tmp_path: Path) -> None:
    with served(mirror) as url:
        first = factorize.load(asked(0), url=url)  # `auto`, whose mechanism a client without solvers cannot name
        assert first.certificate.converged and first.manifest.spec["mechanism"] == {"kind": "dense"}
        by_digest = fetch(first.digest, url=url, to=tmp_path / "f.safetensors")
        assert by_digest.read_bytes() == b"".join(
            stored(made).blob(stored(made).manifest(first.digest).file.sha256).read()
        )
        assert factorize.load(first.spec_digest, url=url, cache=tmp_path / "third").digest == first.digest
        with pytest.raises(NotFound, match="does not have this result"):
            factorize.load(asked(0) | {"objective": {"kind": "max"}}, url=url)
        with pytest.raises(InvalidParameter, match="cannot round it"):
            fetch(first.digest, url=url, to=tmp_path / "g.safetensors", dtype="float32")
    assert factorize.load(asked(0)).digest == first.digest  # offline


def test_a_larger_tolerance_is_answered(mirror: Path) -> None:
    with served(mirror) as url:
        assert Mirror(url).manifest(asked(1, tolerance=1e-3)).spec["tolerance"] == 1e-9
        rewrite(mirror, lambda index: [one.update(converged=False) for one in index["results"]])  # as far as it went
        rewrite(mirror, lambda index: index.update(sequence=index["sequence"] + 1))
        assert Mirror(url).manifest(asked(1, tolerance=1e-3)).spec["tolerance"] == 1e-9


def test_what_was_chosen_for_a_spec_need_not_be_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the library's list does not say what buffers are optimised for under momentum."""
    workload = {"kind": "momentum", "n": 8, "momentum": 0.9, "learning_rates": {"kind": "cosine", "final": 0.0}}
    several = {"kind": "fixed_epochs", "epochs": 2}
    listed = {"workload": workload, "participation": several, "mechanism": {"kind": "buffered_linear", "buffers": 1}}
    made = solve(choose(factorize.parse_spec({**listed, "tolerance": 1e-2})))
    assert "optimize_for" in made.spec.document()
    open_store(tmp_path / "store").put(made)
    write_mirror(open_store(tmp_path / "store"), str(tmp_path / "mirror"))
    monkeypatch.setenv("FACTORIZE_CACHE", str(tmp_path / "cache"))
    with served(tmp_path / "mirror") as url:
        assert factorize.load({**listed, "tolerance": 1e-2}, url=url).digest == made.digest
        monkeypatch.setenv("FACTORIZE_MIRROR", url)
        found = look_first()(choose(factorize.parse_spec({**listed, "tolerance": 0.1})))
        assert found is not None and factorize.load(found[0]).digest == made.digest


def test_a_cache_that_is_damaged_or_full_keeps_nobody_from_a_file(mirror: Path, tmp_path: Path) -> None:
    kept, full = FactorCache(), StoreUnavailable("cache/x cannot be written: No space left on device")
    with served(mirror) as url:
        fetch(asked(0), url=url, to=tmp_path / "first")
        for note in [path for path in kept.folder.rglob("*") if path.is_file()]:
            note.write_bytes(b"\xff no digest")
        fetch(asked(0), url=url, to=tmp_path / "second")
        with (
            mock.patch.object(FactorCache, "path", side_effect=full),
            pytest.warns(CacheUnusable, match="are not kept"),
        ):
            fetch(asked(1), url=url, to=tmp_path / "third")
        (note,) = kept.folder.glob("mirrors/*/*")
        assert len(note.read_text()) == 64  # written anew
    first, second, third = (factorize.load(tmp_path / name) for name in ("first", "second", "third"))
    assert first.digest == second.digest != third.digest


@pytest.mark.parametrize("kind", OBJECTS)
def test_what_digests_show(mirror: Path, tmp_path: Path, kind: str) -> None:
    with served(mirror) as url:
        true = [factorize.load(asked(index), url=url, cache=tmp_path / "true").digest for index in range(3)]
        OBJECTS[kind](mirror, mirror, Random(1))
        rewrite(mirror, lambda index: index.update(sequence=index["sequence"] + 1))  # the attacker's next index
        for index in range(3):
            with pytest.raises(FactorizeError):
                factorize.load(asked(index), url=url)
            if kind != "specs exchanged":  # which says nothing of digests
                with pytest.raises(FactorizeError):
                    factorize.load(true[index], url=url)
    assert not list((tmp_path / "cache/factors").glob("*.safetensors"))


def test_an_old_or_expired_index_is_refused(mirror: Path, tmp_path: Path, made: Path) -> None:
    with served(mirror) as url:
        reader = Mirror(url)
        now = reader.index().sequence
        rewrite(mirror, lambda index: index.update(sequence=now - 1))
        with pytest.raises(CorruptObject, match=f"has the sequence {now - 1}, and {now} but you have seen .*use|Use"):
            reader.index()
        rewrite(mirror, lambda index: index.update(sequence=now, revoked={"0" * 64: "why not"}))
        with pytest.raises(CorruptObject, match="another index with the sequence"):
            reader.index()
        rewrite(mirror, lambda index: index.update(sequence=now + 1, expires="2026-01-01T00:00:00+00:00"))
        with pytest.raises(CorruptObject, match=r"expired on 2026-01-01.*renews it by `factorize mirror`"):
            reader.index()
        for changes in ({"sequence": "7"}, {"sequence": True}, {"expires": 5}, {"specs": {"x": "y"}}, {"version": 2}):
            rewrite(mirror, lambda index, changes=changes: index.update(changes))
            with pytest.raises(CorruptObject, match="not the index of a mirror"):
                Mirror(url, cache=FactorCache(tmp_path / "new")).index()
            shutil.copy(made / "mirror/index.json", mirror / "index.json")
        assert reader.index().sequence == now  # the true one, still


def test_what_was_revoked_is_told_and_gone(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FACTORIZE_CACHE", str(tmp_path / "cache"))
    shutil.copytree(made / "store", tmp_path / "store")
    shutil.copytree(made / "mirror", tmp_path / "mirror")
    results = open_store(tmp_path / "store", create=False)
    digest = results.find(factorize.parse_spec(asked(2)))
    assert digest is not None
    file = results.manifest(digest).file.sha256
    results.revoke(digest, "the sensitivity was wrong")
    index = write_mirror(results, str(tmp_path / "mirror"))
    assert index.revoked[digest] == "the sensitivity was wrong" and not (tmp_path / "mirror/v1/blobs" / file).exists()
    with served(tmp_path / "mirror") as url:
        for source in (digest, asked(2)):
            with pytest.raises((Revoked, NotFound)) as told:
                factorize.load(source, url=url)
            assert source != digest or isinstance(told.value, Revoked)


@pytest.mark.parametrize("seconds", [-86_500, 10 * 86_400], ids=["a day ago", "before the clock was set back"])
def test_what_is_cached_is_asked_about_again(
    made: Path, mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    shutil.copytree(made / "store", tmp_path / "store")
    results = open_store(tmp_path / "store", create=False)
    to = tmp_path / "f.safetensors"
    with served(mirror) as url:
        gone, kept = (factorize.load(asked(index), url=url).digest for index in (2, 1))
        results.revoke(gone, "the sensitivity was wrong")
        write_mirror(results, str(mirror))
        assert factorize.load(gone, url=url).digest == gone  # the index was read a moment ago
        memory = next((tmp_path / "cache/mirrors").glob("*/*"))
        os.utime(memory, (0, memory.stat().st_mtime + seconds))
        with pytest.warns(CacheUnusable, match=f"{gone} was revoked: the sensitivity was wrong"):
            assert fetch(kept, url=url, to=to) == to
    with pytest.raises(Revoked, match="the sensitivity was wrong"):
        factorize.load(gone)  # offline, and of no mirror
    with pytest.raises(Revoked, match="solve its spec again"):
        factorize.solve(json.dumps(asked(2)))  # by which it would come back
    for memory in (tmp_path / "cache/mirrors").glob("*/*"):
        os.utime(memory, (0, 0))
    with pytest.warns(CacheUnusable, match="results in the cache may have been revoked since"):
        assert factorize.load(kept, url=url).digest == kept
    to.unlink()
    for memory in (tmp_path / "cache/mirrors").glob("*/*"):
        os.utime(memory)
    assert fetch(asked(1), url=url, to=to) == to  # offline


def test_a_mirror_is_looked_at_before_a_spec_is_solved(
    mirror: Path, tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    true = stored(made).find(factorize.parse_spec(asked(1)))
    monkeypatch.setattr("factorize.solvers.search", None)
    with served(mirror) as url:
        monkeypatch.setenv("FACTORIZE_MIRROR", url)
        assert factorize.solve("prefix", n=12, mechanism="square_root").digest == true
        shutil.rmtree(tmp_path / "cache/factors")
        assert run(["solve", json.dumps(asked(1)), "--store", str(tmp_path / "own"), "--output", "json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert (shown["digest"], shown["origin"]) == (true, {"place": "mirror", "address": url})
        assert run(["solve", json.dumps(asked(1)), "--store", str(tmp_path / "other")]) == 0
        assert f"(from the cache {tmp_path / 'cache'})" in capsys.readouterr().out
        to = tmp_path / "f.safetensors"
        get = ["get", json.dumps(asked(2)), "--store", str(tmp_path / "own"), "--to", str(to)]
        for place, address in (("mirror", url), ("cache", str(tmp_path / "cache"))):
            assert run([*get, "--output", "json"]) == 0
            assert json.loads(capsys.readouterr().out)["origin"] == {"place": place, "address": address}
        assert factorize.load(to).manifest.spec["workload"]["n"] == 6 and factorize.load(to).origin is None
        assert str(factorize.load(asked(2), url=url).origin) == f"from the cache {tmp_path / 'cache'}"
    monkeypatch.undo()  # solvers are there again, and the mirror is not
    shutil.rmtree(tmp_path / "cache/factors")
    monkeypatch.setenv("FACTORIZE_MIRROR", url)
    monkeypatch.setenv("FACTORIZE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("factorize.client.mirror._FIRST_LOOK_SECONDS", 0.1)
    with pytest.warns(CacheUnusable, match="FACTORIZE_MIRROR: .*; solving on this machine instead"):
        assert factorize.solve("prefix", n=6, mechanism="identity").certificate.converged
    monkeypatch.setenv("FACTORIZE_MIRROR", "https://example.org/mirror")
    with pytest.raises(InvalidParameter, match=r"give the address of an index.json"):
        factorize.load("0" * 64)


def test_a_mirror_is_looked_at_before_a_comparison_solves(
    mirror: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = stored(made).find(choose(factorize.parse_spec(asked(0))))

    def refuse(*_: object, **__: object) -> factorize.Factorization:
        raise SolveFailed("nothing is solved here")

    monkeypatch.setattr("factorize.solvers.comparing.compare.solve", refuse)
    job = {
        "examples": 16,
        "batch_size": 2,
        "epochs": 1,
        "epsilon": 1.0,
        "delta": 1e-3,
        "memory": 8,
        "objective": "mean",
    }
    with served(mirror) as url:
        monkeypatch.setenv("FACTORIZE_MIRROR", url)
        table = factorize.compare("prefix", n=8)
        assert [(row["mechanism"], row["origin"]) for row in table] == [("dense", {"place": "mirror", "address": url})]
        assert f"from the mirror {url}: dense" in str(table).splitlines()
        advice = factorize.recommend(**job, samplings=["fixed"])
    assert f"origin      from the cache {os.environ['FACTORIZE_CACHE']}" in str(advice).splitlines()
    assert advice.spec["mechanism"]["kind"] == "dense"
    assert factorize.solve(advice.spec).digest == true  # offline, as the mirror has it


def test_pages_say_what_a_result_is(made: Path) -> None:
    digest = stored(made).find(factorize.parse_spec(asked(1)))
    page = (made / "mirror/pages" / f"{digest}.html").read_text()
    manifest = stored(made).manifest(str(digest))
    for words in (
        at_most(manifest.certificate["sensitivity"]["value"], 12),
        "factorize get",
        manifest.file.sha256,
        "Cite",
    ):
        assert words in page
    assert "script" not in page and (made / "mirror/pages" / f"{digest}.png").stat().st_size > 1000
    assert page.count(str(digest)) >= 3 and f"pages/{digest}.html" in (made / "mirror/index.html").read_text()


@pytest.mark.parametrize("end", ["", "/", "/index.json"])
def test_pages_name_the_index_once(end: str, made: Path, tmp_path: Path) -> None:
    write_mirror(stored(made), str(tmp_path / "mirror"), address=f"https://files.example/mirror{end}")
    page = next((tmp_path / "mirror" / "pages").glob("*.html")).read_text()
    assert " --service https://files.example/mirror/index.json --to" in page


def test_what_is_no_place_for_a_mirror(made: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="is a store; give another folder"):
        write_mirror(stored(made), str(made / "store"))
    with pytest.raises((InvalidParameter, MissingExtra)):  # before anything is written
        write_mirror(stored(made), str(tmp_path / "signed"), private_key=tmp_path / "no.pem")
    assert not (tmp_path / "signed").exists()
    with pytest.raises(InvalidParameter, match="days=0"):
        write_mirror(stored(made), str(tmp_path), days=0)
    (tmp_path / "index.json").write_text("{}")
    with pytest.raises(CorruptObject, match="not the index of a mirror"):
        write_mirror(stored(made), str(tmp_path))


def test_a_folder_that_shows_something_else_is_left_as_it_is(made: Path, tmp_path: Path) -> None:
    """Files of a mirror that was interrupted are no strangers, and neither is what lies beside its folders."""
    for name in ("index.html", "pages/about.html"):
        site = tmp_path / name.replace("/", "-")
        (site / name).parent.mkdir(parents=True)
        (site / name).write_text("mine")
        with pytest.raises(InvalidParameter, match=f"no mirror wrote, such as {name}; give a folder of its own"):
            write_mirror(stored(made), str(site))
        assert [path.read_text() for path in site.rglob("*") if path.is_file()] == ["mine"]
    begun = tmp_path / "begun"
    shutil.copytree(made / "mirror", begun)
    for name in ("index.json", "index.html"):
        (begun / name).unlink()
    (page,) = list((begun / "pages").glob("*.html"))[:1]
    left = page.with_name(f".{page.name}.0123456789abcdef.part.html")
    for path in (left, begun / "README.md"):
        path.write_text("")
    write_mirror(stored(made), str(begun))
    assert (begun / "index.html").exists() and (begun / "README.md").exists() and not left.exists()


def test_an_address_without_an_index_says_what_belongs_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refusal(url: str) -> str:
        with pytest.raises((ServiceError, CorruptObject)) as caught:
            factorize.load(asked(0), url=url, cache=tmp_path / "cache")
        return str(caught.value)

    (tmp_path / "page").mkdir()
    (tmp_path / "page/index.json").write_text("<!doctype html>")
    with served(tmp_path) as url:
        folder = url.removesuffix("/index.json")
        assert refusal(folder).endswith(
            "/v1/factorizations answered with HTTP status 501 (Not Implemented); is `factorize serve` running there? "
            "The address of a mirror ends in /index.json"
        )
        assert refusal(url) == (
            f"{url} answered with HTTP status 404 (Not Found); check in a browser that it shows there what `factorize mirror` wrote"
        )
        assert "give the address of one that `factorize mirror` wrote" in refusal(f"{folder}/page/index.json")
        for spelt in (url, f"{url}/"):
            with pytest.raises(InvalidParameter, match="a mirror, which computes nothing; give it as FACTORIZE_MIRR"):
                Service(spelt)
            assert Mirror(spelt).connection.url == folder
    monkeypatch.setenv("FACTORIZE_MIRROR", "nonsense")
    assert run(["get", "prefix", "--n", "5", "--to", str(tmp_path / "to"), "--store", str(tmp_path / "none")]) == 2
    assert "FACTORIZE_MIRROR is 'nonsense'; give the address of an index.json" in capsys.readouterr().err
    monkeypatch.delenv("FACTORIZE_MIRROR")
    for words in (
        ["verify", url],
        ["get", "31cf33", "--service", url, "--to", str(tmp_path / "to")],
        ["verify", "C.npy"],
    ):
        assert run(words) == 2
    told = capsys.readouterr().err
    assert "is not a path" in told and "all 64 digits" in told and "--strategy" in told
    monkeypatch.setitem(Mirror.__init__.__kwdefaults__, "patience", 0.0)
    assert "refused); check in a browser that it shows there" in refusal(url)
    untrusted = ssl.SSLCertVerificationError("x")
    untrusted.verify_message = "self-signed certificate"
    with mock.patch("http.client.HTTPConnection.request", side_effect=untrusted):
        assert refusal(url).endswith("(self-signed certificate); set SSL_CERT_FILE to the file of its authority")


def test_a_mirror_in_a_bucket(made: Path, bucket: str) -> None:
    for _ in range(2):
        index = write_mirror(stored(made), bucket)
    there = {entry.key: entry.size for entry in connect(bucket).list()}
    assert there["index.json"] and len([key for key in there if key.startswith("v1/blobs/")]) == len(index.results) == 3
    assert {f"v1/blobs/{one.file}": one.bytes for one in index.results}.items() <= there.items()
