"""Schemas of the documents that routes answer with, by name.

A schema names what a reader may rely on: what it requires is in every such document. Further fields may come beside.
A field is `name:type`. A type is one of `TYPES` or another schema's name; `[]` stands for a list of them, `{}` for an
object that has them by name, and `?` for one or null.
"""

from collections.abc import Mapping
from typing import Any

from factorize.api.access.key_register import KEY_ID
from factorize.encoding import DIGEST

Schema = dict[str, Any]

TYPES: dict[str, Schema] = {
    "text": {"type": "string"},
    "number": {"type": "number"},
    "integer": {"type": "integer"},
    "count": {"type": "integer", "minimum": 0},
    "flag": {"type": "boolean"},
    "time": {"type": "string", "format": "date-time"},
    "digest": {"type": "string", "pattern": f"^{DIGEST}$"},
    "key": {"type": "string", "pattern": KEY_ID},
    "state": {"type": "string", "enum": ["queued", "running", "done", "failed", "cancelled"]},
    "validity": {"type": "string", "enum": ["active", "expired", "revoked"]},
    "exactness": {"type": "string", "enum": ["exact", "upper_bound"]},
    "adjacency": {"type": "string", "enum": ["zero_out", "replace_one"]},
    "version": {"type": "integer", "const": 1},
    "any": {"type": "object", "additionalProperties": True},
}
_NULLABLE = ("text", "number", "count", "time")
"""Types whose schema names null beside theirs."""


def _type(text: str) -> Schema:
    if text.endswith("[]"):
        return {"type": "array", "items": _type(text[:-2])}
    if text.endswith("{}"):
        return {"type": "object", "additionalProperties": _type(text[:-2])}
    if text.endswith("?"):
        one = _type(text[:-1])
        null = {"type": [one.get("type"), "null"]}
        return {**one, **null} if text[:-1] in _NULLABLE else {"anyOf": [one, {"type": "null"}]}
    return dict(TYPES[text]) if text in TYPES else {"$ref": f"#/components/schemas/{text}"}


def _object(meaning: str, required: str, more: str = "", **meanings: str) -> Schema:
    """Return the schema of an object with further fields beside these, some of which have a description."""
    fields = dict(field.split(":") for field in f"{required} {more}".split())
    properties = {name: _type(text) for name, text in fields.items()}
    for name, words in meanings.items():
        properties[name]["description"] = words
    needed = [field.partition(":")[0] for field in required.split()]
    return {"type": "object", "description": meaning, "required": needed, "properties": properties}


_JOB = "spec_digest:digest state:state progress:Progress? error:JobError? submitted:time updated:time"
_NOISE = "epsilon:number? delta:number? rho:number? mu:number? noise_multiplier:number clip_norm:number"
_SIGMAS = "sigma_of_sums:number? sigma_of_means:number? divisor:number?"
_USE = (
    "mechanism:text sampling:text? loader:text noise_vectors:count rmse_at_privacy:number? seconds_per_step:number? "
    "spec:Spec spec_digest:digest next_command:text origin:origin"
)
_WHO = "name:text scopes:Scope[] quotas:KeyQuotas"

TYPES["residual"] = _object("Of B C - A.", "max_abs:number")
TYPES["place"] = _object("Where, and what is wrong there.", "pointer:text detail:text")
TYPES["origin"] = _object(
    "`solved` just now, or out of the `cache` or `mirror` at an address.", "place:text address:text?"
)
TYPES["estimate"] = _object("To solve.", "seconds:number bytes:count")

