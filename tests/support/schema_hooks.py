"""What Schemathesis cannot take from the OpenAPI document: specs that fit together, and a matrix of the size that is said.

Schemathesis imports this by the line `hooks` of tests/contract/schemathesis.toml.
"""

from __future__ import annotations

import struct
from typing import Any

import schemathesis
from hypothesis import strategies as st

KNOWN = {"workload": {"kind": "prefix", "n": 6}, "mechanism": {"kind": "square_root"}}
"""A spec that is stored before the run."""
UNKNOWN = [{"workload": {"kind": "prefix", "n": n}, "mechanism": {"kind": "dense"}} for n in (4, 5, 7)]
MATRIX = struct.pack("<4d", 1.0, 0.0, 0.5, 1.0)


@schemathesis.hook
def before_generate_body(context: Any, strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Make every second spec a good one."""
    if context.operation.path in ("/v1/factorizations", "/v1/canonicalize"):
        return st.one_of(st.sampled_from([KNOWN, *UNKNOWN]), strategy)
    return strategy


@schemathesis.hook
def map_case(context: Any, case: Any) -> Any:
    """Give most matrices as many numbers as the query says."""
    if context.operation.path == "/v1/matrices" and len(repr(case.body)) % 4:
        case.body, case.query = MATRIX, {"rows": 2, "columns": 2}
    return case


@schemathesis.check
def every_answer_has_its_id(_context: Any, answer: Any, _case: Any) -> None:
    """See that a problem states the id of the header."""
    (name,) = answer.headers["x-request-id"]
    assert answer.status_code < 400 or answer.json()["request_id"] == name
