"""The smallest n, from the spec to the store: solved, certified, proved from the bytes, published and read back."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cases import MECHANISMS

from factorize import parse_spec, solvers
from factorize.api.proof import inspect
from factorize.errors import UnsupportedProblem
from factorize.storage.store import Store, open_store

PARTICIPATIONS: tuple[dict[str, Any], ...] = ({"kind": "single"}, {"kind": "min_sep", "min_sep": 1})
TOO_SMALL = {"buffered_linear"}  # two buffers need n >= 4
REFUSED = {"dense", "semidefinite", "banded", "buffered_linear"}  # with several participations, by name


def document(name: str, n: int, participation: dict[str, Any]) -> dict[str, Any]:
    """A spec, with the mechanism's bands and restarts within n."""
    limits = {"bands": n, "restart_every": n}
    mechanism = {key: min(value, limits.get(key, value)) for key, value in MECHANISMS[name].items() if key in limits}
    return {
        "workload": {"kind": "prefix", "n": n},
        "mechanism": MECHANISMS[name] | mechanism,
        "participation": participation,
        "tolerance": 1e-3,
    }


def checked(path: Path, store: Store) -> dict[str, Any]:
    """What a publication asks of the checker, in this process."""
    answer = inspect(path, store.url, strict=True)
    assert {one["status"] for one in answer["claims"]} <= {"proved", "not_looked_at"}
    unseen = {one["claim"] for one in answer["claims"] if one["status"] == "not_looked_at"}
    assert unseen <= {"spec.mechanism", "certificate.converged"}
    return answer | {"seconds": 0.0}


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_is_published_at_the_smallest_sizes(name: str, n: int, tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for participation in PARTICIPATIONS:
        try:
            found = solvers.solve(parse_spec(document(name, n, participation)))
        except UnsupportedProblem:
            assert name in TOO_SMALL or (name in REFUSED and participation["kind"] != "single" and n > 1)
            continue
        digest = store.put(found, check=partial(checked, store=store))["digest"]
        again = store.load(digest)
        assert again.verify().sensitivity.value == found.certificate.sensitivity.value
        if n == 1:
            assert again.rows("C", 0, 1)[0, 0] * again.rows("B", 0, 1)[0, 0] == pytest.approx(1.0)
