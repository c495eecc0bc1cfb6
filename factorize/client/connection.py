"""The HTTP/1.1 connection to one service, on the standard library alone.

Every failure of the network becomes `ServiceUnreachable` and every problem document a `ServiceError`, so that callers
see two errors and no socket's. A body's length is always checked: the standard library's `readinto` returns a short
count for a connection that was cut, without any error.
"""

from __future__ import annotations

import http.client
import ipaddress
import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from factorize.encoding import read_json
from factorize.errors import InvalidParameter, MalformedJson, ServiceError, ServiceUnreachable

TIMEOUT = 30.0
"""Seconds without a byte after which a connection counts as stalled; twice the service's pause between pings."""

KEY_VARIABLE = "FACTORIZE_KEY"
KEY_FILE_VARIABLE = "FACTORIZE_KEY_FILE"
_KEY_BYTES = 8 << 10
_DOCUMENT_BYTES = 1 << 28
_PROBLEM_BYTES = 1 << 20


@dataclass(frozen=True)
class Event:
    """One event.

    Attributes:
        kind: `progress` of a solve, `download` while `fetch` transfers a file; of a comparison also `done`, `failed`.
        data: its JSON object: iteration, relative_gap, seconds of a solve; bytes, total of a download.
    """

    kind: str
    data: dict[str, Any] = field(default_factory=dict)


ProgressCallback = Callable[[Event], None]


def ignore(event: Event) -> None:
    """A progress callback for those who do not ask."""


@dataclass(frozen=True)
class Address:
    """Where a service is: scheme, host, port and the path that it is mounted under."""

    scheme: str
    host: str
    port: int | None
    prefix: str

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read `http://host:port/prefix`.

        Raises:
            InvalidParameter: another scheme, no host, or a query.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise InvalidParameter(
                f"url {str(url)[:80]!r} is no address of a service; give http://HOST:PORT or https://HOST", field="url"
            )
        return cls(parts.scheme, parts.hostname, port, parts.path.rstrip("/"))

    def __str__(self) -> str:
        """The URL."""
        port = "" if self.port is None else f":{self.port}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}{port}{self.prefix}"


@contextmanager
def network(address: Address) -> Iterator[None]:
    """Turn what the network raises inside into `ServiceUnreachable`."""
    try:
        yield
    except TimeoutError:
        raise ServiceUnreachable(f"{address} sent nothing for too long; try again, or raise the timeout") from None
    except (OSError, http.client.HTTPException) as error:
        reason = str(error)[:200] or type(error).__name__
        raise ServiceUnreachable(f"{address} cannot be reached ({reason}); is `factorize serve` running?") from error


class Reply:
    """An answer whose body has not been read yet.

    Attributes:
        status: HTTP status.
        length: what Content-Length states, or None.
    """

    def __init__(self, connection: http.client.HTTPConnection, address: Address) -> None:
        self._connection, self._address = connection, address
        self._response = connection.getresponse()
        self.status = self._response.status
        self.length = self._response.length

    def header(self, name: str) -> str | None:
        """Return one header's value, or None."""
        return self._response.getheader(name)

    def readinto(self, buffer: memoryview) -> int:
        """Fill a buffer from the body; 0 means that the body, or the connection, has ended."""
        with network(self._address):
            return self._response.readinto(buffer)

    def events(self) -> Iterator[Event]:
        """Yield the events of a stream of server-sent events until it ends; the service writes data in one line.

        Raises:
            ServiceUnreachable: the connection stalled or was cut inside a chunk.
            ServiceError: an event's data is no JSON object.
        """
        kind = "message"
        while (line := self._line()).endswith(b"\n"):
            name, _, value = line.decode("utf-8", "replace").rstrip("\r\n").partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                yield Event(kind, self._object(value, _DOCUMENT_BYTES))

    def _line(self) -> bytes:
        with network(self._address):
            return self._response.readline(_DOCUMENT_BYTES)

    def close(self) -> None:
        """Let go of what has not been read."""
        self._response.close()
        self._connection.close()

    def document(self, limit: int = _DOCUMENT_BYTES) -> dict[str, Any]:
        """Return the whole body as one JSON object.

        Raises:
            ServiceUnreachable: the body was cut.
            ServiceError: it is no JSON object.
        """
        return self._object(self.body(limit), limit)

    def body(self, limit: int) -> bytes:
        """Return the whole body, one byte more than `limit` where it is longer.

        Raises:
            ServiceUnreachable: the body was cut.
        """
        with network(self._address):
            raw = self._response.read(limit + 1)
            if self._response.length:
                raise http.client.IncompleteRead(raw, self._response.length)
        return raw

    def _object(self, text: str | bytes, limit: int) -> dict[str, Any]:
        try:
            value = read_json(text, limit=limit)
        except MalformedJson as error:
            raise ServiceError(f"{self._address} did not answer with JSON: {error}", status=self.status) from None
        if not isinstance(value, dict):
            raise ServiceError(f"{self._address} answered with JSON that is no object", status=self.status)
        return value


