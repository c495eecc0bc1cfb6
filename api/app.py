"""The application: the service, its limits and its routes put together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

import api.calibrations
import api.comparisons
import api.console
import api.downloads
import api.events
import api.matrices
import api.predictions
import api.probes
import api.routes
from api.errors import install
from api.limits import RequestGuard
from api.schema import describe
from api.service import Service
from api.settings import Settings
from factorize import __version__

_MODULES = (
    api.routes,
    api.events,
    api.downloads,
    api.matrices,
    api.predictions,
    api.comparisons,
    api.calibrations,
    api.probes,
    api.console,
)


def create_app(settings: Settings, *, service: Service | None = None) -> FastAPI:
    """Return the ASGI application.

    The engine starts and ends with the application's lifespan.

    Args:
        settings: where things are, and the limits.
        service: one that exists already and is not started; by default it is made from the settings.

    Raises:
        StoreUnavailable: store or database cannot be opened.
    """
    owned = service or Service(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await asyncio.to_thread(owned.start)
        try:
            yield
        finally:
            await asyncio.to_thread(owned.close)

    app = FastAPI(
        title="factorize",
        version=__version__,
        summary="Certified matrix factorizations for private training with correlated noise",
        docs_url=None,  # their pages load scripts from another site
        redoc_url=None,
        redirect_slashes=False,  # a redirect would repeat the Host header
        lifespan=lifespan,
    )
    app.state.service = owned
    install(app)
    for module in _MODULES:
        app.include_router(module.router)
    describe(app)
    app.add_middleware(RequestGuard, settings=settings)
    return app
