"""The HTTP/1.1 connection to one service, on the standard library alone.

Every failure of the network becomes `ServiceUnreachable` and every problem document a `ServiceError`, so that callers
never see an error of a socket. A body's length is always checked: the standard library's `readinto` returns a short
count for a connection that was cut, without any error.
"""

import http.client
import ipaddress
import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from factorize.encoding import JsonObject, read_json
from factorize.errors import InvalidParameter, MalformedJson, ServiceError, ServiceUnreachable

TIMEOUT = 30.0
"""The seconds without a byte after which a connection counts as stalled: twice the service's pause between pings."""

KEY_VARIABLE = "FACTORIZE_KEY"
KEY_FILE_VARIABLE = "FACTORIZE_KEY_FILE"
_MAX_KEY_BYTES = 8 << 10
_REDIRECTIONS = (301, 302, 307, 308)
_MAX_DOCUMENT_BYTES = 1 << 28
_MAX_PROBLEM_BYTES = 1 << 20


@dataclass(frozen=True)
class Event:
    """One event.

    Attributes:
        kind: `progress` of a solve, `download` while `fetch` transfers a file, `origin`; comparisons also have `done`
            and `failed`.
        data: its JSON object: iteration, relative_gap and seconds of a solve; bytes and total of a download; place and
            address of an origin.
    """

    kind: str
    data: JsonObject = field(default_factory=dict)


ProgressCallback = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Ignore an event, as the default progress callback."""


def address_of(url: str) -> SplitResult:
    """Return the parts of `http://host:port/prefix`.

    Raises:
        InvalidParameter: the URL has another scheme, no host, or a query.
    """
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        parts, valid = urlsplit(""), False
    if not valid or parts.query or parts.fragment:
        raise InvalidParameter(
            f"url {str(url)[:80]!r} is not the address of a service; give http://HOST:PORT or https://HOST", field="url"
        )
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], path=parts.path.rstrip("/"))


@contextmanager
def _network(url: str, expected: str) -> Iterator[None]:
    """Turn errors of the network in the block into `ServiceUnreachable`."""
    try:
        yield
    except TimeoutError:
        raise ServiceUnreachable(f"{url} sent nothing for too long; try again, or raise the timeout") from None
    except ssl.SSLCertVerificationError as error:
        message = f"the certificate of {url} is not trusted here ({error.verify_message})"
        raise ServiceUnreachable(f"{message}; set SSL_CERT_FILE to the file of its authority") from error
    except (OSError, http.client.HTTPException, UnicodeError) as error:  # the last: no name of a host, or no path
        reason = str(error)[:200] or type(error).__name__
        raise ServiceUnreachable(f"{url} cannot be reached ({reason}); {expected}") from error


class Reply(AbstractContextManager["Reply"]):
    """An answer whose body has not been read yet.

    Attributes:
        url: URL that answered.
        status: HTTP status.
        length: the stated Content-Length, or None.
    """

    def __init__(self, connection: http.client.HTTPConnection, url: str, expected: str) -> None:
        self._connection, self.url, self._expected = connection, url, expected
        self._response = connection.getresponse()
        self.status = self._response.status
        self.length = self._response.length

    def header(self, name: str) -> str | None:
        """Return one header's value, or None."""
        return self._response.getheader(name)

    def readinto(self, buffer: memoryview) -> int:
        """Fill a buffer from the body; 0 means that the body, or the connection, has ended."""
        with _network(self.url, self._expected):
            return self._response.readinto(buffer)

    def events(self) -> Iterator[Event]:
        """Yield the events of a stream of server-sent events until it ends; the service writes data in one line.

        Raises:
            ServiceUnreachable: the connection stalled or was cut inside a chunk.
            ServiceError: the data of an event is no JSON object.
        """
        kind = "message"
        while (line := self._line()).endswith(b"\n"):
            name, _, value = line.decode("utf-8", "replace").rstrip("\r\n").partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                yield Event(kind, self._object(value, _MAX_DOCUMENT_BYTES))

    def _line(self) -> bytes:
        with _network(self.url, self._expected):
            return self._response.readline(_MAX_DOCUMENT_BYTES)

    def close(self) -> None:
        """Close the connection, and drop the unread rest."""
        self._response.close()
        self._connection.close()

    def __exit__(self, *ended: object) -> None:
        """Close the connection."""
        self.close()

    def document(self, limit: int = _MAX_DOCUMENT_BYTES) -> JsonObject:
        """Return the whole body as one JSON object.

        Raises:
            ServiceUnreachable: the body was cut.
            ServiceError: the body is no JSON object.
        """
        return self._object(self.body(limit), limit)

    def body(self, limit: int) -> bytes:
        """Return the whole body, one byte more than `limit` where it is longer.

        Raises:
            ServiceUnreachable: the body was cut.
        """
        with _network(self.url, self._expected):
            raw = self._response.read(limit + 1)
            if self._response.length and len(raw) <= limit:
                raise http.client.IncompleteRead(raw, self._response.length)
        return raw

    def _object(self, text: str | bytes, limit: int) -> dict[str, object]:
        value, wrong = None, "answered with JSON that is not an object"
        try:
            value = read_json(text, limit=limit)
        except MalformedJson as error:
            wrong = f"did not answer with JSON: {error}"
        if not isinstance(value, dict):
            raise ServiceError(f"{self.url} {wrong}; {self._expected}", status=self.status)
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
                text = opened.read(_MAX_KEY_BYTES + 1).strip()
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not ASCII text"
            raise InvalidParameter(
                f"the file {file} of {KEY_FILE_VARIABLE} cannot be read: {reason}", field=KEY_FILE_VARIABLE
            ) from None
    elif not text:
        return None
    if not text or len(text) > _MAX_KEY_BYTES or not all("!" <= character <= "~" for character in text):
        name = KEY_FILE_VARIABLE if file else KEY_VARIABLE  # The message does not repeat the secret.
        raise InvalidParameter(f"{name} does not have a token; give one word of ASCII characters", field=name)
    return text


