"""The application: the service, its limits and its routes put together, and the web page, which holds no data.

The page is one HTML file, its style and its scripts, all from this origin.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files

from fastapi import APIRouter, FastAPI, Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from factorize import __version__
from factorize.api.access.caller import KeyQuotas
from factorize.api.access.gate import Gate, IssuerTokens
from factorize.api.http import matrices, operator_routes, questions, routes
from factorize.api.http.access import OpenCall, rows_of
from factorize.api.http.answers import compressed_response
from factorize.api.http.pending import PendingAnswers
from factorize.api.http.problems import HANDLERS, ProblemAnswer
from factorize.api.http.questions import KEPT_BYTES
from factorize.api.http.request_guard import HttpCounts, RequestGuard
from factorize.api.http.schema import openapi_document
from factorize.api.http.work_gate import WorkGate
from factorize.api.jobs.long_answers import LongAnswers
from factorize.api.service import SolverService
from factorize.api.settings import Settings
from factorize.api.telemetry import of_application
from factorize.storage.blobs import Cache

_MEDIA = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
# Scripts and styles are files of this origin; no text becomes a script (trusted types), and nothing frames the page.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
MAX_REQUESTS_AT_WORK = 1024
"""The most requests that compute at once, those in line included."""
MAX_REQUESTS_PER_KEY = 64
"""The most of these of one key, and the most streams of events of one key, or of one address without keys."""


_HERE = files(__package__) / "console"
FILES = {entry.name: entry.read_bytes() for entry in (_HERE / "static").iterdir()}
"""The files that the page loads, by name."""
_PAGE = (_HERE / "page.html").read_bytes()


def _file(request: Request, name: str, body: bytes) -> Response:
    """Return a file of the page, or 304 where the browser has it."""
    media = _MEDIA[name.rpartition(".")[2]]
    return compressed_response(request, body, {"Content-Security-Policy": POLICY}, f"{media}; charset=utf-8")


page = APIRouter(default_response_class=Response)


@page.get("/", include_in_schema=False)
async def console(call: OpenCall) -> Response:
    """Give the page."""
    return _file(call.request, "page.html", _PAGE)


@page.get("/page/{name}", include_in_schema=False)
async def page_file(call: OpenCall, name: str) -> Response:
    """Give a script, style or picture of the page."""
    if name not in FILES:
        raise ProblemAnswer("not-found", "the page has no such file")
    return _file(call.request, name, FILES[name])


_ROUTERS = {
    "factorizations": routes.router,
    "matrices": matrices.router,
    "questions": questions.router,
    "keys": operator_routes.keys,
    "service": operator_routes.probes,
    "page": page,
}
"""The routers by the tag of their routes in the OpenAPI document."""


def _add_heads(router: APIRouter) -> None:
    """Answer HEAD wherever GET is answered; the server leaves the body out."""
    for route in [route for route in router.routes if isinstance(route, APIRoute)]:
        if "GET" in (route.methods or ()):
            router.add_api_route(
                route.path,
                route.endpoint,
                methods=["HEAD"],
                dependencies=route.dependencies,
                include_in_schema=False,
                name=f"head_{route.name}",
            )


for _router in _ROUTERS.values():
    _add_heads(_router)
ROUTES = rows_of(_ROUTERS.values())
"""Every route with what it asks of its callers."""


class Application(FastAPI):
    """The application, whose OpenAPI document is made when it is first asked for."""

    def openapi(self) -> dict[str, object]:
        """Return the OpenAPI document."""
        if self.openapi_schema is None:
            keys = self.state.service.settings.asks_for_keys
            self.openapi_schema = openapi_document(self, ROUTES, keys=keys)
        return self.openapi_schema


def create_app(settings: Settings, *, service: SolverService | None = None) -> FastAPI:
    """Return the ASGI application.

    The engine starts and ends with the application's lifespan.

    Args:
        settings: where things are, and the limits.
        service: one that exists already and is not started; by default it is made from the settings.

    Raises:
        StoreUnavailable: store or database cannot be opened.
    """
    owned = service or SolverService(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await asyncio.to_thread(owned.start)
        try:
            yield
        finally:
            await app.state.pending_answers.close()
            await asyncio.to_thread(owned.close)

    app = Application(
        title="factorize",
        version=__version__,
        summary="Certified matrix factorizations for private training with correlated noise",
        openapi_url=None,  # a route of our own asks for a key; and pages on it load scripts from another site
        generate_unique_id_function=lambda route: route.name,
        redirect_slashes=False,  # a redirect would repeat the Host header
        lifespan=lifespan,
        exception_handlers=HANDLERS,
        telemetry=of_application(),
    )
    app.state.service = owned
    app.state.work_gate = WorkGate(MAX_REQUESTS_AT_WORK, MAX_REQUESTS_PER_KEY)
    app.state.kept_answers = Cache(KEPT_BYTES, len)
    app.state.pending_answers = PendingAnswers(LongAnswers(owned.ledger.engine))
    counts = HttpCounts(owned.counts)
    owned.counts.register(operator_routes.Gauges(owned, app.state.work_gate))
    for tag, router in _ROUTERS.items():
        app.include_router(router, tags=[tag])
    foreign = IssuerTokens(settings.issuers).caller if settings.issuers else None
    quotas = KeyQuotas(**{name: getattr(settings, name) for name in KeyQuotas.model_fields})
    app.state.gate = Gate(owned.register, foreign, quotas)
    app.state.admissions = {}
    app.add_middleware(RequestGuard, settings=settings, counts=counts, audit=owned.audit)
    return app
