"""Advising as a call: which mechanism a training job should take, in the words of `factorize recommend`.

factorize.recommend(examples=60_000, batch_size=600, epochs=10, epsilon=2.0, delta=1e-5, memory=4)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from factorize.api.calls import Document, bar_of, fields_in, remembered
from factorize.api.questions.advice import advice_text
from factorize.api.questions.job_code import FRAMEWORKS
from factorize.api.terminal.progress import python_display
from factorize.errors import InvalidParameter, extras_named
from factorize.keywords import WorkloadKind


class Advice(Document):
    """One mechanism for a training job, with all that a job needs to use it."""

    @property
    def mechanism(self) -> str:
        """Name and parameters."""
        return str(self.document["mechanism"])

    @property
    def sampling(self) -> str:
        """The scheme that the noise counts on; `fixed` for none."""
        return str(self.document["sampling"])

    @property
    def spec(self) -> dict[str, Any]:
        """What `factorize.solve` takes."""
        return dict(self.document["spec"])

    @property
    def sigma(self) -> dict[str, Any]:
        """Standard deviations per entry of Z: `sums`, and `means` with `divisor`, at `clip_norm`."""
        return dict(self.document["sigma"])

    @property
    def loader(self) -> str:
        """What the training job's loader has to do."""
        return str(self.document["loader"])

    @property
    def code(self) -> dict[str, str]:
        """Lines that use it: `torch`, `jax`, `numpy`."""
        return dict(self.document["code"])

    def __repr__(self) -> str:
        """The answer as the command line prints it."""
        return advice_text(self.document, FRAMEWORKS)

    def _repr_html_(self) -> str:
        """The answer in a notebook, the code folded."""
        text = f"<pre>{escape(advice_text(self.document, ()))}</pre>"
        return text + "".join(
            f"<details><summary>{escape(name)}</summary><pre>{escape(code)}</pre></details>"
            for name, code in self.code.items()
        )


def recommend(
    workload: WorkloadKind | Mapping[str, Any] | str = "prefix",
    /,
    *,
    examples: int | None = None,
    batch_size: int | None = None,
    epochs: int | None = None,
    clients: int | None = None,
    clients_a_round: int | None = None,
    rounds: int | None = None,
    check_in: int | None = None,
    offline: float | None = None,
    epsilon: float,
    delta: float,
    memory: int | Sequence[int] = 4,
    samplings: Sequence[str] | None = None,
    parameters: int | None = None,
    seconds: float | None = None,
    service: str | None = None,
    progress: bool | Callable[[int, int, str], None] | None = None,
    **words: Any,
) -> Advice:
    """Return which mechanism, which sampling and how much noise a training job takes, with code that uses it.

    Args:
        workload: what the optimizer sums: a name with its fields as keywords, or plain data; `n` follows.
        examples: in the data set.
        batch_size: examples of a step.
        epochs: passes over the data, 1 by default.
        clients: in a fleet, in place of `examples`: federated training.
        clients_a_round: asked in each round.
        rounds: of the whole run.
        check_in: rounds after which a client returns by itself; by default the server chooses among all.
        offline: share of the fleet that does not answer, 0 by default.
        epsilon: of (epsilon, delta)-DP, zero-out.
        delta: see `epsilon`.
        memory: vectors of noise state that may be kept, each as large as the model; of several budgets the largest is
            answered, and all are in `document["budgets"]`.
        samplings: that the loader can do, beside a fixed order; by default all.
        parameters: of the model, for the seconds that a step's noise takes.
        seconds: for all, 10 by default: what promises most is tried first, and the answer says what was not.
        service: URL of a service that compares.
        progress: whether a bar is drawn, or a function that is told mechanisms done, their total and one that runs.
        **words: fields of the workload and the objective (docs/spec.md).

    Raises:
        InvalidSpec: a number outside its limits, or the workload or the objective is none.
        InvalidParameter: a field that follows from the job, a batch larger than the data set, or a fleet that is too
            small for a round.
        ConditionNotMet: no run with these numbers is covered, or nothing fits the memory.
        MissingExtra: without the extra `[solve]`.
    """
    from factorize.api.questions.advice import advise
    from factorize.api.questions.training_job import FleetRequest, RecommendRequest, kind_of, read_job

    fields = fields_in(locals(), RecommendRequest, FleetRequest) | _parts(workload, words)
    fields |= {"memory": [memory]} if isinstance(memory, int) else {}
    job = read_job(fields, kind_of(fields))
    with extras_named("a recommendation"), python_display("comparing", bar_of(progress)) as shown:
        return Advice(advise(job, progress if callable(progress) else shown.count, service, remembered))


def _parts(workload: Mapping[str, Any] | str, words: Mapping[str, Any]) -> dict[str, Any]:
    """Return workload and objective as plain data."""
    from factorize.api.questions.training_job import about
    from factorize.keywords import plain
    from factorize.plain_data.words import document_of_words
    from factorize.spec import Spec

    if not isinstance(workload, str):
        if words:
            message = f"{', '.join(words)} beside a whole workload: put them into it, or give its name and keywords"
            raise InvalidParameter(message, field=next(iter(words)))
        return about({"workload": dict(workload)})
    fields = {name: plain(value) for name, value in words.items()}
    return about(document_of_words(Spec, {"workload": workload, **fields}))
