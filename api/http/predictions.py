"""The route of predictions: plain questions with plain answers, nothing solved and nothing stored."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from factorize.api.http.answers import AskingCaller, RunningService, find, json_response
from factorize.api.http.gateway.access import READ
from factorize.api.http.gateway.questions import answered
from factorize.api.http.problems import problem_of
from factorize.api.http.request_guard import read_body
from factorize.api.http.schema import answers, json_body
from factorize.encoding import check_digest, read_json
from factorize.errors import FactorizeError, InvalidSpec, Violation

router = APIRouter(default_response_class=Response)


@router.post(
    "/v1/predict",
    openapi_extra=json_body("PredictionRequest"),
    responses=answers(200, 400, 404, 410, 413, 422, 429, 503, document="Prediction"),
    dependencies=READ,
)
async def predict(request: Request, service: RunningService, caller: AskingCaller) -> Response:
    """Answer a question of `factorize.predict`, about a stored factorization where it is about one."""
    from factorize.predict import parse_question

    body = await read_body(request, limit=service.settings.max_json_bytes)
    try:
        question, name = _question_in(body)
        parse_question(question)
        about = None if name is None else await find(service, check_digest(name), caller)
    except FactorizeError as error:
        raise problem_of(error, body=body) from error
    return json_response(await answered(request, service, caller, question, about))


def _question_in(body: bytes) -> tuple[dict[str, Any], str | None]:
    """Return the question and the digest of the factorization that it is about.

    Raises:
        InvalidSpec: the body has other fields, or no question.
    """
    document = read_json(body)
    if not isinstance(document, dict):
        raise InvalidSpec([Violation("", "a request is a JSON object")])
    unknown = sorted(set(document) - {"question", "factorization"})
    name = document.get("factorization")
    problems = [Violation(f"/{field[:40]}", "unknown field; use question and factorization") for field in unknown]
    if not isinstance(document.get("question"), dict):
        problems.append(Violation("/question", "a question is a JSON object with its kind; docs/predict.md lists them"))
    if name is not None and not isinstance(name, str):
        problems.append(Violation("/factorization", "a factorization is named by its digest or spec digest, a string"))
    if problems:
        raise InvalidSpec(problems)
    return document["question"], name