def key_of_environment() -> str | None:
    """Return the key of `FACTORIZE_KEY`, or of the file that `FACTORIZE_KEY_FILE` names; None where neither is set.

    Raises:
        InvalidParameter: both are set, the file cannot be read, or it holds no token.
    """
    text, file = os.environ.get(KEY_VARIABLE), os.environ.get(KEY_FILE_VARIABLE)
    if text and file:
        raise InvalidParameter(f"{KEY_VARIABLE} and {KEY_FILE_VARIABLE} are both set; unset one", field=KEY_VARIABLE)
    if file:
        try:
            with open(file, encoding="ascii") as opened:
                text = opened.read(_KEY_BYTES + 1).strip()
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not ASCII text"
            raise InvalidParameter(f"{KEY_FILE_VARIABLE} names {file}: {reason}", field=KEY_FILE_VARIABLE) from None
    elif not text:
        return None
    if not text or len(text) > _KEY_BYTES or not all("!" <= character <= "~" for character in text):
        name = KEY_FILE_VARIABLE if file else KEY_VARIABLE  # what it holds is not repeated
        raise InvalidParameter(f"{name} holds no token; it is one word of ASCII characters", field=name)
    return text


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


class Connection(AbstractContextManager["Connection"]):
    """The way to one service: each request has a connection of its own, which the next one or `close` ends.

    It sends the token of `FACTORIZE_KEY`, or of the file `FACTORIZE_KEY_FILE`.

    Args:
        url: of the service.
        timeout: seconds without a byte after which the service counts as unreachable.

    Raises:
        InvalidParameter: the URL is no service's address, no key can be read, or it would be sent in the clear.
    """

    def __init__(self, url: str, *, timeout: float = TIMEOUT) -> None:
        self.address = Address.parse(url)
        self._key = key_of_environment()
        if self._key is not None and self.address.scheme == "http" and not _is_loopback(self.address.host):
            raise InvalidParameter(
                f"{self.address} would be sent a key in the clear; use https://, or unset {KEY_VARIABLE} and "
                f"{KEY_FILE_VARIABLE}",
                field="url",
            )
        self.timeout = timeout
        self._reply: Reply | None = None

    def send(
        self, method: str, path: str, *, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Send one request and return the answer, whose body is still to be read.

        Raises:
            ServiceUnreachable: nothing answered.
            ServiceError: the answer is a problem, or a redirection of anything but a file.
        """
        fields = {**(headers or {}), "Connection": "close"}
        authorized = fields if self._key is None else {**fields, "Authorization": f"Bearer {self._key}"}
        reply = self._ask(self.address, method, self.address.prefix + path, body, authorized)
        if method == "GET" and reply.status == 307 and (location := reply.header("Location")):
            return self._elsewhere(location, fields)
        if reply.status >= 300:
            raise self._problem(reply)
        return reply

    def _elsewhere(self, location: str, headers: dict[str, str]) -> Reply:
        """Get what the service has handed out the address of: a file that its bucket serves, checked like any other.

        Raises:
            ServiceError: the address is no better than the service's own, or answers with no file.
        """
        scheme, host, path, query, _ = urlsplit(location)
        if not host or scheme not in ("http", "https") or (self.address.scheme == "https") > (scheme == "https"):
            raise ServiceError(
                f"{self.address} redirects to {scheme[:10]}://{host[:100]}, which is not followed", status=307
            )
        bucket = Address.parse(f"{scheme}://{host}")
        reply = self._ask(bucket, "GET", f"{path}?{query}", None, headers)  # a bucket gets no key
        if reply.status >= 300:
            self.close()
            raise ServiceError(f"{bucket} answered with HTTP status {reply.status}", status=reply.status)
        return reply

    def _ask(self, address: Address, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Reply:
        self.close()
        opened = _connection(address, self.timeout)
        try:
            with network(address):
                opened.request(method, path, body=body, headers=headers)
                self._reply = Reply(opened, address)
        except BaseException:
            opened.close()
            raise
        return self._reply

    def _problem(self, reply: Reply) -> ServiceError:
        try:
            problem = reply.document(_PROBLEM_BYTES)
        except ServiceError:
            problem = {}
        finally:
            self.close()
        title = problem.get("title") or f"{self.address} answered with HTTP status {reply.status}"
        detail = problem.get("detail")
        return ServiceError(f"{title}: {detail}" if detail else str(title), status=reply.status, problem=problem)

    def close(self) -> None:
        """Let go of the last answer, and of its connection."""
        if self._reply is not None:
            self._reply.close()
            self._reply = None

    def __exit__(self, *ended: object) -> None:
        """Close it."""
        self.close()


def _connection(address: Address, timeout: float) -> http.client.HTTPConnection:
    if address.scheme == "https":
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(address.host, address.port, timeout=timeout, context=context)
    return http.client.HTTPConnection(address.host, address.port, timeout=timeout)
