"""`factorize serve`: the HTTP service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from factorize.api.terminal.options import Database, Output, StoreUrl
from factorize.api.terminal.output import OutputForm, emit, remark
from factorize.errors import InvalidParameter, StoreUnavailable

if TYPE_CHECKING:
    import uvicorn

    from factorize.api.settings import Settings

Host = Annotated[
    str | None, typer.Option("--host", help="Address to listen on. Default: 127.0.0.1.", show_default=False)
]
Port = Annotated[
    int | None, typer.Option("--port", help="Port; 0 takes a free one. Default: 8000.", show_default=False)
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        "--scheduler", metavar="ADDRESS", help="dask scheduler. Default: one in this process.", show_default=False
    ),
]


def serve(
    host: Host = None,
    port: Port = None,
    database: Database = None,
    scheduler: Scheduler = None,
    store: StoreUrl = None,
    output: Output = OutputForm.TEXT,
) -> None:
    """Run the service until it is interrupted; its address is the first line on stdout."""
    from factorize.api.http.server import address, listen
    from factorize.api.pace import measured_pace
    from factorize.api.settings import load_settings

    settings = load_settings(host=host, port=port, database=database, scheduler=scheduler, store=store)
    try:
        listener = listen(settings.host, settings.port)
    except OSError as error:
        raise InvalidParameter(
            f"cannot listen on {settings.host}, port {settings.port}: {error.strerror}; choose another --port",
            field="port",
        ) from None
    with listener:
        measured_pace()  # once on a machine, for the estimates that are asked of the service
        url = address(listener)
        running = _opened(settings)
        listener.listen()  # whoever reads the address may connect at once, and waits until the service has started
        emit(output, {"url": url, "store": settings.store}, f"serving {url}")
        remark(f"results in {settings.store}; Ctrl-C ends")
        running.run(sockets=[listener])


def _opened(settings: Settings) -> uvicorn.Server:
    from factorize.api.http.server import server

    try:
        return server(settings)
    except StoreUnavailable as error:
        raise InvalidParameter(f"store or database cannot be opened: {error}", field="store") from None
