"""The contract of doors on the client's own generator."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from door_contract import (
    CLIP,
    RULES,
    SEED,
    Door,
    Mistake,
    calibrated,
    check,
    check_more,
    factors,
    of_going_back,
    of_sums,
    of_unseen_batches,
)

from factorize.noise.generator import NoiseGenerator
from factorize.noise.source import source_of

pytestmark = pytest.mark.single_use
SIZE = 5


class Numpy(Door):
    """`factorize.client.NoiseGenerator`, to whose noise a job adds sums."""

    name = "numpy"
    not_here = {
        "mixing_loss": "sums of clipped gradients come from outside; there is no loss to look at",
        "partial_optimizer": "there are no parameters and no optimizer: the sum is one array",
        "early": "it sees sums and no examples; a ParticipationAuditor beside it does",
    }

    def begin(
        self, folder: Path, *, seed: int = SEED, name: str = "one", clip: float = CLIP, state: Any = None
    ) -> NoiseGenerator:
        held = factors(name)
        run = NoiseGenerator(source_of(held), calibrated(held, clip=clip), SIZE, seed=seed)
        if state is not None:
            run.load_state_dict(state)
        return run

    def step(self, run: NoiseGenerator) -> bytes:
        return run.add_to_sum(np.ones(SIZE)).tobytes()

    def taken(self, run: NoiseGenerator) -> int:
        return run.step

    def saved(self, run: NoiseGenerator) -> Any:
        return run.state_dict()

    def secrets(self, run: NoiseGenerator) -> list[Any]:
        return [run]

    def end(self, run: NoiseGenerator) -> None:
        run.close()

    def not_real(self, run: NoiseGenerator) -> None:
        run.add_to_sum(np.ones(SIZE, np.complex128))

    def narrow(self, run: NoiseGenerator) -> None:
        run.add_to_sum(np.ones(SIZE, np.float16))

    def wrong_rows(self, run: NoiseGenerator) -> None:
        run.add_to_sum(np.ones((2, SIZE)))

    def more(self) -> dict[str, Mistake]:
        source: Any = source_of(factors())
        bare: Any = 1.0
        return {
            "a bare number for the scale of the noise": Mistake(
                "refused", lambda folder: NoiseGenerator(source, bare, SIZE, seed=SEED), "plain float"
            ),
            **of_unseen_batches(partial(NoiseGenerator, source, shape=SIZE, seed=SEED)),
            **of_sums(release),
            **of_going_back(self, NoiseGenerator.load_state_dict),
        }


def release(held: Any, calibration: Any, **options: Any) -> Any:
    run = NoiseGenerator(source_of(held), calibration, SIZE, seed=SEED, **options)
    return lambda number, mean=False: (run.add_to_mean if mean else run.add_to_sum)(np.full(SIZE, number))


def test_the_table_is_true_of_numpy(tmp_path: Path) -> None:
    check_more(Numpy(), tmp_path)


@pytest.mark.parametrize("rule", RULES)
def test_numpy_keeps_the_contract(rule: str, tmp_path: Path) -> None:
    check(Numpy(), rule, tmp_path)
