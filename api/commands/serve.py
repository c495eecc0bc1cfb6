"""`factorize serve`: the HTTP service; `factorize worker`: what solves for services on any machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from factorize.api.terminal.options import Database, LogFormat, Output, StoreUrl, option
from factorize.api.terminal.output import OutputForm, emit, remark
from factorize.api.terminal.sources import open_results
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
    from factorize.api.pace import measured_pace
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


SchedulerAddress = Annotated[
    str, option("--scheduler", metavar="ADDRESS", help="dask scheduler, tls://HOST:PORT or tcp://HOST:PORT.")
]
MemoryMb = Annotated[int | None, option("--memory-mb", min=1, help="Memory for solves. Default: 80 %.")]
Processors = Annotated[int | None, option("--processors", min=1, help="Threads for solves. Default: all.")]
Ca = Annotated[str | None, option("--tls-ca", metavar="FILE", help="Authority's certificate.")]
Cert = Annotated[str | None, option("--tls-cert", metavar="FILE", help="This worker's certificate.")]
Key = Annotated[str | None, option("--tls-key", metavar="FILE", help="Its private key.")]


def worker(
    scheduler: SchedulerAddress,
    memory_mb: MemoryMb = None,
    processors: Processors = None,
    tls_ca: Ca = None,
    tls_cert: Cert = None,
    tls_key: Key = None,
    log_format: LogFormat = None,
    store: StoreUrl = None,
    output: Output = OutputForm.TEXT,
) -> None:
    """Solve what the scheduler gives out until interrupted; the worker's address is the first line on stdout.

    It needs the scheduler and the store, and no database. Where the scheduler goes away it ends with exit code 5: have
    it started again.
    """
    from factorize.api.jobs.cluster_worker import run_worker, secure, tls_of
    from factorize.api.settings import load_settings
    from factorize.api.telemetry.log_lines import log_to_stderr

    form = load_settings(log_format=log_format).log_format
    log_to_stderr(form)
    secure(scheduler, tls_of(tls_ca, tls_cert, tls_key))
    results = open_results(store, create=True)
    results.objects.probe()

    def ready(address: str) -> None:
        emit(output, {"worker": address, "scheduler": scheduler, "store": results.url}, f"working {address}")
        if form == "text":
            remark(f"results in {results.url}; Ctrl-C ends")

    run_worker(scheduler, store=results.url, memory_mb=memory_mb, processors=processors, ready=ready)
