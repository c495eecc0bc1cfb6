"""Callers do not see each other's jobs and uploads: every route by every role, as if the name were nobody's."""

from __future__ import annotations

import os

import pytest
from cross_probes import LIST, NAMING, UNNAMED, ProbeCount, probes_of

from factorize.api.access.caller import Scope
from factorize.api.http.app import ROUTES

PROBES = int(os.environ.get("PROBES", "400"))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> ProbeCount:
    return probes_of(tmp_path_factory.mktemp("probed"), PROBES, 0)


def test_every_route_says_where_a_name_stands_in_its_requests() -> None:
    """A new route fails here until it is probed by a name, or said to take none."""
    for row in ROUTES:
        in_path = "{name}" in row.path or "{sha256}" in row.path
        named = in_path or (row.method, row.path) in NAMING or row.path == LIST
        assert named is (row.path not in UNNAMED) or row.path == "/page/{name}", row
    assert {path for path in UNNAMED} <= {row.path for row in ROUTES}
    assert set(NAMING) <= {(row.method, row.path) for row in ROUTES}


def test_no_probe_tells_what_is_of_others_from_what_is_not_there(found: ProbeCount) -> None:
    assert found.sent == PROBES and found.leaks == []


def test_every_cell_of_route_and_role_was_probed(found: ProbeCount) -> None:
    roles = {"nobody", "two", *(scope.value for scope in Scope if scope is not Scope.ADMIN)}
    assert found.cells == {(row.method, row.path, role) for row in ROUTES for role in roles}
