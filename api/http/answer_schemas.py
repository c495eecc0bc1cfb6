"""Schemas of the documents that routes answer with, by name.

A schema names what a reader may rely on: what it requires is in every such document. Further fields may come beside.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from factorize.api.access.key_register import KEY_ID
from factorize.encoding import DIGEST

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_TEXTS: Schema = {"type": "array", "items": _TEXT}
_NUMBER: Schema = {"type": "number"}
_NUMBERS: Schema = {"type": "array", "items": _NUMBER}
_MAYBE_NUMBER: Schema = {"type": ["number", "null"]}
_MAYBE_TEXT: Schema = {"type": ["string", "null"]}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_MAYBE_COUNT: Schema = {"type": ["integer", "null"], "minimum": 0}
_FLAG: Schema = {"type": "boolean"}
_TIME: Schema = {"type": "string", "format": "date-time"}
_DIGEST: Schema = {"type": "string", "pattern": f"^{DIGEST}$"}
_STATE: Schema = {"type": "string", "enum": ["queued", "running", "done", "failed", "cancelled"]}
_KINDS: Schema = {"type": "string", "enum": ["exact", "upper_bound"]}
_ANY: Schema = {"type": "object", "additionalProperties": True}


def _to(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _maybe(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _list(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def _table(schema: Schema) -> Schema:
    return {"type": "object", "additionalProperties": schema}


def _object(meaning: str, required: Mapping[str, Schema], more: Mapping[str, Schema] | None = None) -> Schema:
    """Return the schema of an object with further fields beside these."""
    properties = {**required, **(more or {})}
    return {"type": "object", "description": meaning, "required": list(required), "properties": properties}


_JOB = {
    "spec_digest": _DIGEST,
    "state": _STATE,
    "progress": _maybe(_to("Progress")),
    "error": _maybe(_to("JobError")),
    "submitted": _TIME,
    "updated": _TIME,
}
_LISTED = {**_JOB, "workload": _MAYBE_TEXT, "digest": _maybe(_DIGEST), "summary": _TEXT}
_NOISE = {
    "epsilon": _MAYBE_NUMBER,
    "delta": _MAYBE_NUMBER,
    "rho": _MAYBE_NUMBER,
    "mu": _MAYBE_NUMBER,
    "noise_multiplier": _NUMBER,
    "clip_norm": _NUMBER,
    "adjacency": {"type": "string", "enum": ["zero_out", "replace_one"]},
}
_SIGMAS = {"sigma_of_sums": _MAYBE_NUMBER, "sigma_of_means": _MAYBE_NUMBER, "divisor": _MAYBE_NUMBER}
_USE = {
    "mechanism": _TEXT,
    "sampling": _MAYBE_TEXT,
    "loader": _TEXT,
    "noise_vectors": _COUNT,
    "rmse_at_privacy": _MAYBE_NUMBER,
    "seconds_per_step": _MAYBE_NUMBER,
    "spec": _to("Spec"),
    "spec_digest": _DIGEST,
    "next_command": _TEXT,
}

_SCOPES = _list(_to("Scope"))
_WHO = {"name": _TEXT, "scopes": _SCOPES, "quotas": _to("KeyQuotas")}

ANSWERS: Mapping[str, Schema] = {
    "Sensitivity": _object(
        "The sensitivity of C at clip norm 1 over the participations of the spec.",
        {"value": _NUMBER, "kind": _KINDS, "rule": _TEXT},
        {"hex": _TEXT, "participation": _ANY},
    ),
    "Loss": _object(
        "The error at that sensitivity and noise multiplier 1; null where it grows with the steps of an endless one.",
        {
            name: _MAYBE_NUMBER
            for name in ("total_squared", "mean_squared", "rmse", "max_error", "last_iterate", "objective")
        },
    ),
    "LowerBound": _object("What no matrix of its class goes below.", {"objective": _NUMBER, "rule": _TEXT}),
    "Certificate": _object(
        "The numbers that were recomputed, and for each what it is.",
        {
            "sensitivity": _to("Sensitivity"),
            "loss": _to("Loss"),
            "lower_bound": _maybe(_to("LowerBound")),
            "class_lower_bound": _maybe(_to("LowerBound")),
            "relative_gap": _MAYBE_NUMBER,
            "residual": _object("Of B C - A.", {"max_abs": _NUMBER}),
            "converged": _FLAG,
            "warnings": _TEXTS,
        },
    ),
    "StoredMatrix": _object(
        "A matrix of the file.",
        {"shape": _list(_MAYBE_COUNT), "structure": _TEXT, "tensors": _TEXTS, "dtype": _TEXT, "sha256": _DIGEST},
        {"bytes": _COUNT},
    ),
    "StoredFile": _object(
        "A file, at GET /v1/blobs/{sha256}.",
        {"sha256": _DIGEST, "bytes": _COUNT},
        {"chunk_bytes": _COUNT, "chunks": _list(_DIGEST), "proof": _ANY},
    ),
    "Manifest": _object(
        "A stored factorization.",
        {
            "schema": {"type": "integer", "const": 1},
            "digest": _DIGEST,
            "spec_digest": _DIGEST,
            "spec": _to("Spec"),
            "certificate": _to("Certificate"),
            "matrices": _table(_to("StoredMatrix")),
            "files": _list(_to("StoredFile")),
            "solver": _ANY,
            "created": _TEXT,
        },
    ),
    "Progress": _object(
        "How far a solve is.",
        {},
        {
            "iteration": _COUNT,
            "relative_gap": _MAYBE_NUMBER,
            "class_gap": _MAYBE_NUMBER,
            "seconds": _NUMBER,
            "seconds_left": _MAYBE_NUMBER,
            "phase": _MAYBE_TEXT,
        },
    ),
    "JobError": _object("Why a job failed.", {"type": _TEXT, "message": _TEXT}),
    "Job": _object("A solve and how far it is.", _JOB, {"notes": _TEXTS}),
    "FactorizationEntry": _object("A job, or a stored result that no job here has made.", _LISTED),
    "FactorizationPage": _object(
        "A page of the list.",
        {
            "items": _list(_to("FactorizationEntry")),
            "next": {"type": ["string", "null"], "description": "`cursor` of the following page; null at the end."},
            "whole": {"type": "boolean", "description": "False while results of the store have yet to be looked at."},
        },
    ),
    "CanonicalSpec": _object(
        "The spec in its canonical form, and what solving it takes.",
        {
            "spec": _to("Spec"),
            "spec_digest": _DIGEST,
            "known": _FLAG,
            "estimate": _object("To solve.", {"seconds": _NUMBER, "bytes": _COUNT, "until_done": _NUMBER}),
            "notes": _TEXTS,
        },
    ),
    "QueryErrors": _object(
        "Standard deviations of queries at noise multiplier 1.",
        {
            "queries": _list(_COUNT),
            "errors": _NUMBERS,
            "independent": _NUMBERS,
            "rmse": _MAYBE_NUMBER,
            "lower_bound": _MAYBE_NUMBER,
        },
    ),
    "Calibration": _object(
        "The noise for a privacy target.",
        {**_NOISE, "sampling": _TEXT, "sensitivity": _NUMBER, "sensitivity_kind": _KINDS, "sensitivity_rule": _TEXT},
        {
            **_SIGMAS,
            "participation": _ANY,
            "exact": _FLAG,
            "attack_advantage": _NUMBER,
            "true_positive_rates": _table(_NUMBER),
            "claim": _ANY,
            "claim_digest": _TEXT,
        },
    ),
    "ComparedMechanism": _object(
        "A row of a comparison.",
        {
            **_USE,
            "parameters": _ANY,
            "loss": _to("Loss"),
            "sensitivity": _to("Sensitivity"),
            "relative_gap": _MAYBE_NUMBER,
            "converged": _FLAG,
            "seconds": _NUMBER,
            "warnings": _TEXTS,
            "calibration": _maybe(_to("Calibration")),
        },
        _SIGMAS,
    ),
    "RefusedMechanism": _object("A mechanism that does not fit.", {"mechanism": _TEXT, "reason": _TEXT}),
    "TakenRow": _object("The row to take.", {"row": _MAYBE_COUNT, "reason": _TEXT}, {"budget": _MAYBE_COUNT}),
    "Comparison": _object(
        "All mechanisms that fit, the best first.",
        {
            "spec": _to("Spec"),
            "objective": _TEXT,
            "lower_bound": _maybe(_to("LowerBound")),
            "budget": _MAYBE_COUNT,
            "rows": _list(_to("ComparedMechanism")),
            "refused": _list(_to("RefusedMechanism")),
            "recommendation": _maybe(_to("TakenRow")),
            "recommendations": _list(_to("TakenRow")),
            "seconds": _NUMBER,
        },
    ),
    "Advice": _object(
        "One mechanism for a training job, with its noise, what the loader does, its spec and code.",
        {
            **_USE,
            "job": _ANY,
            "code": _table(_TEXT),
            "notes": _TEXTS,
            "row": _to("ComparedMechanism"),
            "compared": _list(_ANY),
            "budgets": _list(_ANY),
            "table": _to("Comparison"),
        },
    ),
    "Prediction": _object(
        "A quantity, how the value stands to it, and what it rests on.",
        {
            "quantity": _TEXT,
            "relation": _TEXT,
            "value": _MAYBE_NUMBER,
            "basis": _TEXT,
            "terms": _table(_MAYBE_NUMBER),
            "assumptions": _TEXTS,
            "source": _TEXT,
            "notes": _TEXTS,
            "series": _table(_list(_MAYBE_NUMBER)),
        },
    ),
    "UploadedMatrix": _object("A matrix, for specs to name.", {"sha256": _DIGEST, "shape": _list(_COUNT)}),
    "AccessKey": _object(
        "A key, without its secret.",
        {
            "id": {"type": "string", "pattern": KEY_ID},
            **_WHO,
            "state": {"type": "string", "enum": ["active", "expired", "revoked"]},
            "created": _TIME,
            "expires": _TIME,
            "revoked": {"type": ["string", "null"], "format": "date-time"},
            "own": {"type": "boolean", "description": "Whether it is the key that asks."},
        },
    ),
    "AccessKeyWithToken": {
        "allOf": [
            _to("AccessKey"),
            _object("What its holder sends; it is in this answer and nowhere else.", {"token": _TEXT}),
        ]
    },
    "AccessKeyPage": _object("A page of keys.", {"items": _list(_to("AccessKey")), "next": _MAYBE_TEXT}),
    "Caller": _object(
        "Who asks.",
        {
            "owner": {
                "type": ["string", "null"],
                "description": "`key:<name>`, `oidc:<hash>`, or null where no key is asked for.",
            },
            **_WHO,
            "asks_for_keys": {"type": "boolean", "description": "Whether the service asks every caller for a key."},
            "looks_after_keys": {
                "type": "boolean",
                "description": "Whether the caller may use the routes of keys here.",
            },
        },
    ),
    "Health": _object("That the process answers.", {"status": _TEXT}),
    "Readiness": _object("Whether the service can work.", {"status": _TEXT}),
}
"""By the name of the component."""
