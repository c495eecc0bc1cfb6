"""uvicorn with deadlines: the HTTP/1.1 protocol of one connection, and how the service is run.

uvicorn waits for ever for the rest of a request, and answers what is not HTTP in plain text. `ServerConnection`
closes what does not move on (an unfinished header block or body, an answer that nobody takes) and answers in problem
documents.
"""

import asyncio
import logging
import resource
import secrets
import socket
import ssl
import sys
from collections import Counter
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from factorize.api.http.access import is_proxy
from factorize.api.http.app import create_app
from factorize.api.http.problems import MEDIA_TYPE, ProblemAnswer
from factorize.api.http.request_guard import MAX_HEADER_BYTES, SECURITY_HEADERS
from factorize.api.service import SolverService
from factorize.api.settings import Settings
from factorize.api.telemetry import writes_json
from factorize.errors import InvalidParameter

MAX_CONNECTIONS, MAX_PER_ADDRESS = 4096, 1024
RECEIVE_SECONDS = 8.0
"""Seconds in which a header block has to arrive, and for which a body may be silent."""
KEEP_ALIVE_SECONDS = 8
STALL_SECONDS = 30.0
"""Seconds for which a client may take nothing of an answer."""
MIN_BYTES_PER_SECOND = 64 * 1024
LINGER_SECONDS = 2.0
LOOK_SECONDS = 0.5
HANDSHAKE_SECONDS = 8.0
BACKLOG = 2048
CERTIFICATE_TICKS = 100
"""Tenths of a second between looks at the files of the certificate."""
_RETRY_HEADERS = {"Retry-After": "1"}
_log = logging.getLogger(__name__)
SPARE_FILES = 512
"""Files, database connections and pipes to children, beside the connections of clients."""


class _Wire(h11.Connection):
    """Hands a large piece of a body on as it is; h11 as shipped would copy it."""

    def send(self, event: Any) -> Any:
        """Return the bytes of an event."""
        parts = self.send_with_data_passthrough(event)
        return parts[0] if parts is not None and len(parts) == 1 else b"".join(parts or ())


