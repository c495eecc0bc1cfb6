"""The questions that a solver's process answers: solves and forms, and those that are posted, which nobody stores.

Routes (`api/http/questions.py`) and their schemas are made from the posted ones: the body, who may post it, the limits
and the answer. The docstring of a question becomes the description of its route in the OpenAPI document.

Nothing is published here: solves and forms write files where they are told. The prover (`api/proof.py`) certifies the
draft of a solve, and checks every factor file before it gets its name.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import TypeAdapter

from factorize import solvers
from factorize.api.access.caller import AboveCapacity, Caller, Scope
from factorize.api.local import in_form
from factorize.api.proof import write_draft
from factorize.api.questions import training_job
from factorize.api.questions.advice import advice_of, request_of
from factorize.api.questions.calibration_request import CalibrationRequest, read_calibration_request
from factorize.api.questions.calibration_request import answer as calibration
from factorize.api.questions.comparison import CompareRequest, Report, comparison, read_request
from factorize.api.workers.worker_process import Tell
from factorize.encoding import DIGEST, JsonObject, check_digest
from factorize.errors import InvalidSpec, StoreUnavailable
from factorize.format.files import Files
from factorize.plain_data import Frozen, read_union
from factorize.predict import AnyQuestion, ask
from factorize.spec import parse_spec
from factorize.storage.index import Result
from factorize.storage.store import Store, open_store

if TYPE_CHECKING:
    from factorize.api.service import SolverService

    Find = Callable[[str | None], Result]
    """Returns the result of a digest or spec digest that the caller may see; None is the one in the address."""

Asked = TypeVar("Asked", bound=Frozen)
PREDICTION_SECONDS = 60.0
COMPARED_MECHANISMS = 20
"""The mechanisms that a comparison is taken to solve, each like the optimum, when it is placed in line."""
_PREDICTION_MB = 512
_OPEN_FILE_FACTOR = 8  # a question about a file takes this many times its bytes


class QuestionKind(ABC, Generic[Asked]):
    """One kind of question; a subclass is its whole statement.

    Attributes:
        path: path of its route.
        scope: scope that a caller needs.
        body: what is posted; its name is that of its schema.
        example: an example of that.
        reply: name of the schema of the answer.
        part: pointer of the part of the body that a refusal's pointers begin from.
        work: kind of place; see `api/http/work_gate.py`.
        remedy: what to do about one that takes too much.
        seconds: wall limit.
        threads: threads that it may use; 0 for all of the solves.
    """

    path: str
    scope = Scope.SUBMIT
    body: type[Frozen]
    example: Mapping[str, object]
    reply: str
    part = ""
    work: str
    remedy: str
    seconds = 600.0
    threads = 0

    def complete(self, schemas: JsonObject, reference: str) -> None:  # noqa: B027 - most have nothing to add
        """Add to the schemas of all bodies, by name, what the body's class does not say; `reference` has `{model}`."""

    @abstractmethod
    def read(self, document: Mapping[str, object]) -> Asked:
        """Read what was posted; a worker reads the document of that again."""

    def check(self, asked: Asked, service: SolverService, caller: Caller, find: Find) -> tuple[str | None, int]:
        """Check it beside what the service has; looks at the disk.

        Returns:
            The digest of the result that it is about, and the memory that the answer takes, in units of 2^20 bytes; 0
            for half of what all solves may take.
        """
        return None, 0

    def estimate_seconds(self, asked: Asked) -> float:
        """Return about how many seconds the answer takes; infinite where nobody knows."""
        return math.inf

    @abstractmethod
    def answer(self, asked: Asked, store: Store, digest: str | None, tell: Tell) -> Mapping[str, object]:
        """Answer it in a worker, with the service's store and the digest that `check` has returned."""


class PredictionRequest(Frozen, use_attribute_docstrings=True):
    """A question of `factorize.predict`."""

    question: JsonObject
    """One of its kinds; docs/choose.md lists them."""
    factorization: str | None = None
    """Digest or spec digest of the stored result that it is about."""


