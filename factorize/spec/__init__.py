"""The spec: a question as frozen data, with one canonical form and one digest.

The same JSON goes over HTTP, into files and under the digest. Meanings never change; fields that are added later are
optional and absent from the canonical form unless given, so that the digest of an old spec never changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Unpack

import numpy as np
from pydantic import Field

from factorize.encoding import json_digest, read_json
from factorize.errors import InvalidParameter, InvalidSpec, UnsupportedProblem, Violation
from factorize.format.keywords import SpecKeywords, WorkloadKind, plain
from factorize.format.labels import describe_part
from factorize.participation import AnyParticipation, Participation, Single
from factorize.plain_data import Frozen, OpenUnit, Positive, read_union
from factorize.plain_data.words import document_of_words
from factorize.spec.mechanisms import WARNED_STEPS, AnyMechanism, Auto, dense_note
from factorize.spec.objective import AnyObjective, Mean
from factorize.workloads import AnyWorkload, UserMatrix

DEFAULT_TOLERANCE = 1e-9
"""The relative gap that a spec asks for by default."""
_CANONICAL_MARK = "canonical form"
"""The mark of a spec that has been brought into its canonical form."""
LARGEST_BINS = 4096
"""The most bins: more have no accountant, since b^2 exponentials per evaluation stop being cheap."""


class BinsSampling(Frozen):
    """A law by which examples take part, on the average as often as there are epochs.

    Under `balls_in_bins` each draws one of b = n / epochs bins, once, and takes part in that step of every epoch. Under
    `b_min_sep` it takes part with one probability in each step that is at least as many after its last as C has bands.

    A spec that names a sampling asks for the C whose error is smallest *with* its amplification. The sensitivity and
    the losses of that C are stated without; a calibration adds the sampling (docs/amplification.md).

    Attributes:
        epsilon: of the (epsilon, delta)-DP at which C is to be best.
        delta: of the same.
    """

    kind: Literal["balls_in_bins", "b_min_sep"]
    epsilon: Positive
    delta: OpenUnit

    def bins(self, participation: Participation, n: int) -> int:
        """Return b, from 2 to 4096; raise InvalidParameter for a participation without such epochs."""
        bins = participation.epoch(n)
        if bins is None:
            raise InvalidParameter(
                f"sampling needs epochs, and participation {participation.kind!r} has none; use fixed_epochs",
                field="/sampling/kind",
            )
        if not 2 <= bins <= LARGEST_BINS:
            raise InvalidParameter(
                f"sampling needs epochs of 2 to {LARGEST_BINS} steps, and these have {bins}; change the size of "
                "batches, or leave sampling out",
                field="/sampling/kind",
            )
        return bins


class Spec(Frozen):
    """Workload, participation, objective, mechanism and tolerance.

    Attributes:
        workload: the matrix A to factor.
        participation: which steps one example may touch; the sensitivity is taken over these.
        objective: the variance to minimise.
        mechanism: the family of strategy matrices, or `auto`.
        tolerance: relative gap asked for within the mechanism's own class.
        optimize_for: a workload to optimise C for, if it is not the one to evaluate on.
        sampling: a law of participation, with a privacy, under which C is to be best.
    """

    workload: AnyWorkload
    participation: Annotated[AnyParticipation, Field(discriminator="kind")] = Single()
    objective: AnyObjective = Mean()
    mechanism: AnyMechanism = Auto()
    tolerance: OpenUnit = DEFAULT_TOLERANCE
    optimize_for: AnyWorkload | None = None
    sampling: BinsSampling | None = None

    @classmethod
    def of(cls, asked: WorkloadKind | np.ndarray | SpecSource, /, **words: Unpack[SpecKeywords]) -> Spec:
        """Return the canonical spec that keywords stand for: `Spec.of("prefix", n=2048, epochs=8)`.

        Args:
            asked: the workload's kind, or its plain data; an array A of shape (m, n), a workload of the caller's own;
                or a whole spec.
            **words: fields of the spec and of its parts, as on the command line: `mechanism="banded", bands=4`.

        Raises:
            InvalidSpec: the arguments are no spec; one violation per problem.
            InvalidParameter: a keyword that nothing has, one that several kinds have where none is named, or any beside
                a whole spec.
        """
        if isinstance(asked, (np.ndarray, list, tuple)):
            own: object = {"kind": "matrix", "rows": plain(asked)}
        elif isinstance(asked, str) and not asked.lstrip().startswith("{"):
            own = asked
        elif isinstance(asked, Mapping) and "kind" in asked and "workload" not in asked:
            own = dict(asked)
        elif words:
            message = (
                f"a whole spec cannot be combined with {', '.join(words)}; put them into the spec, or give a "
                "workload's name and keywords"
            )
            raise InvalidParameter(message, field=next(iter(words)))
        else:
            return parse_spec(asked)
        return parse_spec(document_of_words(cls, {"workload": own, **{name: plain(v) for name, v in words.items()}}))

    @property
    def is_canonical(self) -> bool:
        """Whether the spec is known to be in its canonical form, as results of `canonical` and `parse_spec` are."""
        return _CANONICAL_MARK in self.__dict__

    def canonical(self) -> Spec:
        """Return the spec with defaults, schedules, participations and inline matrices in their canonical form.

        `auto` stays `auto`: the solvers decide which mechanism it stands for.

        Raises:
            InvalidSpec: the parts do not fit each other.
        """
        mismatches = list(self._mismatches())
        if self.workload.endless:
            participation = _part(mismatches, "/participation", self.participation.without_end)
            _part(mismatches, "/objective", self.objective.check_endless)
        else:
            participation = _part(mismatches, "/participation", lambda: self.participation.canonical(self.workload.n))
            _part(mismatches, "/objective", lambda: self.objective.check(self.workload.m))
            if participation is not None and self.sampling is not None:
                _part(mismatches, "/sampling", lambda: self.sampling.bins(participation, self.workload.n))
        if mismatches:
            raise InvalidSpec(mismatches)
        parts = {
            "workload": self.workload.canonical(),
            "participation": participation,
            "optimize_for": self.optimize_for and self.optimize_for.canonical(),
        }
        changes = {name: part for name, part in parts.items() if part is not getattr(self, name)}
        return (self.model_copy(update=changes) if changes else self)._known_as_canonical()

    def _known_as_canonical(self) -> Spec:
        self.__dict__[_CANONICAL_MARK] = True  # a copy with other parts keeps neither this nor computed values
        return self

    def named(self, mechanism: AnyMechanism) -> Spec:
        """Return this canonical spec with a mechanism in place of `auto`; the form of no other part changes."""
        return self.model_copy(update={"mechanism": mechanism})._known_as_canonical()

    @property
    def label(self) -> str:
        """The workload and the mechanism in a few words, for a display."""
        return f"{describe_part(self.workload.document())} by {self.mechanism.kind}"

    def user_matrices(self) -> dict[str, UserMatrix]:
        """Return the workloads that are a user's own matrix, by field: `workload`, `optimize_for`, both or none."""
        parts = {"workload": self.workload, "optimize_for": self.optimize_for}
        return {name: part for name, part in parts.items() if isinstance(part, UserMatrix)}

    def user_arrays(self) -> dict[str, np.ndarray]:
        """Return the numbers of the user's matrices by sha256."""
        return {str(matrix.sha256): matrix.array for matrix in self.user_matrices().values()}

    def bind(self, matrices: Mapping[str, np.ndarray]) -> Spec:
        """Return the spec with the numbers of the users' matrices that it names without having them.

        Args:
            matrices: arrays of shape (m, n) by sha256; arrays that the spec does not name are ignored.

        Raises:
            InvalidWorkload: the numbers have another digest or shape.
        """
        bound = {
            name: part.bind(matrices[part.sha256])
            for name, part in self.user_matrices().items()
            if part.sha256 is not None and part.sha256 in matrices and not part.bound
        }
        if not bound:
            return self
        return self.model_copy(update=bound)

    def _mismatches(self) -> Iterator[Violation]:
        """Yield the conflicts of mechanism, sampling and `optimize_for` with each other and with the workload."""
        other, endless = self.optimize_for, self.workload.endless
        if endless and other is not None and other.endless:
            message = "optimize_for needs a number of steps, and its n is 'unbounded'; give n"
            yield Violation("/optimize_for/n", message)
        if endless and self.sampling is not None:
            yield Violation("/sampling", "n is 'unbounded', and sampling needs a number; give n, or leave sampling out")
        if not endless and other is not None and (other.endless or other.n != self.workload.n):
            stated = "'unbounded'" if other.endless else other.n
            message = f"optimize_for has n={stated}, but workload has n={self.workload.n}; give both the same n"
            yield Violation("/optimize_for", message)

    @cached_property
    def digest(self) -> str:
        """The sha256 of the canonical JSON, which names the question, and not the bytes of an answer.

        Raises:
            UnsupportedProblem: the mechanism is still `auto`, which `solvers.choose` replaces.
        """
        if not self.mechanism.named:
            raise UnsupportedProblem(
                "a spec with mechanism 'auto' has no digest; name a mechanism, or read the spec_digest of its answer"
            )
        return json_digest(parse_spec(self).document())


