"""A service for a training job or the command line: post a spec, follow the job, get the checked manifest."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable
from urllib.parse import quote, urlencode

from factorize.client.connection import TIMEOUT, Connection, Event, ProgressCallback, ignore
from factorize.encoding import JsonObject, canonical_json, check_digest, is_digest
from factorize.errors import Cancelled, CorruptObject, InvalidParameter, ServiceError, ServiceUnreachable, SolveFailed
from factorize.format.manifest import Manifest

PATH = "/v1/factorizations"
FIRST_PAUSE = 0.05
"""The seconds between the first two looks at a job, after which small specs are solved."""
PATIENCE = 60.0
"""The seconds for which a request is repeated while the service is away or full."""
_AWAY_STATUSES = (429, 502, 503, 504)
"""The statuses of a service that is full, or restarts."""
Answer = TypeVar("Answer")

_ECHOES = {name: name for name in ("sampling", "epsilon", "delta", "clip_norm", "divisor")} | {"sigma": "sigma_of_sums"}
"""The fields of a request that a calibration repeats, with their names in the calibration."""


@runtime_checkable
class Documented(Protocol):
    """A spec that writes itself as plain data (`factorize.Spec`)."""

    def document(self) -> JsonObject:
        """Return the plain JSON form, which names matrices by their sha256."""

    def user_matrices(self) -> Mapping[str, Any]:
        """Return the parts that are the user's own matrices."""


SpecSource = str | bytes | Mapping[str, Any] | Documented
"""A spec: JSON text, plain data or a `factorize.Spec`. A text of 64 hexadecimal digits is a digest or spec digest."""


@dataclass(frozen=True)
class Origin:
    """The origin of an answer.

    Attributes:
        place: the kind of origin, `solved` for an answer that was solved just now.
        address: address of the store, the cache's folder, the mirror's index or the service.
    """

    place: Literal["solved", "store", "cache", "mirror", "service"]
    address: str | None = None

    def __str__(self) -> str:
        """Return the origin in words."""
        return "solved now" if self.place == "solved" else f"from the {self.place} {self.address}"


