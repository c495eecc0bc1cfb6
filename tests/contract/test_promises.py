"""The table of promises: every test that it names exists, and every contract test is named."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def test_every_promise_is_held_by_tests_that_exist() -> None:
    rows = [line for line in (HERE / "README.md").read_text().splitlines() if line.startswith("| ")][1:]
    names = [re.findall(r"`(tests/[\w/]+\.py)`", row) for row in rows if not row.startswith("| ---")]
    assert len(names) > 20 and all(names)
    missing = [name for row in names for name in row if not (ROOT / name).is_file()]
    assert not missing, f"{missing} are gone: name what holds their promises in tests/contract/README.md"