ANSWERS: Mapping[str, Schema] = {
    "Sensitivity": _object(
        "The sensitivity of C at clip norm 1 over the participations of the spec.",
        "value:number kind:exactness rule:text",
        "hex:text participation:any",
    ),
    "Loss": _object(
        "The error at that sensitivity and noise multiplier 1; null where it grows with the steps of an endless one.",
        "total_squared:number? mean_squared:number? rmse:number? max_error:number? last_iterate:number? "
        "objective:number?",
    ),
    "LowerBound": _object("What no matrix of its class goes below.", "objective:number rule:text"),
    "Certificate": _object(
        "The numbers that were recomputed, and for each what it is.",
        "sensitivity:Sensitivity loss:Loss lower_bound:LowerBound? class_lower_bound:LowerBound? relative_gap:number? "
        "residual:residual converged:flag warnings:text[]",
    ),
    "StoredMatrix": _object(
        "A matrix of the file.",
        "shape:count?[] structure:text tensors:text[] dtype:text sha256:digest",
        "bytes:count",
    ),
    "StoredFile": _object(
        "A file, at GET /v1/blobs/{sha256}.",
        "sha256:digest bytes:count",
        "chunk_bytes:count chunks:digest[] proof:any",
    ),
    "Manifest": _object(
        "A stored factorization.",
        "schema:version digest:digest spec_digest:digest spec:Spec certificate:Certificate matrices:StoredMatrix{} "
        "files:StoredFile[] solver:any created:text",
    ),
    "Progress": _object(
        "How far a solve is.",
        "",
        "iteration:count relative_gap:number? class_gap:number? seconds:number seconds_left:number? phase:text?",
    ),
    "JobError": _object("Why a job failed.", "type:text message:text"),
    "Job": _object("A solve and how far it is.", _JOB, "notes:text[]"),
    "FactorizationEntry": _object(
        "A job, or a stored result that no job here has made.",
        f"{_JOB} workload:text? digest:digest? summary:text",
    ),
    "FactorizationPage": _object(
        "A page of the list.",
        "items:FactorizationEntry[] next:text? whole:flag",
        next="`cursor` of the following page; null at the end.",
        whole="False while results of the store have yet to be looked at.",
    ),
    "CanonicalSpec": _object(
        "The spec in its canonical form, and what solving it takes.",
        "spec:Spec spec_digest:digest known:flag estimate:estimate notes:text[]",
    ),
    "QueryErrors": _object(
        "Standard deviations of queries at noise multiplier 1.",
        "queries:count[] errors:number[] independent:number[] rmse:number? lower_bound:number?",
    ),
    "Calibration": _object(
        "The noise for a privacy target.",
        f"{_NOISE} adjacency:adjacency sampling:text sensitivity:number sensitivity_kind:exactness "
        "sensitivity_rule:text",
        f"{_SIGMAS} participation:any exact:flag attack_advantage:number true_positive_rates:number{{}} claim:any "
        "claim_digest:text",
    ),
    "ComparedMechanism": _object(
        "A row of a comparison.",
        f"{_USE} parameters:any loss:Loss sensitivity:Sensitivity relative_gap:number? converged:flag seconds:number "
        "warnings:text[] calibration:Calibration?",
        _SIGMAS,
    ),
    "RefusedMechanism": _object("A mechanism that does not fit.", "mechanism:text reason:text"),
    "TakenRow": _object("The row to take.", "row:count? reason:text", "budget:count?"),
    "Comparison": _object(
        "All mechanisms that fit, the best first.",
        "spec:Spec objective:text lower_bound:LowerBound? budget:count? rows:ComparedMechanism[] "
        "refused:RefusedMechanism[] recommendation:TakenRow? recommendations:TakenRow[] seconds:number",
    ),
    "Advice": _object(
        "One mechanism for a training job, with its noise, what the loader does, its spec and code.",
        f"{_USE} job:any rate:any ranked_by:text code:text{{}} notes:text[] row:ComparedMechanism compared:any[] "
        "budgets:any[] table:Comparison",
    ),
    "PendingAnswer": _object("An answer that takes long, and how far it is.", "digest:digest state:text progress:any?"),
    "Prediction": _object(
        "A quantity, how the value stands to it, and what it rests on.",
        "quantity:text relation:text value:number? basis:text terms:number?{} assumptions:text[] source:text "
        "notes:text[] series:number?[]{}",
    ),
    "UploadedMatrix": _object("A matrix, for specs to name.", "sha256:digest shape:count[]"),
    "AccessKey": _object(
        "A key, without its secret.",
        f"id:key {_WHO} state:validity created:time expires:time revoked:time? own:flag",
        own="Whether it is the key that asks.",
    ),
    "AccessKeyWithToken": {
        "allOf": [
            _type("AccessKey"),
            _object("What its holder sends; it is in this answer and nowhere else.", "token:text"),
        ]
    },
    "AccessKeyPage": _object("A page of keys.", "items:AccessKey[] next:text?"),
    "Caller": _object(
        "Who asks.",
        f"owner:text? {_WHO} asks_for_keys:flag looks_after_keys:flag",
        owner="`key:<name>`, `oidc:<hash>`, or null where no key is asked for.",
        asks_for_keys="Whether the service asks every caller for a key.",
        looks_after_keys="Whether the caller may use the routes of keys here.",
    ),
    "Problem": _object(
        "What went wrong.",
        "type:text title:text status:integer detail:text request_id:text",
        "errors:place[]",
        type="/problems/<slug>; a slug never changes its meaning",
        detail="value, limit and way out",
    ),
    "Health": _object("That the process answers.", "status:text"),
    "Readiness": _object("Whether the service can work.", "status:text"),
}
"""By the name of the component."""