class Service:
    """One service by its URL.

    Args:
        url: `http://127.0.0.1:8000`, say.
        timeout: seconds without a byte after which a connection counts as broken.
        pause: the most seconds between two looks at a job.
        patience: seconds for which `wait`, and readers of files and rows, repeat a request while the service is away or
            full.
        sleep: called with the seconds between two requests; it may raise.
        mirror: see `Connection`.

    Attributes:
        connection: the connection that sends its requests.

    Raises:
        InvalidParameter: the URL is no service's address, no key can be read, or it would be sent in the clear.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = TIMEOUT,
        pause: float = 1.0,
        patience: float = PATIENCE,
        sleep: Callable[[float], object] = time.sleep,
        mirror: bool = False,
    ) -> None:
        self.connection = Connection(url, timeout=timeout, mirror=mirror)
        self._pause, self._patience, self._sleep = pause, patience, sleep

    @property
    def origin(self) -> Origin:
        """The origin of its answers."""
        return Origin("service", self.connection.url)

    def post(self, spec: SpecSource) -> JsonObject:
        """Ask for a factorization; the numbers of a `factorize.Spec` are sent first.

        Returns:
            The manifest (it has a `certificate`) if the service has it, else the job document.

        Raises:
            ServiceError: the spec is refused; `problem` names the field.
            ServiceUnreachable: nothing answered.
        """
        if isinstance(spec, Documented):
            self.send_matrices(spec)
        return self._call("POST", PATH, spec_bytes(spec))

    def send_matrices(self, spec: Documented) -> None:
        """Upload the numbers of a spec, whose JSON form names them by sha256; the key needs the scope `upload`.

        Raises:
            ServiceError: the numbers are refused.
            ServiceUnreachable: nothing answered.
        """
        headers = {"Content-Type": "application/octet-stream"}
        for part in spec.user_matrices().values():
            if part.bound:
                rows, columns = part.array.shape
                path, data = f"/v1/matrices?rows={rows}&columns={columns}", part.array.astype("<f8").tobytes()
                with self.connection.send("POST", path, body=data, headers=headers) as reply:
                    reply.document()

    def status(self, digest: str) -> JsonObject:
        """Return the manifest or the job document of a digest or spec digest.

        Raises:
            ServiceError: the digest is unknown (status 404), or there is another problem.
            ServiceUnreachable: nothing answered.
        """
        return self._call("GET", f"{PATH}/{check_digest(digest)}")

    def cancel(self, spec_digest: str) -> JsonObject:
        """Cancel a job and return its document.

        Raises:
            ServiceError: the job is finished (status 409) or unknown (404).
        """
        return self._call("DELETE", f"{PATH}/{check_digest(spec_digest)}")

    def retry(self, spec_digest: str) -> JsonObject:
        """Queue a failed or cancelled job again; return its document, or the manifest where a result is known.

        Raises:
            ServiceError: the job is unknown (status 404), or has not failed (422).
        """
        return self._call("POST", f"{PATH}/{check_digest(spec_digest)}/retry")

    def jobs(
        self, *, state: str | None = None, workload: str | None = None, search: str | None = None, limit: int = 50
    ) -> list[JsonObject]:
        """Return the newest jobs, then results that no job has made.

        Args:
            state: lists only jobs in this state.
            workload: lists only this kind of workload.
            search: lists only specs that have each of these words, or whose digests begin with it.
            limit: the most entries, 1 to 1000.

        Raises:
            ServiceError: there is no such state, or the limit is out of range.
        """
        filters = {"state": state, "workload": workload, "search": search, "limit": limit}
        query = urlencode({name: value for name, value in filters.items() if value is not None})
        return self._call("GET", f"{PATH}?{query}")["items"]

    def canonicalize(self, spec: SpecSource) -> JsonObject:
        """Return the canonical spec, its digest, whether it is known, and an estimate of seconds and bytes."""
        return self._call("POST", "/v1/canonicalize", spec_bytes(spec))

    def compare(self, request: Mapping[str, object], *, progress: ProgressCallback = ignore) -> JsonObject:
        """Return the comparison of all mechanisms that fit a spec, as `factorize compare --output json` prints it.

        Args:
            request: `{"spec": {...}, "epsilon": 2, "delta": 1e-5}`, say (docs/http.md).
            progress: called with each event before the last.

        Raises:
            ServiceError: the request is refused, or the comparison failed; `problem` says why.
            ServiceUnreachable: nothing answered, or the answer broke off.
        """
        return self._answer("/v1/compare", request, progress)

    def calibrate(self, digest: str, request: Mapping[str, object]) -> JsonObject:
        """Return the noise of a stored factorization, as `factorize calibrate --output json` prints it.

        Args:
            digest: digest or spec digest.
            request: the question, `{"epsilon": 8, "delta": 1e-5, "sampling": "balls_in_bins"}`, say (docs/http.md).

        Raises:
            ServiceError: the request is refused; `problem` says why.
            CorruptObject: the answer belongs to another question.
            ServiceUnreachable: nothing answered, or the answer broke off.
        """
        path = f"{PATH}/{check_digest(digest)}/calibrations"
        document = self._answer(path, request)
        wrong = [own for name, own in _ECHOES.items() if name in request and document.get(own) != request[name]]
        if wrong:
            raise CorruptObject(
                f"the service answered a different question: {wrong[0]} is {document.get(wrong[0])!r}; do not use the "
                "answer"
            )
        return document

    def _answer(self, path: str, request: Mapping[str, object], progress: ProgressCallback = ignore) -> JsonObject:
        """Ask a question, follow its events and return the answer."""
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        with self.connection.send("POST", path, body=canonical_json(dict(request)), headers=headers) as reply:
            for event in reply.events():
                if event.kind == "done":
                    return event.data
                if event.kind == "failed":
                    raise ServiceError(str(event.data.get("detail")), problem=event.data)
                progress(event)
        raise ServiceUnreachable(f"the answer of {self.connection.url} ended too early; ask again")

    def wait(self, digest: str, *, progress: ProgressCallback = ignore) -> JsonObject:
        """Look at a job until it ends, at first many times a second, then once in `pause` seconds.

        Args:
            digest: digest or spec digest.
            progress: called with an event `progress` whenever the job's progress changes.

        Returns:
            The manifest.

        Raises:
            SolveFailed: the job failed; posting the spec again starts a new attempt.
            Cancelled: the job was cancelled.
            ServiceError, ServiceUnreachable: see `patiently`.
        """
        reported, pauses = None, self._pauses()
        while "certificate" not in (document := self.patiently(partial(self.status, digest))):
            _refuse_ended(document)
            news = document.get("progress")
            if isinstance(news, dict) and news != reported:
                progress(Event("progress", news))
                reported = news
            self._sleep(next(pauses))
        return document

    def patiently(self, ask: Callable[[], Answer]) -> Answer:
        """Repeat a request, for `patience` seconds, while the service cannot be reached or has no place for it.

        Raises:
            ServiceError: the service refuses it for another reason, or until later than that by its Retry-After.
            ServiceUnreachable: nothing answered within that time.
        """
        end, pauses = time.monotonic() + self._patience, self._pauses()
        while True:
            try:
                return ask()
            except ServiceError as error:
                pause = max(next(pauses), error.retry_after)
                away = isinstance(error, ServiceUnreachable) or error.status in _AWAY_STATUSES
                damaged = str(error.problem.get("type")).endswith("corrupt-object")  # A damaged result stays so.
                if damaged or not away or time.monotonic() + pause > end:
                    raise
            self._sleep(pause)

    def _pauses(self) -> Iterator[float]:
        """Yield the seconds between requests, few at first, and never more than `pause`."""
        pause = FIRST_PAUSE
        while True:
            yield min(self._pause, pause)
            pause *= 2

    def manifest(
        self, source: SpecSource, *, progress: ProgressCallback = ignore, dtype: str | None = None
    ) -> Manifest:
        """Return the checked manifest of a spec or digest, after a solve if it needs one.

        The manifest has to hash to its own digest and to answer the request: the same digest, or the same spec field
        by field. A valid answer to another question would give noise for the wrong participation.

        Args:
            source: a spec, a digest or a spec digest.
            progress: called with the progress of the job, if one runs.
            dtype: type of the file's matrices, `float32` say; by default as they were solved.

        Raises:
            CorruptObject: the manifest does not hash to its digest, or answers another question.
            SolveFailed, Cancelled: see `wait`.
            ServiceError, ServiceUnreachable: the service refused, or did not answer.
        """
        document = self.status(str(source)) if is_digest(source) else self.post(source)
        if "certificate" not in document:
            digest = document.get("spec_digest")
            if not is_digest(digest):
                raise ServiceError("the service answered with a job that does not name its spec digest")
            document = self.wait(str(digest), progress=progress)
        manifest = Manifest.check(document)
        check_answers(manifest, source)
        return manifest if dtype is None else self._get_rounded(manifest, dtype)

    def _get_rounded(self, manifest: Manifest, dtype: str) -> Manifest:
        """Return the manifest of the same result in another type, which has a claim and a digest of its own."""
        if manifest.matrix("C").dtype == dtype:
            return manifest
        place = f"{PATH}/{manifest.digest}?dtype={quote(dtype, safe='')}"
        try:
            document = self._call("GET", place)
        except ServiceError as error:
            if error.status != 404:
                raise
            document = self._call("POST", place)  # Nobody asked for it before, and the key may.
        rounded = Manifest.check(document)
        same = rounded.spec == manifest.spec and rounded.cast_from == manifest.digest
        if not same or {rounded.matrix(name).dtype for name in rounded.names} != {dtype}:
            raise CorruptObject(
                f"requested {manifest.digest} in {dtype}, but the service sent {rounded.digest}; do not use it"
            )
        return rounded

    def _call(self, method: str, path: str, body: bytes | None = None) -> JsonObject:
        headers = {} if body is None else {"Content-Type": "application/json"}
        with self.connection.send(method, path, body=body, headers=headers) as reply:
            return reply.document()


def spec_bytes(spec: SpecSource) -> bytes:
    """Return a spec as the JSON text to post; texts stay unchanged, so that the service's strict reader sees them."""
    if isinstance(spec, bytes):
        return spec
    if isinstance(spec, str):
        return spec.encode("utf-8", "surrogatepass")
    if not isinstance(spec, (Documented, Mapping)):
        message = f"this {type(spec).__name__} does not name factors; give a path, a digest, a URL, or a spec"
        raise InvalidParameter(message, field="source")
    return canonical_json(spec.document() if isinstance(spec, Documented) else dict(spec))


