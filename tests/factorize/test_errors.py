"""Errors of another process, such as a pool's, arrive as they were raised."""

from __future__ import annotations

import copy
import pickle

import pytest

from factorize.errors import FactorizeError, InvalidSpec, MissingExtra, NotFound, Revoked, ServiceError

RAISED = [
    InvalidSpec.at("n is required", "/workload"),
    MissingExtra("a picture", "matplotlib"),
    NotFound("no such result"),
    Revoked("revoked", digest="0" * 64, reason="wrong"),
    ServiceError("busy", status=429, problem={"type": "busy"}, retry_after=2.0),
]


@pytest.mark.parametrize("raised", RAISED, ids=lambda raised: type(raised).__name__)
def test_an_error_may_be_sent_to_another_process(raised: FactorizeError) -> None:
    for came in (pickle.loads(pickle.dumps(raised)), copy.deepcopy(raised)):
        assert (type(came), str(came), vars(came)) == (type(raised), str(raised), vars(raised))
