"""A calibration as it is asked for, in plain data: the same over HTTP and between processes."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from factorize.plain_data import Count, Examples, Frozen, NonNegative, OpenUnit, Positive, read_union
from factorize.privacy.question import WORK, Question, question_of

_ASKED_FIELDS = ("epsilon", "delta", "rho", "mu", "sigma", "spent_mu")


class CalibrationRequest(Frozen, use_attribute_docstrings=True):
    """A privacy target and a sampling scheme; or a noise whose privacy is asked for."""

    epsilon: Positive | None = None
    """The epsilon of (epsilon, delta)-DP."""
    delta: OpenUnit | None = None
    """The delta that goes with `epsilon`; without one, delta is reported."""
    rho: Positive | None = None
    """The rho of rho-zCDP."""
    mu: Positive | None = None
    """The mu of mu-GDP."""
    sigma: Positive | None = None
    """A given noise, for sums: with `delta`, epsilon is answered; with `epsilon`, delta."""
    spent_mu: NonNegative | None = None
    """What independent runs on the same data have spent of the target without sampling: the noise is for the rest."""
    steps: Count | None = None
    """Of the run, where it stops early: what its first steps release. The stop may depend neither on the data nor on
    what was released."""
    clip_norm: Positive = 1.0
    """Bound on one contribution."""
    divisor: Examples | None = None
    """The fixed public divisor of means: adds their `sigma_of_means`."""
    adjacency: Annotated[str, Field(max_length=40)] = "zero_out"
    """`zero_out` or `replace_one`."""
    sampling: Annotated[str, Field(max_length=40)] = "fixed"
    """What epsilon counts on: `fixed`, `cyclic_poisson`, `b_min_sep`, `balls_in_bins`, `random_allocation` or
    `poisson`."""
    dataset_size: Examples | None = None
    """Public, of the Poisson schemes."""
    batch_size: Examples | None = None
    """Expected examples of a step, of the Poisson schemes; it divides nothing."""
    bins: Count | None = None
    """The bins of `balls_in_bins` and `random_allocation`; by default the steps of an epoch."""
    method: Literal["verified", "deterministic"] = "verified"
    """How `balls_in_bins` and `b_min_sep` find the noise: by a claim that samples test, or by bounds alone."""
    work: Annotated[int, Field(ge=0, le=WORK)] | None = None
    """Samples times bins that may test a claim of `balls_in_bins`, 2^28 at most: fewer prove a little less."""

    @property
    def question(self) -> Question:
        """Return what the numbers ask; raises InvalidParameter for nothing, or two things."""
        return question_of(**{name: getattr(self, name) for name in _ASKED_FIELDS})


def read_calibration_request(document: Mapping[str, object]) -> CalibrationRequest:
    """Read a request from plain data; raise InvalidSpec with pointers to the fields, or as its `question` does."""
    request: CalibrationRequest = read_union(document, CalibrationRequest)
    _ = request.question
    return request


def answer(factorization: Any, request: CalibrationRequest) -> dict[str, Any]:
    """Return the calibration as plain data; see `factorize.accounting.calibrate_sampling`."""
    from factorize.samplings.calibrating import calibrate_sampling

    options = request.model_dump(exclude=set(_ASKED_FIELDS))
    return calibrate_sampling(factorization, request.question, **options).document()