def spec_of(source: SpecSource) -> Any:
    """Return the spec of a source as this process, not a service, reads it; None for a digest."""
    if is_digest(source):
        return None
    from factorize.spec import parse_spec  # It needs pydantic, which jobs that pin a digest do not have.

    return parse_spec(spec_bytes(source))


def check_answers(manifest: Manifest, source: SpecSource) -> None:
    """Check that a manifest answers the request.

    For a spec, every field has to be equal after this process, not the service, fills in defaults and foldings. Three
    differences are allowed: any mechanism where `auto` was asked for, a smaller tolerance, and an easier workload to
    optimise for (`factorize.workloads.prefix.easier_ones`) where none was named.

    Raises:
        CorruptObject: the manifest answers another question.
    """
    spec = spec_of(source)
    if spec is None:
        if source not in (manifest.digest, manifest.spec_digest):
            raise CorruptObject(
                f"requested {source!s}, but the service sent the manifest of {manifest.digest}; do not use it"
            )
        return
    wanted = spec.document()
    answered = dict(manifest.spec)
    if answered["tolerance"] <= wanted["tolerance"]:
        answered["tolerance"] = wanted["tolerance"]
    if not spec.mechanism.named:
        answered["mechanism"] = wanted["mechanism"]
    if "optimize_for" in answered and "optimize_for" not in wanted:
        from factorize.workloads.prefix import easier_ones

        if answered["optimize_for"] in (easier.document() for easier in easier_ones(spec.workload)):
            del answered["optimize_for"]
    wrong = sorted(key for key in wanted.keys() | answered.keys() if wanted.get(key) != answered.get(key))
    if wrong:
        raise CorruptObject(
            f"the service answered a different spec: {wrong[0]} is {str(answered.get(wrong[0]))[:120]}, but you asked "
            f"for {str(wanted.get(wrong[0]))[:120]}; do not use the result"
        )


def _refuse_ended(job: Mapping[str, object]) -> None:
    state = job.get("state")
    if state == "cancelled":
        raise Cancelled("the job was cancelled; post the spec again to run it")
    if state == "failed":
        raise SolveFailed(f"the solve failed: {_reason(job.get('error'))}; post the spec again to try again")
    if state not in ("queued", "running", "done"):
        raise ServiceError(f"the service answered with neither a manifest nor a job (state {str(state)[:40]!r})")


def _reason(error: object) -> str:
    if isinstance(error, Mapping):
        error = error.get("detail") or error.get("message") or error.get("title")
    return str(error or "no reason was given")[:500]