class _Predict(QuestionKind[PredictionRequest]):
    """Answer a question of `factorize.predict`, about a stored factorization where it is about one."""

    path, scope, body, reply, part = "/v1/predict", Scope.READ, PredictionRequest, "Prediction", "/question"
    example = {"question": {"kind": "mean_estimation", "learning_rate": 0.05, "rho": 0.5}}
    work, seconds, threads = "question", PREDICTION_SECONDS, 1
    remedy = "ask for less, or ask `factorize predict`, which has no limit"

    def complete(self, schemas: JsonObject, reference: str) -> None:
        kinds = TypeAdapter(AnyQuestion).json_schema(ref_template=reference)
        schemas |= {**kinds.pop("$defs", {}), "Question": kinds}
        digest = {"type": "string", "pattern": f"^{DIGEST}$", "description": "digest or spec digest of a stored result"}
        fields = {"question": {"$ref": reference.format(model="Question")}, "factorization": digest}
        schemas["PredictionRequest"]["properties"] = fields

    def read(self, document: Mapping[str, object]) -> PredictionRequest:
        asked: PredictionRequest = read_union(document, PredictionRequest)
        try:
            read_union(asked.question, AnyQuestion)
        except InvalidSpec as error:
            raise error.within("/question") from None
        return asked

    def check(
        self, asked: PredictionRequest, service: SolverService, caller: Caller, find: Find
    ) -> tuple[str | None, int]:
        if asked.factorization is None:
            return None, _PREDICTION_MB
        about = find(check_digest(asked.factorization, what="factorization"))
        size = _OPEN_FILE_FACTOR * about.file.bytes
        limit_mb = service.engine.capacity_mb
        if limit_mb is not None and size > limit_mb << 20:
            message = (
                f"a question about this file takes about {size / 2**30:.1f} GiB; the limit is {limit_mb / 1024:.1f} "
                "GiB; download it and ask `factorize predict`"
            )
            raise AboveCapacity(message, {"bytes": size, "seconds": PREDICTION_SECONDS})
        return about.digest, _PREDICTION_MB + (size >> 20)

    def answer(self, asked: PredictionRequest, store: Store, digest: str | None, tell: Tell) -> Mapping[str, object]:
        return ask(asked.question, None if digest is None else store.load(digest)).document()


class _Compare(QuestionKind[CompareRequest]):
    """Compare all mechanisms that fit a spec.

    The answer is the table; with `Accept: text/event-stream` events: `progress` {done, total, mechanism, seconds},
    then `done` with the table or `failed` with the problem. Closing the connection ends the comparison.
    """

    path, body, reply, part = "/v1/compare", CompareRequest, "Comparison", "/spec"
    example = {"spec": {"workload": {"kind": "prefix", "n": 64}}, "buffers": 4}
    work, remedy = "comparison", "use a smaller n, or `factorize compare` with --max-seconds"

    def read(self, document: Mapping[str, object]) -> CompareRequest:
        return read_request(document)

    def check(
        self, asked: CompareRequest, service: SolverService, caller: Caller, find: Find
    ) -> tuple[str | None, int]:
        service.keep_matrices(asked.spec, caller, within="/spec")
        return None, 0

    def estimate_seconds(self, asked: CompareRequest) -> float:
        own = COMPARED_MECHANISMS * solvers.estimate(asked.spec).seconds
        return own if asked.seconds is None else min(own, asked.seconds)

    def answer(self, asked: CompareRequest, store: Store, digest: str | None, tell: Tell) -> Mapping[str, object]:
        return comparison(asked, store, _report(tell))


class _Recommend(QuestionKind[training_job.Job]):
    """Recommend one mechanism for a training job, with its noise, what the loader does, its spec and code.

    The answer is what `factorize recommend --output json` prints, and `table`, the comparison that it rests on. Events
    and the end are as those of `POST /v1/compare`.
    """

    path, reply = "/v1/recommend", "Advice"
    body: type[training_job.Job] = training_job.RecommendRequest
    example = {"examples": 6400, "batch_size": 100, "epochs": 2, "epsilon": 2.0, "delta": 1e-5, "memory": [4]}
    work, remedy = "comparison", "give fewer seconds, or ask `factorize recommend`, which has no limit"

    def complete(self, schemas: JsonObject, reference: str) -> None:
        schemas |= training_job.schemas(reference)

    def read(self, document: Mapping[str, object]) -> training_job.Job:
        return training_job.read_job(document, self.body)

    def estimate_seconds(self, asked: training_job.Job) -> float:
        return asked.seconds

    def answer(self, asked: training_job.Job, store: Store, digest: str | None, tell: Tell) -> Mapping[str, object]:
        table = comparison(request_of(asked), None, _report(tell), fitting=True)
        return {**advice_of(asked, table), "table": table}


