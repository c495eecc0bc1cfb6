"""A calibration may be kept with a checkpoint: it comes back from a pickle as it was, under every sampling."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from factorize.privacy import Calibration
from factorize.samplings import SAMPLINGS
from factorize.solvers import solve
from factorize.spec import parse_spec

N = 8
SIZES = {"dataset_size": 80, "batch_size": 5}
MIN_SEP = {"kind": "min_sep", "min_sep": 2}
JOBS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "fixed": ({"participation": {"kind": "fixed_epochs", "epochs": 2}}, {}),
    "poisson": ({"mechanism": {"kind": "identity"}}, SIZES),
    "cyclic_poisson": ({"mechanism": {"kind": "banded", "bands": 2}}, SIZES),
    "b_min_sep": ({"mechanism": {"kind": "banded", "bands": 2}, "participation": MIN_SEP}, SIZES),
    "balls_in_bins": ({"participation": {"kind": "fixed_epochs", "epochs": 2}}, {}),
    "random_allocation": ({"mechanism": {"kind": "identity"}}, {}),
}


@pytest.mark.parametrize("keep", [copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_it_comes_back_as_it_was(sampling: str, keep: Callable[[Calibration], Calibration]) -> None:
    spec, sizes = JOBS[sampling]
    factors = solve(parse_spec({"workload": {"kind": "prefix", "n": N}, **spec}))
    made = factors.calibrate(epsilon=2.0, delta=1e-5, sampling=sampling, **sizes)
    kept = keep(made)
    assert kept == made and kept.document() == made.document()
    if made.amplified and hasattr(made, "law"):
        assert kept.law.delta(3.0, 1.0) == made.law.delta(3.0, 1.0)