class ServerConnection(H11Protocol):
    """One client's connection.

    A header block has `RECEIVE_SECONDS` to arrive. A body may be silent for as long, and must arrive faster than
    64 KiB/s on the whole. An answer may stand still for `STALL_SECONDS`.
    """

    settings: Settings
    by_address: Counter[str]

    def __init__(self, config: uvicorn.Config, *rest: Any, **named: Any) -> None:
        super().__init__(config, *rest, **named)
        self.conn = _Wire(h11.SERVER, config.h11_max_incomplete_event_size or MAX_HEADER_BYTES)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the clock, or refuse one connection too many."""
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        self._lingering = False
        self._begun = self._heard = self._unsent_since = self.loop.time()
        self._received = self._unsent = 0
        self._look_timer = self.loop.call_later(LOOK_SECONDS, self._look)
        self._address = (transport.get_extra_info("peername") or ("",))[0]
        self.by_address[self._address] += 1
        if len(self.connections) > MAX_CONNECTIONS:
            limit = f"{MAX_CONNECTIONS} connections are open, the limit"
            self._refuse(ProblemAnswer("unavailable", limit, headers=_RETRY_HEADERS))
        elif self.by_address[self._address] > MAX_PER_ADDRESS and not is_proxy(self.settings, self._address):
            limit = f"{MAX_PER_ADDRESS} connections of this address are open, the limit; close some, or reuse them"
            self._refuse(ProblemAnswer("busy", limit, headers=_RETRY_HEADERS))

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._look_timer.cancel()
        self.by_address[self._address] -= 1
        if not self.by_address[self._address]:
            del self.by_address[self._address]
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Note when it came, and hand it on."""
        if self._lingering:
            return
        self._heard = self.loop.time()
        if self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            self._begun, self._received = self._heard, 0
        self._received += len(data)
        super().data_received(data)

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing: clients may offer HTTP/2 or a websocket, and uvicorn would advise to install one."""

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP: uvicorn calls this while it handles h11's error, which knows the status."""
        error = sys.exception()
        hint = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        slug, detail = "bad-request", "the request is not valid HTTP/1.1 (RFC 9112)"
        if hint == 431:
            slug, detail = "too-many-headers", f"the header block has more than {MAX_HEADER_BYTES} bytes, the limit"
        self._refuse(ProblemAnswer(slug, detail))

    def _look(self) -> None:
        self._look_timer = self.loop.call_later(LOOK_SECONDS, self._look)
        now = self.loop.time()
        if self._is_answer_stuck(now):
            self.transport.abort()
        elif not self._lingering and self._is_request_late(now):
            limit = f"the request did not arrive in {RECEIVE_SECONDS:g} s"
            self._refuse(ProblemAnswer("request-timeout", limit))

    def _is_request_late(self, now: float) -> bool:
        if self.flow.read_paused:  # the silence is ours
            self._heard = self._begun = now
            self._received = 0
        if self.conn.their_state is h11.SEND_BODY:
            late = now - self._begun - self._received / MIN_BYTES_PER_SECOND
            return max(now - self._heard, late) > RECEIVE_SECONDS
        unfinished = self.cycle is None or bool(self.conn.trailing_data[0])
        return self.conn.their_state is h11.IDLE and unfinished and now - self._begun > RECEIVE_SECONDS

    def _is_answer_stuck(self, now: float) -> bool:
        waiting = self.transport.get_write_buffer_size()
        if not waiting or waiting != self._unsent:
            self._unsent, self._unsent_since = waiting, now
        return now - self._unsent_since > STALL_SECONDS and waiting > 0

    def _refuse(self, problem: ProblemAnswer) -> None:
        """Answer with a problem, if an answer can still be given, and close."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            request_id = secrets.token_hex(8)
            body = problem.body(request_id)
            headers = {"Content-Type": MEDIA_TYPE, **SECURITY_HEADERS, **problem.headers, "X-Request-Id": request_id}
            headers |= {"Server": "factorize", "Content-Length": str(len(body)), "Connection": "close"}
            status = HTTPStatus(problem.kind.status)
            start = h11.Response(status_code=status, headers=list(headers.items()), reason=status.phrase.encode())
            for event in (start, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._linger()

    def _linger(self) -> None:
        """Close after the client has read: closing with unread bytes would reset the connection under the answer."""
        self._lingering = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)


class ServerLoop(asyncio.SelectorEventLoop):
    """Gives a TLS handshake as long as a request, in place of a minute."""

    async def create_server(self, *rest: Any, **named: Any) -> asyncio.Server:
        """Return a server with the options of TLS that uvicorn does not set."""
        if named.get("ssl") is not None:
            named.setdefault("ssl_handshake_timeout", HANDSHAKE_SECONDS)
        return await super().create_server(*rest, **named)


class TlsCertificate:
    """The certificate of the service and its key: read at the start, and again when their files have changed.

    Args:
        settings: name the files.

    Attributes:
        context: what connections are opened with.

    Raises:
        InvalidParameter: they cannot be used.
    """

    def __init__(self, settings: Settings) -> None:
        self._files = str(settings.https_certificate), str(settings.https_key)
        self._versions = self._look()
        self._newest = self.context = self._read()
        self.context.sni_callback = self._choose

    def renew(self) -> None:
        """Use the files from the next handshake on, if they have changed; a pair that cannot be used is only logged."""
        with suppress(OSError):  # a file is being replaced
            versions = self._look()
            if versions == self._versions:
                return
            self._versions = versions
            try:
                self._newest = self._read()  # loaded into the one in use, a handshake could meet half of the pair
                _log.warning("the certificate was renewed")
            except InvalidParameter as error:
                _log.error("the certificate is not renewed: %s", error)

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Have a handshake go on with the newest pair; it is asked whether or not the client names a host."""
        connection.context = self._newest

    def _look(self) -> list[tuple[int, int, int]]:
        statuses = [Path(file).stat() for file in self._files]
        return [(status.st_ino, status.st_size, status.st_mtime_ns) for status in statuses]

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            # A password is never asked for: a service has nobody to type it.
            context.load_cert_chain(*self._files, password="")
        except OSError as error:  # ssl.SSLError among them
            raise InvalidParameter(
                f"https_certificate and https_key cannot be used: {error.strerror or error}; they are a certificate "
                "and its own private key without a passphrase, both PEM",
                field="https_certificate",
            ) from None
        return context


