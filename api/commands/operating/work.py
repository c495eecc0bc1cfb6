"""`factorize worker`: solves what a dask scheduler gives out, for services on any machine."""

from __future__ import annotations

from typing import Annotated

from factorize.api.terminal.options import LogFormat, Output, StoreUrl, option
from factorize.api.terminal.output import OutputForm, emit, remark
from factorize.api.terminal.sources import open_results

Scheduler = Annotated[
    str, option("--scheduler", metavar="ADDRESS", help="dask scheduler, tls://HOST:PORT or tcp://HOST:PORT.")
]
MemoryMb = Annotated[int | None, option("--memory-mb", min=1, help="Memory for solves. Default: 80 %.")]
Processors = Annotated[int | None, option("--processors", min=1, help="Threads for solves. Default: all.")]
Ca = Annotated[str | None, option("--tls-ca", metavar="FILE", help="Authority's certificate.")]
Cert = Annotated[str | None, option("--tls-cert", metavar="FILE", help="This worker's certificate.")]
Key = Annotated[str | None, option("--tls-key", metavar="FILE", help="Its private key.")]


def worker(
    scheduler: Scheduler,
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
