"""The worker of a cluster: a process that solves what a dask scheduler gives it, and who may talk to it.

Schedulers and workers open pickles, so whoever reaches one of their ports can run code there; services open none
(`dask_cluster.py`). On a network that others share they therefore talk over TLS, with certificates that one authority
of yours has signed.
"""

import asyncio
import ipaddress
import signal
import socket
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from factorize.api.settings import Settings
from factorize.errors import InvalidParameter, ServiceUnreachable

CONNECT_SECONDS = 30.0
_TLS_FILES = ("tls_ca", "tls_cert", "tls_key")


def secure(address: str, settings: Settings) -> None:
    """Let all that this process says to a scheduler go over TLS, or refuse to talk to it where others may listen.

    Args:
        address: the scheduler's address, `tls://host:port` or `tcp://host:port`.
        settings: name the certificates, or none.

    Raises:
        InvalidParameter: not such an address; a public one without TLS; TLS without certificates, or with some of the
            three alone, or with one that is not there.
    """
    import dask

    parts, tls = _parts(address), _tls_files(settings)
    if parts.scheme == "tls" and tls is None:
        message = f"the scheduler {address} requires TLS; set tls_ca, tls_cert and tls_key"
        raise InvalidParameter(message, field="scheduler")
    if parts.scheme != "tls":
        if tls is not None:
            raise InvalidParameter(f"with TLS the scheduler is tls://HOST:PORT, not {address}", field="scheduler")
        for host in _addresses(str(parts.hostname)):
            _check_private(host)
        return
    assert tls is not None
    files = {f"{role}.{name}": tls[f"tls_{name}"] for role in ("client", "worker") for name in ("cert", "key")}
    named = {f"distributed.comm.tls.{name}": path for name, path in {"ca-file": tls["tls_ca"], **files}.items()}
    dask.config.set({"distributed.comm.require-encryption": True, **named})


def _tls_files(settings: Settings) -> dict[str, str] | None:
    """Return the three files by name, or None where none is named."""
    files = {name: getattr(settings, name) for name in _TLS_FILES}
    if not any(files.values()):
        return None
    for name, path in files.items():
        if path is None or not Path(path).is_file():
            reason = "is missing" if path is None else f"names {path}, which is not a file"
            raise InvalidParameter(f"{name} {reason}; TLS takes all three: tls_ca, tls_cert and tls_key", field=name)
    return files


def run_worker(
    address: str, *, store: str, memory_mb: int | None, processors: int | None, ready: Callable[[str], object]
) -> None:
    """Solve what the scheduler gives until SIGTERM or SIGINT, or until the scheduler is gone.

    Args:
        address: the scheduler's address; `secure` has looked at it.
        store: URL of the store that solves write to, as this machine reaches it.
        memory_mb: memory for all running solves, in units of 2^20 bytes; by default 80 % of the machine's.
        processors: threads for all running solves; by default all.
        ready: called with the worker's address once it takes solves.

    Raises:
        ServiceUnreachable: no scheduler answers, or it went away: start the worker again.
    """
    from factorize.api.jobs import dask_cluster

    dask_cluster.configure()
    dask_cluster.solve_into(store)
    pool = dask_cluster.pool()
    room = (memory_mb or pool.memory_mb, processors or pool.processors)
    with TemporaryDirectory(prefix="factorize.worker.") as folder, closing(pool):
        if not asyncio.run(_run(address, room, folder, ready)):
            raise ServiceUnreachable(f"the scheduler {address} no longer answers; start the worker again")


async def _run(address: str, room: tuple[int, int], folder: str, ready: Callable[[str], Any]) -> bool:
    """Run the worker; False if it ended without being asked to."""
    from distributed import Worker

    from factorize.api.jobs import dask_cluster

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    parts = _parts(address)
    here = _own_address(str(parts.hostname), int(parts.port or 0))
    if parts.scheme != "tls":
        _check_private(here)
    worker: Any = Worker(
        address,
        nthreads=room[1],
        memory_limit=0,
        resources=dask_cluster.offer(*room),
        host=here,
        local_directory=folder,
        dashboard_address=f"{here}:0",
        death_timeout=CONNECT_SECONDS,
    )
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await worker
    except (OSError, TimeoutError) as error:
        raise ServiceUnreachable(f"no scheduler answers at {address}: {error or 'it took too long'}") from None
    except RuntimeError as error:  # dask makes this of anything else that goes wrong
        await worker.close()
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        raise ServiceUnreachable(dask_cluster.unreadable(address, cause)) from None
    worker.http_server.stop()
    ready(worker.address)
    waits = [asyncio.ensure_future(wait) for wait in (stop.wait(), worker.finished())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    await worker.close()
    for wait in waits:
        wait.cancel()
    return stop.is_set()


def _parts(address: str) -> Any:
    with suppress(ValueError):
        parts = urlsplit(address)
        if parts.scheme in ("tcp", "tls") and parts.hostname and parts.port:
            return parts
    message = f"{address[:100]!r} is not a scheduler's address; write tls://HOST:PORT, or privately tcp://HOST:PORT"
    raise InvalidParameter(message, field="scheduler")


def _addresses(host: str) -> list[str]:
    """Return the addresses of a name; none where it cannot be looked up, and then nothing answers there either."""
    with suppress(OSError):
        return sorted({str(entry[4][0]) for entry in socket.getaddrinfo(host, None)})
    return []


def _check_private(host: str) -> None:
    address = ipaddress.ip_address(host.partition("%")[0])
    if not address.is_private or address.is_unspecified or address.is_multicast:  # carriers share 100.64.0.0/10
        raise InvalidParameter(
            f"{host} can be reached from other networks, and whoever reaches a scheduler or worker can run code "
            "there; use tls:// with tls_ca, tls_cert and tls_key, or an address of a private network",
            field="scheduler",
        )


def _own_address(host: str, port: int) -> str:
    """Return the address of this machine by which the scheduler is reached; nothing is sent."""
    family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])
