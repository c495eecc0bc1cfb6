"""`factorize serve`: the HTTP service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from factorize.api.terminal.options import Database, LogFormat, Output, StoreUrl
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
TlsCertificate = Annotated[
    str | None,
    typer.Option("--tls-certificate", metavar="FILE", help="Speak HTTPS: the certificate.", show_default=False),
]
TlsKey = Annotated[str | None, typer.Option("--tls-key", metavar="FILE", help="Its private key.", show_default=False)]
FIRST_KEY = "first"


def serve(
    host: Host = None,
    port: Port = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    database: Database = None,
    scheduler: Scheduler = None,
    log_format: LogFormat = None,
    store: StoreUrl = None,
    output: Output = OutputForm.TEXT,
) -> None:
    """Run the service until it is interrupted; its address is the first line on stdout.

    Where callers need keys and there is none yet, a first key is made, which may do everything, and shown this once.
    """
    from factorize.api.http.server import address, listen
    from factorize.api.measures.pace import measured_pace
    from factorize.api.settings import load_settings
    from factorize.api.telemetry.log_lines import log_to_stderr

    settings = load_settings(
        host=host,
        port=port,
        https_certificate=tls_certificate,
        https_key=tls_key,
        database=database,
        scheduler=scheduler,
        store=store,
        log_format=log_format,
    )
    log_to_stderr(settings.log_format)
    try:
        listener = listen(settings.host, settings.port)
    except OSError as error:
        raise InvalidParameter(
            f"cannot listen on {settings.host}, port {settings.port}: {error.strerror}; choose another --port",
            field="port",
        ) from None
    with listener:
        measured_pace()  # once on a machine, for the estimates that are asked of the service
        url = address(listener, "http" if settings.https_certificate is None else "https")
        running, token = _opened(settings)
        listener.listen()  # whoever reads the address may connect at once, and waits until the service has started
        document = {"url": url, "store": settings.store}
        emit(output, document if token is None else {**document, "first_key": token}, f"serving {url}")
        if token is not None and output is OutputForm.TEXT:
            remark(f"first key, shown this once, which may do everything: {token}")
        if settings.log_format == "text":
            remark(f"results in {settings.store}; Ctrl-C ends")
        running.run(sockets=[listener])


def _opened(settings: Settings) -> tuple[uvicorn.Server, str | None]:
    """Return the server, and the token of the first key where one was made."""
    from factorize.api.http.server import server
    from factorize.api.service import SolverService

    try:
        service = SolverService(settings)
        service.warm_up()
        running = server(settings, service=service)
        first = service.register.create_first(FIRST_KEY) if settings.asks_for_keys else None
        return running, None if first is None else first[1].text
    except StoreUnavailable as error:
        raise InvalidParameter(f"store or database cannot be opened: {error}", field="store") from None
