"""The contract of the calls of a training job: an argument of a wrong type is refused by an error of ours that names it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

import factorize
from factorize.client import even_shard
from factorize.errors import FactorizeError
from factorize.privacy import Calibration
from factorize.training.auditor import ParticipationAuditor
from factorize.training.bins_audit import BinsAuditor
from factorize.training.orders import balls_in_bins, fixed_order, min_sep_order, random_allocation, take_turns
from factorize.training.receipt import Receipt
from factorize.training.sampling import CyclicPoisson
from factorize.training.statement import PrivacyStatement

WRONG = [
    "ab",
    "3",
    b"x",
    2.5,
    math.nan,
    1j,
    [],
    (1, 2, 3),
    {},
    {1},
    len,
    object(),
    np.array([1.0, 2.0]),
    np.float32(3.0),
]
SEED, KEY = 7 << 120, bytes(range(32))


@cache
def factors(**mechanism: Any) -> factorize.Factors:
    return factorize.solve("prefix", n=16, epochs=4, progress=False, **mechanism)


@cache
def scale(divisor: int | None = None) -> Calibration:
    return factors().calibrate(epsilon=2.0, delta=1e-6, divisor=divisor)


def make_noise(**options: Any) -> Any:
    made = factors().noise(options.pop("calibration"), options.pop("shape"), seed=options.pop("seed"), **options)
    made.close()


def skip(steps: Any) -> None:
    made = factors().noise(scale(), 3, seed=SEED)
    made.skip(steps)
    made.close()


def load_noise(state: Any) -> None:
    factors().noise(scale(), 3, seed=SEED).load_state_dict(state)


def load_auditor(state: Any) -> None:
    ParticipationAuditor.of(scale(), 16).load_state_dict(state)


def load_bins(state: Any) -> None:
    BinsAuditor.of(balls_in_bins(80, 8, 4, KEY)).load_state_dict(state)


def draw_poisson(examples: Any, steps: Any, seed: Any) -> None:
    banded = factors(mechanism="banded", bands=4)
    calibration = banded.calibrate(epsilon=2.0, delta=1e-6, sampling="cyclic_poisson", dataset_size=80, batch_size=4)
    CyclicPoisson(examples, calibration, steps=steps, seed=seed)


def make_statement(**given: Any) -> PrivacyStatement:
    own = {"calibration": scale(), "digest": factors().digest, "factors": factors(), "sampling": "fixed"}
    return PrivacyStatement(**{**own, "steps": 16, "examples": 80, "used": 80, "unit": "example", **given})


def begin_receipt(unpublished: Any = False, **given: Any) -> None:
    with TemporaryDirectory() as folder:
        receipt = Receipt(f"{folder}/receipt.json", unpublished=unpublished)
        own = {"statement": make_statement(), "factors": [factors()], "generator": "sfc64", "dtype": "float32"}
        receipt.begin(**{**own, "auditor": ParticipationAuditor.of(scale(), 16), **given})
        receipt.close()


CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "calibrate": (lambda **given: factors().calibrate(**given), {"epsilon": 2.0, "delta": 1e-6, "divisor": 8}),
    "rows": (lambda **given: factors().rows(**given), {"matrix": "C", "start": 0, "stop": 2}),
    "blocks of rows": (lambda **given: list(factors().rows("C", **given)), {"block_bytes": 1000}),
    "noise": (make_noise, {"calibration": scale, "shape": 3, "seed": SEED, "memory_bytes": 9, "threads": 1}),
    "a shard of noise": (
        make_noise,
        {"calibration": scale, "shape": 3, "seed": SEED, "shard": (0, 2), "generator": "sfc64", "precision": "float64"},
    ),
    "an auditor of noise": (make_noise, {"calibration": scale, "shape": 3, "seed": SEED, "auditor": "not_looked_at"}),
    "skip": (skip, {"steps": 1}),
    "load_state_dict": (load_noise, {"state": None}),
    "load_state_dict of an auditor": (load_auditor, {"state": None}),
    "load_state_dict of an auditor of bins": (load_bins, {"state": None}),
    "even_shard": (even_shard, {"size": 9, "rank": 1, "count": 3}),
    "fixed_order": (fixed_order, {"examples": 80, "batch_size": 8, "epochs": 4, "remainder": "pad", "seed": 1}),
    "min_sep_order": (min_sep_order, {"examples": 80, "batch_size": 8, "min_sep": 4, "steps": 16, "seed": 1}),
    "take_turns": (take_turns, {"order": lambda: fixed_order(5, 1), "users": [0, 1, 2, 3, 4] * 3}),
    "balls_in_bins": (balls_in_bins, {"examples": 80, "bins": 8, "epochs": 4, "secret_key": KEY, "physical_batch": 16}),
    "random_allocation": (random_allocation, {"examples": 80, "bins": 8, "epochs": 4, "secret_key": KEY}),
    "CyclicPoisson": (draw_poisson, {"examples": 80, "steps": 16, "seed": SEED}),
    "a statement": (
        make_statement,
        {"calibration": scale, "digest": lambda: factors().digest, "unit": "example", "steps": 16, "replaced": ()},
    ),
    "the factors of a statement": (make_statement, {"factors": factors, "sampling": "fixed", "loss": "rehearsed"}),
    "a statement of a run that stops": (lambda **given: make_statement().epsilon_so_far(**given), {"steps": 4}),
    "a receipt": (begin_receipt, {"statement": make_statement, "factors": lambda: [factors()], "unpublished": False}),
    "the noise of a receipt": (begin_receipt, {"generator": "sfc64", "dtype": "float32", "commitments": ()}),
    "the auditor of a receipt": (begin_receipt, {"auditor": lambda: ParticipationAuditor.of(scale(), 16)}),
    "an auditor": (ParticipationAuditor.of, {"calibration": scale, "steps": 16}),
}


@pytest.mark.parametrize("call", CALLS)
def test_an_argument_of_a_wrong_type_is_refused(call: str) -> None:
    function, given = CALLS[call]
    right = {name: value() if callable(value) else value for name, value in given.items()}
    if "state" not in right:
        function(**right)
    fits: dict[str, tuple[type, ...]] = {"users": (list, tuple, str, bytes, np.ndarray), "shape": (list, tuple)}
    fits |= {"epsilon": (float, np.floating), "replaced": (tuple,), "commitments": (list,)}
    for name in right:
        for wrong in WRONG:
            if not isinstance(wrong, fits.get(name, ())):
                with pytest.raises(FactorizeError):
                    function(**{**right, name: wrong})
