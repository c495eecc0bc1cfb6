"""The bill of materials against the schema of CycloneDX, which the library of its makers holds."""

from __future__ import annotations

import json

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from house import ROOT

from release.bill_of_materials import bill


def test_the_bill_is_cyclonedx() -> None:
    document = bill(ROOT / "requirements.lock", version="1.2.3", commit="c" * 40, second=1_700_000_000)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(document)) is None
