"""The bill of materials against the schema of CycloneDX, which the library of its makers holds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from house import ROOT

from release.bill_of_materials import bill


def found_wrong(document: dict[str, Any]) -> Any:
    """The first thing that the schema does not allow, or None."""
    return JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(document))


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return bill(ROOT / "requirements.lock", version="1.2.3", commit="c" * 40, second=1_700_000_000)


def test_the_bill_is_cyclonedx(document: dict[str, Any]) -> None:
    assert found_wrong(document) is None


@pytest.mark.parametrize(
    "change",
    [
        {"serialNumber": "urn:uuid:1"},
        {"components": [{"type": "library"}]},
        {"dependencies": [{"dependsOn": []}]},
        {"made by": "hand"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_is_no_cyclonedx_is_seen(document: dict[str, Any], change: dict[str, Any]) -> None:
    assert found_wrong(document | change) is not None


def test_a_hash_that_is_none_is_seen(document: dict[str, Any]) -> None:
    changed = json.loads(json.dumps(document))
    changed["components"][0]["externalReferences"][0]["hashes"][0]["content"] = "none"
    assert found_wrong(changed) is not None