class _RecommendForFleet(_Recommend):
    """Recommend one mechanism for federated training, with its noise, the timers of clients, its spec and code.

    Answer and events are those of `POST /v1/recommend`. `job` has `min_sep` and `max_participations` of a client.
    """

    path, body = "/v1/recommend/fleet", training_job.FleetRequest
    example = {"clients": 200, "clients_a_round": 20, "rounds": 64, "epsilon": 4.0, "delta": 1e-3, "memory": [4]}


class _Calibrate(QuestionKind[CalibrationRequest]):
    """Compute the noise for a privacy target, with the claim where epsilon counts on balls in bins.

    The answer is what `factorize calibrate --output json` prints. One is worked out at a time, ten minutes at most;
    closing the connection ends it. Events are as those of `POST /v1/compare`.
    """

    path, body, reply = "/v1/factorizations/{name}/calibrations", CalibrationRequest, "Calibration"
    example = {"epsilon": 2.0, "delta": 1e-6}
    work, remedy = "calibration", "use fewer bins, method 'deterministic', or `factorize calibrate`"

    def read(self, document: Mapping[str, object]) -> CalibrationRequest:
        return read_calibration_request(document)

    def check(
        self, asked: CalibrationRequest, service: SolverService, caller: Caller, find: Find
    ) -> tuple[str | None, int]:
        return find(None).digest, 0

    def answer(self, asked: CalibrationRequest, store: Store, digest: str | None, tell: Tell) -> Mapping[str, object]:
        return calibration(store.load(str(digest)), asked)


POSTED_KINDS: dict[str, QuestionKind[Any]] = {
    "predict": _Predict(),
    "compare": _Compare(),
    "recommend": _Recommend(),
    "recommend_for_fleet": _RecommendForFleet(),
    "calibrate": _Calibrate(),
}
"""The questions by the name of the route's operation and of the worker's question."""


def _report(tell: Tell) -> Report:
    began, names = time.monotonic(), ("done", "total", "mechanism")
    return lambda *step: tell(**dict(zip(names, step, strict=True)), seconds=time.monotonic() - began)


def make_ready() -> None:
    """Import what every solve needs."""
    for name in ("numba", "scipy.linalg", "factorize.solvers"):
        import_module(name)


def solve(request: JsonObject, tell: Tell) -> None:
    """Solve a canonical spec and write the draft of its factor file.

    Args:
        request: `spec`, `store`, and the `path` of the file.
        tell: told how far it is.

    Raises:
        FactorizeError: there is no file.
    """
    spec = _store(request["store"]).matrices.bind(parse_spec(request["spec"]))
    draft = solvers.search(spec, progress=lambda step: tell(**vars(step)))
    _write(partial(write_draft, draft), request["path"])


def form(request: JsonObject, _tell: Tell) -> None:
    """Write a stored factorization in another form.

    Args:
        request: `digest`, `store`, `path`; further `matrices`, or a `dtype`.
    """
    base = _store(request["store"]).load(request["digest"])
    _write(in_form(base, request["matrices"], request["dtype"]).save, request["path"])


def _answer(question: QuestionKind[Any], request: JsonObject, tell: Tell) -> Mapping[str, object]:
    return question.answer(question.read(request["request"]), _store(request["store"]), request.get("digest"), tell)


QUESTIONS: dict[str, object] = {"solve": solve, "form": form}
QUESTIONS |= {name: partial(_answer, question) for name, question in POSTED_KINDS.items()}


def _write(write: Callable[[Path], None], path: str) -> None:
    try:
        Files().produce(Path(path), write)
    except OSError as error:
        raise StoreUnavailable(f"{path}: {error}; free space and try again") from None


@cache
def _store(url: str) -> Store:
    return open_store(url, create=False)
