"""Signed mirrors: what their writer or somebody on the way changes is accepted by no client that has the key.

TAMPERED_MIRRORS=1000 tries as many.
"""

from __future__ import annotations

import os
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from unittest import mock

import pytest
from golden.make import HERE, SPECS, STORED
from mirrors import INDEX, OBJECTS, TIME, at_the_time_of, rewrite, served
from test_signatures import key_pair

import factorize
from factorize.api.mirror_writer import write_mirror
from factorize.client.mirror import Mirror
from factorize.encoding import sha256
from factorize.errors import BadSignature, FactorizeError, InvalidParameter
from factorize.format.signatures import sign
from factorize.solvers import choose, solve
from factorize.spec import Spec
from factorize.storage.store import open_store

TRIES = int(os.environ.get("TAMPERED_MIRRORS", "36"))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two keys, a store, its mirror, and the one before a result was revoked."""
    home = tmp_path_factory.mktemp("signed")
    for name in ("own", "foreign"):
        key_pair(home, name)
    results = open_store(home / "store")
    for steps in (4, 5, 6):
        results.put(solve(choose(Spec.of("prefix", n=steps, mechanism="identity"))))
    with mock.patch("factorize.api.mirror_writer._draw", lambda *_: b"a picture"):
        write_mirror(results, str(home / "older"), private_key=home / "own.pem")
        shutil.copytree(home / "older", home / "mirror")
        results.revoke(str(results.find(Spec.of("prefix", n=6, mechanism="identity"))), "wrong")
        write_mirror(results, str(home / "mirror"), private_key=home / "own.pem")
    return home


def asked(steps: int) -> dict[str, object]:
    return {"workload": {"kind": "prefix", "n": steps}, "mechanism": {"kind": "identity"}}


def sign_again(folder: Path, key: Path) -> None:
    shutil.rmtree(folder / "signatures", ignore_errors=True)
    (folder / "signatures").mkdir()
    name = sha256((folder / "index.json").read_bytes())
    sign(folder / "index.json", private_key=key, to=folder / f"signatures/{name}.sig")


def expire(folder: Path, older: Path, random: Random) -> None:
    """What its owner signed, and nobody has renewed."""
    past = datetime.fromtimestamp(random.randrange(10**9, int(datetime.now(UTC).timestamp())), UTC).isoformat()
    rewrite(folder, lambda index: index.update(expires=past, sequence=index["sequence"] + 1))
    sign_again(folder, folder.parent / "own.pem")


def sign_by_another(folder: Path, older: Path, random: Random) -> None:
    rewrite(folder, lambda index: index.update(revoked={}, sequence=index["sequence"] + 1))
    sign_again(folder, folder.parent / "foreign.pem")


_LENGTH, _BYTES = "CorruptObject|announced [0-9]+ bytes, not", "CorruptObject"
NAMED = {
    **{"files spoilt": _LENGTH, "files exchanged": _LENGTH, "manifests spoilt": _BYTES, "manifests exchanged": _BYTES},
    **dict.fromkeys(("specs exchanged", *INDEX, "signed by another"), "BadSignature"),
    **{"rolled back": "CorruptObject.* but you have seen ", "expired": "CorruptObject.* expired on "},
}
"""How each is refused."""
WAYS = {**OBJECTS, **INDEX, **TIME, "expired": expire, "signed by another": sign_by_another}


def test_no_tampered_mirror_is_accepted(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FACTORIZE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(Mirror.__init__.__kwdefaults__, "patience", 0.0)
    key, folder, random = home / "own.pub", tmp_path / "mirror", Random(0)
    for name in ("own", "foreign"):
        shutil.copy(home / f"{name}.pem", tmp_path / f"{name}.pem")
    with served(folder) as url:
        shutil.copytree(home / "mirror", folder)
        true = {steps: factorize.load(asked(steps), url=url, public_key=key).digest for steps in (4, 5)}
        accepted: list[str] = []
        for index in range(TRIES):
            way = list(WAYS)[index % len(WAYS)]
            shutil.rmtree(folder)
            shutil.copytree(home / "mirror", folder)
            shutil.rmtree(tmp_path / "cache/factors")  # what it has would be used
            WAYS[way](folder, home / "older", random)
            steps = random.choice((4, 5))
            try:
                found = factorize.load(random.choice((asked(steps), true[steps])), url=url, public_key=key)
            except FactorizeError as error:
                assert re.search(NAMED[way], f"{type(error).__name__}: {error}"), (way, error)
                continue
            accepted.append(f"{way}: {found.digest}")
        assert accepted == []


def test_a_key_is_asked_for_again(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FACTORIZE_CACHE", str(tmp_path / "cache"))
    with served(home / "mirror") as url:
        assert factorize.load(asked(4), url=url, public_key=home / "own.pub").manifest.spec["workload"]["n"] == 4
        with pytest.raises(InvalidParameter, match="with a key before; give public_key= again"):
            factorize.load(asked(5), url=url)
        with pytest.raises(BadSignature):
            factorize.load(asked(5), url=url, public_key=home / "foreign.pub")
        monkeypatch.setenv("FACTORIZE_MIRROR", url)
        monkeypatch.setenv("FACTORIZE_MIRROR_KEY", str(home / "own.pub"))
        assert factorize.load(asked(5)).manifest.spec["workload"]["n"] == 5


@pytest.mark.parametrize("folder", sorted(HERE.glob("mirrors/*")), ids=lambda folder: folder.name)
def test_the_signature_of_a_release_is_verified_by_every_later_one(
    folder: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FACTORIZE_CACHE", str(tmp_path / "cache"))
    at_the_time_of(folder, monkeypatch)
    with served(folder) as url:
        assert factorize.load(SPECS[STORED[0]], url=url, public_key=folder / "key.pub").certificate.converged
        with pytest.raises(BadSignature):
            factorize.load(SPECS[STORED[1]], url=url, public_key=home / "own.pub")
