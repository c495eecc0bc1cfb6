"""The epsilon of a run that stops before its last step."""

import math
from collections.abc import Mapping
from typing import Any

from factorize.errors import InvalidParameter, UnsupportedProblem, extras_named
from factorize.format.manifest import certified
from factorize.numbers.gaussian import check_delta
from factorize.numbers.scalars import whole_number


@extras_named("the epsilon of a run that stops early")
def epsilon_of_first_steps(
    run: object, noise: Mapping[str, Any], steps: int, delta: float | None = None, *, overflow_delta: float = 0.0
) -> float:
    """Return epsilon of the first steps of a run, which is at most that of all steps.

    It holds if the decision to stop depended neither on the data nor on the releases.

    Args:
        run: the factors of the run.
        noise: the calibration, as plain data.
        steps: number of steps that were released, 0 to n.
        delta: the delta of the guarantee; by default the calibration's and `overflow_delta` together.
        overflow_delta: the part of the guarantee's delta for an overflow, see `PrivacyStatement`.

    Raises:
        InvalidParameter: steps that are no number from 0 to n; or no delta, or none above `overflow_delta`.
        UnsupportedProblem: the squares of gradients have noise of their own.
    """
    if "second_sigma_of_sums" in noise:
        raise UnsupportedProblem(
            "the epsilon of a run that stops early is not known if gradients and their squares are released "
            "together; use the calibration's epsilon, which covers all steps"
        )
    at = noise["delta"] if delta is None else delta
    if at is None:
        raise InvalidParameter("the calibration states no delta; give delta", field="delta")
    at = check_delta(at)
    if delta is not None and overflow_delta:
        at = math.nextafter(at - overflow_delta, 0.0)
        if at <= 0:
            raise InvalidParameter(
                f"delta={delta!r} is not above {overflow_delta:.3g}, the part that batches of limited capacity take; "
                "give a larger one",
                field="delta",
            )
    if whole_number("steps", steps, low=0) == 0:
        return 0.0
    options = {
        name: noise[name] for name in ("clip_norm", "adjacency", "bins", "dataset_size", "batch_size") if name in noise
    }
    question = {"sigma": noise["sigma_of_sums"], "delta": at, "sampling": noise["sampling"], "steps": steps}
    found = certified(run).opened().calibrate(**question, **options).epsilon
    assert found is not None
    return found if noise["epsilon"] is None or at != noise["delta"] else min(found, noise["epsilon"])