class Connection:
    """The address of one service, where each request has a connection of its own, which ends with its answer.

    It sends the token of `FACTORIZE_KEY`, or of the file `FACTORIZE_KEY_FILE`, read anew for each request.

    Args:
        url: URL of the service.
        timeout: seconds without a byte after which the service counts as unreachable.
        mirror: whether the URL serves static files and is no service, so that it is not sent the token.

    Attributes:
        url: URL of the service.

    Raises:
        InvalidParameter: the URL is no service's address, no key can be read, or it would be sent in the clear.
    """

    def __init__(self, url: str, *, timeout: float = TIMEOUT, mirror: bool = False) -> None:
        self._address = address_of(url)
        self.url, self.timeout, self._mirror = self._address.geturl(), timeout, mirror
        if self.url.endswith("/index.json"):
            message = f"{self.url} is a mirror, which computes nothing; give it as FACTORIZE_MIRROR, and no service"
            raise InvalidParameter(message, field="url")
        self._authorization()

    def send(
        self, method: str, path: str, *, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Send one request and return the answer with an unread body; its `with` block closes it.

        Raises:
            InvalidParameter: no key can be read; see `Connection`.
            ServiceUnreachable: nothing answered.
            ServiceError: the answer is a problem, or a redirection of anything but a file.
        """
        fields = {**(headers or {}), "Connection": "close"}
        authorized = {**fields, **self._authorization()}
        reply = self._ask(self._address, method, self._address.path + path, body, authorized)
        if method == "GET" and reply.status in _REDIRECTIONS and (location := reply.header("Location")):
            reply.close()
            return self._elsewhere(location, fields)
        if reply.status >= 300:
            raise self._problem(reply, path)
        return reply

    def _authorization(self) -> dict[str, str]:
        key, host = None if self._mirror else key_of_environment(), str(self._address.hostname)
        if key is None:
            return {}
        if self._address.scheme == "http" and not is_loopback(host):
            raise InvalidParameter(
                f"a key would go to {self.url} without encryption; use https://, or unset {KEY_VARIABLE} and "
                f"{KEY_FILE_VARIABLE}",
                field="url",
            )
        return {"Authorization": f"Bearer {key}"}

    def _elsewhere(self, location: str, headers: dict[str, str]) -> Reply:
        """Get a file from the address in a bucket that the service handed out; it is checked like any other.

        Raises:
            ServiceError: the address is not allowed, or does not answer with a file.
        """
        scheme, host, path, query, _ = urlsplit(location)
        if not host or scheme not in ("http", "https") or (self._address.scheme == "https") > (scheme == "https"):
            raise ServiceError(
                f"{self.url} redirects to host {host[:100]!r} over {scheme[:10]!r}, which this client does not follow; "
                "have the service redirect to an address of http or https, and of https alone where it uses https",
                status=307,
            )
        bucket = address_of(f"{scheme}://{host}")
        reply = self._ask(bucket, "GET", f"{path}?{query}", None, headers)  # A bucket gets no key.
        if reply.status >= 300:
            message = f"{self.url} redirects to {bucket.geturl()}, which {self._describe(reply)}"
            raise ServiceError(message, status=reply.status)
        return reply

    @property
    def _expected(self) -> str:
        if self._mirror:
            return "check in a browser that it shows there what `factorize mirror` wrote"
        return "is `factorize serve` running there? The address of a mirror ends in /index.json"

    def _describe(self, reply: Reply) -> str:
        """Return a description of an answer that is not from a service or mirror, and close it."""
        reply.close()
        reason = http.client.responses.get(reply.status, "unknown")
        return f"answered with HTTP status {reply.status} ({reason}); {self._expected}"

    def _ask(self, address: SplitResult, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Reply:
        host, port = str(address.hostname), address.port
        opened = http.client.HTTPConnection(host, port, timeout=self.timeout)
        if address.scheme == "https":
            context = ssl.create_default_context()
            opened = http.client.HTTPSConnection(host, port, timeout=self.timeout, context=context)
        try:
            with _network(address.geturl(), self._expected):
                opened.request(method, path, body=body, headers=headers)
                return Reply(opened, address.geturl(), self._expected)
        except BaseException:
            opened.close()
            raise

    def _problem(self, reply: Reply, path: str) -> ServiceError:
        with reply:
            try:
                problem = reply.document(_MAX_PROBLEM_BYTES)
            except ServiceError:
                problem = {}
        title = problem.get("title") or f"{self.url}{path} {self._describe(reply)}"
        detail = problem.get("detail")
        text, soon = f"{title}: {detail}" if detail else str(title), reply.header("Retry-After") or ""
        retry_after = float(soon) if soon.isascii() and soon.isdigit() else 0.0  # A date is ignored.
        return ServiceError(text, status=reply.status, problem=problem, retry_after=retry_after)


def is_loopback(host: str) -> bool:
    """Return whether a name or address reaches this machine alone."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
