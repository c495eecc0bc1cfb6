"""The contract of doors on torch's generator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
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
)

from factorize.adapters.torch import NoiseGenerator

pytestmark = pytest.mark.single_use


def larger() -> Any:
    """Return a factorization of another sensitivity."""
    held = factors("another")
    return replace(held, sensitivity=replace(held.sensitivity, value=3.0))


def bits(tensors: Any) -> bytes:
    return b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)


class Torch(Door):
    """`factorize.adapters.torch.NoiseGenerator` in a loop of the caller's own."""

    name = "torch"
    not_here = {
        "mixing_loss": "sums of clipped gradients come from outside; there is no loss to look at",
        "partial_optimizer": "there is no optimizer: the caller hands over the sums of the parameters that it named",
        "early": "it sees sums and no examples; a ParticipationAuditor beside it does",
    }
    shapes = [(3, 2), (4,)]

    def begin(
        self, folder: Path, *, seed: int = SEED, name: str = "one", clip: float = CLIP, state: Any = None
    ) -> NoiseGenerator:
        held = factors(name)
        run = NoiseGenerator(
            held, calibrated(held, clip=clip), [torch.zeros(shape) for shape in self.shapes], seed=seed
        )
        if state is not None:
            run.load_state_dict(state)
        return run

    def step(self, run: NoiseGenerator) -> bytes:
        return bits(run.add_to_sum([torch.ones(shape) for shape in self.shapes]))

    def taken(self, run: NoiseGenerator) -> int:
        return run.step

    def saved(self, run: NoiseGenerator) -> Any:
        return run.state_dict()

    def secrets(self, run: NoiseGenerator) -> list[Any]:
        return [run]

    def end(self, run: NoiseGenerator) -> None:
        run.close()

    def not_real(self, run: NoiseGenerator) -> None:
        run.add_to_sum([torch.ones(shape, dtype=torch.complex64) for shape in self.shapes])

    def narrow(self, run: NoiseGenerator) -> None:
        run.add_to_sum([torch.ones(shape, dtype=torch.float16) for shape in self.shapes])

    def more(self) -> dict[str, Mistake]:
        parameters, bare = [torch.zeros(3)], cast(Any, 1.0)
        return {
            "a bare number for the scale of the noise": Mistake(
                "refused",
                lambda folder: NoiseGenerator(factors(), bare, parameters, seed=SEED),
                "bare float|Calibration",
            ),
            "a calibration of another factorization": Mistake(
                "refused",
                lambda folder: NoiseGenerator(factors(), calibrated(larger()), parameters, seed=SEED),
                "this factorization has",
            ),
        }

    def wrong_rows(self, run: NoiseGenerator) -> None:
        run.add_to_sum([torch.ones((2, *shape)) for shape in self.shapes])


@pytest.mark.parametrize("door", [Torch()], ids=lambda door: door.name)
def test_the_table_is_true_of_torch(door: Door, tmp_path: Path) -> None:
    check_more(door, tmp_path)


@pytest.mark.parametrize("door", [Torch()], ids=lambda door: door.name)
@pytest.mark.parametrize("rule", RULES)
def test_torch_keeps_the_contract(door: Door, rule: str, tmp_path: Path) -> None:
    check(door, rule, tmp_path)
