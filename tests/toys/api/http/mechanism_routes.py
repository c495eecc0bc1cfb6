"""Mechanisms over HTTP: the names that a spec may give."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from factorize.api.http.access import OpenCall
from factorize.api.http.answers import json_response
from factorize.api.http.schema import answers
from factorize.solvers.register import SOLVERS

router = APIRouter(default_response_class=Response)


@router.get("/v1/mechanisms", responses=answers(200, schema={"type": "array", "items": {"type": "string"}}))
async def list_mechanisms(_call: OpenCall) -> Response:
    """List the mechanisms that have a solver."""
    return json_response(sorted(SOLVERS))
