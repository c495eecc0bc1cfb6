"""The routes of keys, for callers with the scope admin: list, show, make and take back; and who a caller is.

A token stands in the answer to the request that had it made, and in no other. Where a service asks for no keys, these
routes are closed: everyone on the machine could make one there, of a ledger that may be another service's too.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated, Any, Literal

from anyio.to_thread import run_sync
from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from factorize.api.access.caller import AccessKey, Caller
from factorize.api.access.key_register import KEY_ID, KeyRegister, KeyRequest, read_key_request
from factorize.api.http.access import ADMIN, READ
from factorize.api.http.answers import AskingCaller, RunningService, json_response
from factorize.api.http.problems import ProblemAnswer, problem_of
from factorize.api.http.request_guard import read_body
from factorize.api.http.schema import answers, json_body
from factorize.api.service import SolverService
from factorize.api.settings import Settings
from factorize.encoding import read_json
from factorize.errors import FactorizeError

_KEYS = "/v1/keys"
_NO_STORE = {"Cache-Control": "no-store"}
_Id = Annotated[str, Path(pattern=KEY_ID, description="Names the key; no secret.")]
_Cursor = Annotated[str | None, Query(pattern=KEY_ID, description="`next` of the page before.")]
router = APIRouter(default_response_class=Response)


@router.get("/v1/caller", responses=answers(200, document="Caller"), dependencies=READ)
async def get_caller(service: RunningService, caller: AskingCaller) -> Response:
    """Say who asks: name, scopes, quotas, and whether they may look after keys here."""
    document = {
        "owner": caller.owner or None,
        "name": caller.name,
        "scopes": sorted(caller.scopes),
        "quotas": caller.quotas.document(),
        "asks_for_keys": service.settings.asks_for_keys,
        "looks_after_keys": _closed(service.settings) is None and caller.sees_all,
    }
    return json_response(document, headers=_NO_STORE)


@router.get(_KEYS, responses=answers(200, 404, 422, document="AccessKeyPage"), dependencies=ADMIN)
async def list_keys(
    request: Request,
    service: RunningService,
    caller: AskingCaller,
    state: Annotated[Literal["active", "expired", "revoked"] | None, Query(description="Only such keys.")] = None,
    cursor: _Cursor = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="Keys per page.")] = 50,
) -> Response:
    """List keys, the newest first; no secrets."""
    register = _register(service, caller)
    found = await run_sync(partial(register.page, state=state, after=cursor, limit=limit + 1))
    following = found[limit - 1].id if len(found) > limit else None
    document = {"items": [_shown(key, caller) for key in found[:limit]], "next": following}
    return json_response(document, headers=_NO_STORE)


@router.post(
    _KEYS,
    status_code=201,
    openapi_extra=json_body("KeyRequest"),
    responses=answers(201, 400, 413, 422, document="AccessKeyWithToken"),
    dependencies=ADMIN,
)
async def post_key(request: Request, service: RunningService, caller: AskingCaller) -> Response:
    """Make a key, whose token is in this answer and nowhere else.

    It ends with the caller's token of an issuer at the latest: who may no longer ask there keeps no key here.
    """
    register = _register(service, caller)
    wish = await _read(request)
    make = partial(register.create, days=wish.days, quotas=wish.quotas, latest=caller.ends)
    key, token = await run_sync(make, wish.name, wish.scopes)
    headers = {**_NO_STORE, "Location": f"{_KEYS}/{key.id}"}
    return json_response({**_shown(key, caller), "token": token.text}, 201, headers)


@router.get(f"{_KEYS}/{{key_id}}", responses=answers(200, 404, 422, document="AccessKey"), dependencies=ADMIN)
async def get_key(request: Request, service: RunningService, caller: AskingCaller, key_id: _Id) -> Response:
    """Give one key: scopes, end and quotas; no secret."""
    key = await run_sync(_register(service, caller).get, key_id)
    return json_response(_shown(key, caller), headers=_NO_STORE)


@router.post(f"{_KEYS}/{{key_id}}/revoke", responses=answers(200, 404, 422, document="AccessKey"), dependencies=ADMIN)
async def revoke_key(request: Request, service: RunningService, caller: AskingCaller, key_id: _Id) -> Response:
    """Take a key back for ever; every service on the ledger refuses it within a second."""
    key = await run_sync(_register(service, caller).revoke, key_id)
    return json_response(_shown(key, caller), headers=_NO_STORE)


def _closed(settings: Settings) -> str | None:
    """Return why keys are not looked after here, or None."""
    if not settings.asks_for_keys:
        return "this service asks for no key, so none is made here; set require_keys, or use `factorize keys`"
    if not settings.key_routes:
        return "by the setting key_routes keys are changed by `factorize keys` on the machine of the service alone"
    return None


def _register(service: SolverService, caller: Caller) -> KeyRegister:
    closed = _closed(service.settings)
    if closed is not None:
        raise ProblemAnswer("keys-closed", closed)
    return service.keys(caller.actor)


def _shown(key: AccessKey, caller: Caller) -> dict[str, Any]:
    return {**key.document(time.time()), "own": key.id == caller.key}


async def _read(request: Request) -> KeyRequest:
    body = await read_body(request)
    try:
        return read_key_request(read_json(body))
    except FactorizeError as error:
        problem = problem_of(error, body=body)
        if problem.slug == "invalid-spec":  # it is no spec, and its fields are named all the same
            problem = ProblemAnswer("invalid-parameter", problem.detail, extra=problem.extra)
        raise problem from error