class Server(uvicorn.Server):
    """Ends the engine as soon as it is told to stop, which ends the streams of events and the waits on jobs."""

    def __init__(self, config: uvicorn.Config, service: SolverService, certificate: TlsCertificate | None) -> None:
        super().__init__(config)
        self.service = service
        self._certificate = certificate

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and have workers made ready once requests are answered."""
        await super().startup(sockets)
        self.service.warm_up()

    async def on_tick(self, counter: int) -> bool:
        """Take up a certificate that was renewed."""
        if self._certificate is not None and counter % CERTIFICATE_TICKS == 0:
            await asyncio.to_thread(self._certificate.renew)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close what listens, finish what runs; a second Ctrl-C leaves out the wait for clients alone."""
        ending = asyncio.create_task(asyncio.to_thread(self.service.engine.close))
        await super().shutdown(sockets)
        await ending
        if self.force_exit:  # uvicorn would break the service off, with a traceback
            await self.lifespan.shutdown()


def server(settings: Settings, *, service: SolverService | None = None) -> Server:
    """Return a server of the service, not started.

    Args:
        settings: where to listen, and the limits.
        service: one that exists already and is not started; by default it is made from the settings.

    Raises:
        StoreUnavailable: store or database cannot be opened.
        InvalidParameter: the files of the certificate cannot be used.
    """
    certificate = None if settings.https_certificate is None else TlsCertificate(settings)
    allow_connections(MAX_CONNECTIONS)
    service = service or SolverService(settings)
    protocol: Any = type("Connection", (ServerConnection,), {"settings": settings, "by_address": Counter()})
    config = uvicorn.Config(
        create_app(settings, service=service),
        host=settings.host,
        port=settings.port,
        http=protocol,
        ws="none",
        loop=f"{__name__}:ServerLoop",
        lifespan="on",
        log_config=None if writes_json() else uvicorn.config.LOGGING_CONFIG,
        log_level="warning",
        access_log=False,
        server_header=False,
        headers=[("Server", "factorize")],
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=10,
        backlog=BACKLOG,
        ssl_context_factory=None if certificate is None else lambda _config, _default: certificate.context,
        # Room to read a header block that is too large to its end, so that its sender can read the answer.
        h11_max_incomplete_event_size=16 * MAX_HEADER_BYTES,
    )
    return Server(config, service, certificate)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; binding before the start means that a used port is an error with a message."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio turns Nagle's algorithm off; else a small answer waits 40 ms for an ACK.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host.strip("[]"), port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def address(listener: socket.socket, scheme: str = "http") -> str:
    """Return the URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def allow_connections(count: int) -> int:
    """Raise the limit so that so many connections fit, as far as the system lets this process; never lower it.

    Returns:
        The limit, in open files. Where it holds fewer connections, the log says so.
    """
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + SPARE_FILES
    if now != resource.RLIM_INFINITY and now < wanted:
        now = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (now, most))
        except (ValueError, OSError):  # macOS has a smaller limit than it says
            now = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if now != resource.RLIM_INFINITY and now < wanted:
        message = "this process may open only %d files, too few for %d connections; raise `ulimit -n`"
        _log.warning(message, now, count)
    return now