SpecSource = Spec | Mapping[str, Any] | str | bytes
"""A spec, plain data, or JSON text."""


def parse_spec(source: SpecSource) -> Spec:
    """Return a spec in canonical form; plain data must come from the strict reader.

    Raises:
        MalformedJson: the text is not JSON by the strict rules.
        InvalidSpec: the source is no spec; one violation per problem (the first 20), each with a pointer to its field.
    """
    if isinstance(source, Spec):
        return source if source.is_canonical else source.canonical()
    if not isinstance(source, (bytes, str, Mapping)):
        message = (
            f"this {type(source).__name__} is not a spec; give a Spec, its JSON text, or plain data (docs/spec.md)"
        )
        raise InvalidSpec([Violation("", message)])
    data = dict(source) if isinstance(source, Mapping) else read_json(source)
    try:
        spec: Spec = read_union(data, Spec)
        return spec.canonical()
    except InvalidSpec:
        raise
    except InvalidParameter as error:
        raise InvalidSpec([Violation(error.field or "", str(error))]) from None


def _part(found: list[Violation], pointer: str, step: Any) -> Any:
    try:
        return step()
    except InvalidParameter as error:
        found.append(Violation(error.field or pointer, str(error)))
    return None


def notes_of_choice(asked: Spec, chosen: Spec, instead: str) -> list[str]:
    """Return remarks on an answer: the cost of dense noise, the workload that C is optimised for, the units of errors.

    Args:
        asked: the spec that the caller gave.
        chosen: the same with its mechanism, and if necessary with another workload to optimise for.
        instead: see `dense_note`.
    """
    if asked.workload.kind == "adam" and "output" not in asked.workload.model_fields_set:
        return [
            "errors are for Adam's averaged gradients (output `moment`); for the error of the weights, choose the "
            "output `iterate` (--released iterate), an estimate that treats the denominator of Adam's update as fixed"
        ]
    if chosen.optimize_for is not None and asked.optimize_for is None:
        own, easier = describe_part(asked.workload.document()), describe_part(chosen.optimize_for.document())
        if easier == own:  # The values of long lists are not shown.
            easier = "the same with learning rates of zero raised to a thousandth of the largest"
        return [
            f"{chosen.mechanism.kind} cannot be optimised for {own}, so it is optimised for {easier}, the nearest "
            f"workload that it supports; all numbers are for {own}"
        ]
    if asked.mechanism.named or not chosen.mechanism.unrestricted:
        return []
    steps = chosen.workload.n
    return [dense_note(steps, instead)] if steps >= WARNED_STEPS else []
