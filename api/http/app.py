"""The application: the service, its limits and its routes put together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

import factorize.api.http.console
import factorize.api.http.key_routes
import factorize.api.http.matrices
import factorize.api.http.probes
import factorize.api.http.questions
import factorize.api.http.routes
from factorize import __version__
from factorize.api.access.caller import KeyQuotas
from factorize.api.access.gate import Gate, IssuerTokens
from factorize.api.http.access import rows_of
from factorize.api.http.problems import install
from factorize.api.http.questions import KeptAnswers
from factorize.api.http.request_guard import AuditTrail, RequestGuard
from factorize.api.http.schema import openapi_document
from factorize.api.http.work_gate import StreamLimit, WorkGate
from factorize.api.monitoring import HttpCounts
from factorize.api.service import SolverService
from factorize.api.settings import Settings
from factorize.api.telemetry import of_application

_MODULES = {
    factorize.api.http.routes: "factorizations",
    factorize.api.http.matrices: "matrices",
    factorize.api.http.questions: "questions",
    factorize.api.http.key_routes: "keys",
    factorize.api.http.probes: "service",
    factorize.api.http.console: "page",
}
"""Routes, and the tag of each in the OpenAPI document."""
MOST_WORKING = 1024
"""Requests that compute at once, those in line included."""
MOST_PER_KEY = 64
"""Of these those of one key, and as many streams of events of one key, or of one address without keys."""
ROUTES = rows_of(module.router for module in _MODULES)
"""Every route with what it asks of its callers."""


class Application(FastAPI):
    """The application, whose OpenAPI document is made when it is first asked for."""

    def openapi(self) -> dict[str, Any]:
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
            await asyncio.to_thread(owned.close)

    app = Application(
        title="factorize",
        version=__version__,
        summary="Certified matrix factorizations for private training with correlated noise",
        openapi_url=None,  # a route of our own asks for a key
        docs_url=None,  # their pages load scripts from another site
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
        redirect_slashes=False,  # a redirect would repeat the Host header
        lifespan=lifespan,
        telemetry=of_application(owned.tracer_provider),
    )
    app.state.service = owned
    app.state.work_gate = WorkGate(MOST_WORKING, MOST_PER_KEY)
    app.state.kept_answers = KeptAnswers()
    app.state.http_counts = HttpCounts()
    app.state.streams = StreamLimit(MOST_PER_KEY)
    install(app)
    for module, tag in _MODULES.items():
        app.include_router(module.router, tags=[tag])
    foreign = IssuerTokens(settings.issuers).caller if settings.issuers else None
    quotas = KeyQuotas(**{name: getattr(settings, name) for name in KeyQuotas.model_fields})
    app.state.gate = Gate(owned.register, foreign, quotas)
    app.add_middleware(RequestGuard, settings=settings, counts=app.state.http_counts)
    app.add_middleware(AuditTrail, log=owned.audit, all_requests=settings.audit_requests)
    return app
