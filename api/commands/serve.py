"""`factorize serve`: the HTTP service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from factorize.api.terminal.options import Database, LogFormat, Output, StoreUrl, option
from factorize.api.terminal.output import OutputForm, emit, remark
from factorize.errors import InvalidParameter, StoreUnavailable

if TYPE_CHECKING:
    import uvicorn

    from factorize.api.settings import Settings

Host = Annotated[str | None, option("--host", help="Address to listen on. Default: 127.0.0.1.")]
Port = Annotated[int | None, option("--port", help="Port; 0 takes a free one. Default: 8000.")]
Scheduler = Annotated[
    str | None, option("--scheduler", metavar="ADDRESS", help="dask scheduler. Default: workers of this machine.")
]
TlsCertificate = Annotated[
    str | None, option("--tls-certificate", metavar="FILE", help="Speak HTTPS: the certificate.")
]
TlsKey = Annotated[str | None, option("--tls-key", metavar="FILE", help="Its private key.")]


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

    Where callers need keys and there is none yet, the command that makes one is shown.
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
        running, lacks_keys = _opened(settings)
        listener.listen()  # whoever reads the address may connect at once, and waits until the service has started
        if lacks_keys:  # its token would stand in a log, were it made here
            remark("there is no key yet; run here: factorize keys create --name admin --scopes admin --to admin.key")
        emit(output, {"url": url, "store": settings.store}, f"serving {url}")
        if settings.log_format == "text":
            remark(f"results in {settings.store}; Ctrl-C ends")
        running.run(sockets=[listener])


def _opened(settings: Settings) -> tuple[uvicorn.Server, bool]:
    """Return the server, and whether callers need a key and there is none."""
    from factorize.api.http.server import server
    from factorize.api.service import SolverService

    try:
        service = SolverService(settings)
        running = server(settings, service=service)
        needs_keys = settings.asks_for_keys and not settings.issuers
        return running, needs_keys and not service.register.all()
    except StoreUnavailable as error:
        raise InvalidParameter(f"store or database cannot be opened: {error}", field="store") from None
