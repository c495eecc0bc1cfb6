"""What a reader of a manifest checks before believing the rest."""

from __future__ import annotations

from typing import Any

import pytest
from specs import spec_of
from store_cases import factorization

from factorize import solvers
from factorize.errors import CorruptObject
from factorize.format.manifest import StoredFile, check_manifest, manifest_digest

DIGEST = "0" * 64


@pytest.fixture
def manifest() -> dict[str, Any]:
    return dict(factorization(3).manifest)


def test_its_digest_leaves_out_what_varies_and_nothing_else(manifest):
    own = manifest["digest"]
    solver = {**manifest["solver"], "seconds": 1e9, "environment": {"cpu": "another"}}
    assert manifest_digest({**manifest, "files": [1], "created": "now", "digest": "", "solver": solver}) == own
    for name in set(manifest) - {"digest", "files", "created"}:
        assert manifest_digest({**manifest, name: "changed" if name != "solver" else {}}) != own, name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "schema 2 is not 1"),
        ({"certificate": {}}, "does not hash to its own digest"),
        ({"digest": DIGEST}, "does not hash to its own digest"),
        ({"solver": 5}, "not a manifest"),
        ({"solver": float("nan")}, "not a manifest"),
    ],
)
def test_what_disagrees_with_itself_is_refused(manifest, change, message):
    check_manifest(manifest)
    with pytest.raises(CorruptObject, match=message):
        check_manifest({**manifest, **change})
    with pytest.raises(CorruptObject, match="not a manifest"):
        check_manifest({})


def test_a_spec_of_another_digest_is_refused(manifest):
    manifest["spec_digest"] = DIGEST
    manifest["digest"] = manifest_digest(manifest)
    with pytest.raises(CorruptObject, match="spec does not hash"):
        check_manifest(manifest)


def test_what_solvers_record_is_known():
    """Filters state what they are worth in the long run, and strategies without end the horizon of their fit."""
    for spec in (
        spec_of(12, {"kind": "spectral", "learning_rate": 0.05, "eigenvalues": [2.0]}),
        spec_of({"kind": "prefix", "n": "unbounded"}, {"kind": "blt", "buffers": 1}),
    ):
        found = solvers.solve(spec)
        assert {"asymptotic", "optimized_for"} & set(found.manifest["solver"])
        check_manifest(found.manifest)


@pytest.mark.parametrize("length", [0, -1, 1.0, True, "9" * 99])
def test_the_length_of_a_file_is_a_positive_integer(length):
    with pytest.raises(CorruptObject, match="the length is an integer > 0"):
        StoredFile.of({"files": [{"sha256": DIGEST, "bytes": length}]})
    assert StoredFile.of({"files": [{"sha256": DIGEST, "bytes": 1}]}) == StoredFile(DIGEST, 1)
