"""Gradients and their squares with noise of their own: what is released, how Adam steps by it, and restarts."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from handmade import handmade
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from private_cases import EPOCHS, SECRET, SIZE, N
from test_private import data, flat, gradients, network, private, steps

from factorize.accounting.joint_moments import calibrate_moments
from factorize.adapters.adaptive.joint_adam import JointAdam, MomentAdam, second_seed
from factorize.adapters.private import Private
from factorize.adapters.torch import NoiseGenerator
from factorize.errors import InvalidParameter
from factorize.privacy import NOT_LOOKED_AT, PrivacyTarget
from factorize.structures.toeplitz import ToeplitzMatrix
from factorize.training.auditor import ParticipationAuditor
from factorize.training.orders import fixed_order

CLIP, FLOOR, RATE = 0.7, 0.05, 0.01
FIXED = {"kind": "fixed_epochs", "epochs": EPOCHS}
FACTORS = [handmade(ToeplitzMatrix(c ** np.arange(N), N), FIXED, value=v) for c, v in ((0.5, 2.5), (0.8, 3.0))]
MOMENTS = calibrate_moments(*FACTORS, PrivacyTarget(mu=2.0), clip_norm=CLIP, divisor=SIZE)


def made(kind: Any = torch.optim.Adam, **options: Any) -> tuple[torch.nn.Module, JointAdam]:
    model = GradSampleModule(network(), loss_reduction="mean")
    optimizer = kind(model.parameters(), lr=RATE, **options)
    auditor = ParticipationAuditor.of(MOMENTS.first, N)
    return model, JointAdam(optimizer, *FACTORS, MOMENTS, seed=SECRET, floor=FLOOR, auditor=auditor)


def train(model: torch.nn.Module, optimizer: JointAdam, steps: range) -> list[tuple[torch.Tensor, torch.Tensor]]:
    order, (x, y) = fixed_order(len(data()), SIZE, epochs=EPOCHS, seed=0), data().tensors
    released = []
    for step in steps:
        optimizer.expect(order[step])
        torch.nn.functional.cross_entropy(model(x[order[step]]), y[order[step]]).backward()
        optimizer.step()
        released.append((flat(p.grad for p in optimizer.params), flat(p.released_square for p in optimizer.params)))
        optimizer.zero_grad()
    return released


@pytest.mark.single_use
def test_a_mistake_in_one_noise_leaves_the_other_to_the_mended_call() -> None:
    """As in a notebook, which keeps the frames of the call that failed."""
    for wrong in (FACTORS[:1] * 2, FACTORS[1:] * 2):
        with pytest.raises(InvalidParameter, match="calibrate this one") as kept:
            JointAdam(torch.optim.Adam(network().parameters()), *wrong, MOMENTS, seed=SECRET, auditor=NOT_LOOKED_AT)
        made()[1].noise.close()
        assert kept


@pytest.mark.single_use
def test_a_failure_after_the_noise_leaves_it_to_the_mended_call(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken, pytest.raises(ZeroDivisionError) as kept:
        broken.setattr(DPOptimizer, "__init__", lambda *_, **__: 1 / 0)
        made()
    made()[1].noise.close()
    assert kept


def test_what_is_released_and_how_adam_steps() -> None:
    """By hand: one example after the other, both rows of noise, and algorithm 1 of Kingma and Ba with a floor."""
    model, optimizer = made()
    released = train(model, optimizer, range(N))
    own, order = network(), fixed_order(len(data()), SIZE, epochs=EPOCHS, seed=0)
    noises = [
        NoiseGenerator(FACTORS[0], MOMENTS.first, list(own.parameters()), seed=SECRET),
        NoiseGenerator(FACTORS[1], MOMENTS.second, list(own.parameters()), seed=second_seed(SECRET)),
    ]
    m = v = torch.zeros(sum(p.numel() for p in own.parameters()), dtype=torch.float64)
    for step in range(N):
        rows = gradients(own, order[step])
        rows = rows * (CLIP / rows.norm(dim=1, keepdim=True)).clamp(max=1)
        grad = (rows.sum(0) + flat(noises[0].next())) / SIZE
        square = (rows.square().sum(0) + flat(noises[1].next())) / SIZE
        assert torch.allclose(released[step][0], grad, atol=1e-5)
        assert torch.allclose(released[step][1], square, atol=1e-5)
        m, v = 0.9 * m + 0.1 * grad, 0.999 * v + 0.001 * square
        roots = (v / (1 - 0.999 ** (step + 1))).clamp(min=FLOOR**2).sqrt()
        moved = RATE * m / (1 - 0.9 ** (step + 1)) / (roots + 1e-8)
        weights = torch.nn.utils.parameters_to_vector(own.parameters()) - moved.float()
        torch.nn.utils.vector_to_parameters(weights.detach(), own.parameters())
    assert torch.allclose(flat(model.parameters()), flat(own.parameters()), atol=1e-5)


def test_a_step_that_took_one_noise_alone_is_the_last() -> None:
    model, optimizer = made()
    train(model, optimizer, range(1))
    with mock.patch.object(optimizer.second_noise, "release", side_effect=KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            train(model, optimizer, range(1, 2))
    optimizer.zero_grad()
    with pytest.raises(InvalidParameter, match="are at steps 2 and 1, since a step was interrupted"):
        train(model, optimizer, range(2, 3))


def test_a_restart_makes_the_same_steps() -> None:
    whole = train(*made(), range(N))
    model, optimizer = made()
    train(model, optimizer, range(4))
    again, other = made()
    again.load_state_dict(model.state_dict())
    other.load_state_dict(optimizer.state_dict())
    for one, two in zip(whole[4:], train(again, other, range(4, N)), strict=True):
        assert torch.equal(one[0], two[0]) and torch.equal(one[1], two[1])
    with pytest.raises(InvalidParameter, match="no second_noise"):
        other.load_state_dict({k: v for k, v in optimizer.state_dict().items() if k != "second_noise"})


def one_call(**options: Any) -> Private:
    asked = {"spec": FACTORS[0], "second": FACTORS[1], "adaptive": "joint", "kind": torch.optim.Adam, "rate": RATE}
    return private(**{**asked, **options})


def test_one_call_trains_with_both_and_says_what_for() -> None:
    made_private = one_call()
    moments = calibrate_moments(*FACTORS, PrivacyTarget(epsilon=4.0, delta=1e-5), clip_norm=CLIP, divisor=SIZE)
    assert made_private.statement.moments == moments
    said = made_private.statement.document()
    assert said["second_sigma_of_sums"] == moments.second.sigma_of_sums and said["digests"] == [
        each.digest for each in FACTORS
    ]
    assert f"{moments.second.sigma_of_sums:.6g} from factorization {FACTORS[1].digest}" in str(made_private.statement)
    model = GradSampleModule(network(), loss_reduction="mean")
    auditor = ParticipationAuditor.of(moments.first, N)
    by_hand = JointAdam(torch.optim.Adam(model.parameters(), lr=RATE), *FACTORS, moments, seed=SECRET, auditor=auditor)
    expected = train(model, by_hand, range(N))
    for (gradient, square), released in zip(expected, loop(made_private), strict=True):
        assert torch.equal(released[0], gradient) and torch.equal(released[1], square)
    resumed = one_call()
    resumed.model.load_state_dict(made_private.model.state_dict())
    resumed.optimizer.load_state_dict(made_private.optimizer.state_dict())
    assert resumed.optimizer.second_noise.step == N == resumed.optimizer.auditor.step
    torn = made_private.optimizer.state_dict()
    torn["second_noise"] = {**torn["second_noise"], "step": 1}
    with pytest.raises(InvalidParameter, match="at steps 15 and 1"):
        one_call().optimizer.load_state_dict(torn)


def loop(private: Private) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The loop of a user."""
    own = private.optimizer.params
    every = (_ for _ in range(EPOCHS) for _ in steps(private))
    return [(flat(p.grad for p in own), flat(p.released_square for p in own)) for _ in every]


def test_auto_asks_for_the_optimum_of_each_moment() -> None:
    asked: list[Any] = []

    def solve(spec: Any) -> Any:
        asked.append(spec.workload)
        return FACTORS[len(asked) - 1]

    one_call(spec="auto", second="auto", solve=solve)
    assert [(w.kind, w.beta, w.output) for w in asked] == [("adam", 0.9, "iterate"), ("adam", 0.999, "moment")]


def test_squares_that_were_thrown_away_do_not_come_back() -> None:
    model, optimizer = made()
    x, y = data().tensors
    torch.nn.functional.cross_entropy(model(x[:4]), y[:4]).backward()
    optimizer.clip_and_accumulate()
    optimizer.zero_grad()
    fresh = train(*made(), range(1))[0]
    optimizer._batch.end_step()
    assert torch.equal(train(model, optimizer, range(1))[0][1], fresh[1])


def test_both_moments_may_have_one_factorization() -> None:
    """Their noise differs all the same."""
    assert second_seed(SECRET) != SECRET and second_seed(12 << 64) != second_seed(SECRET)


def test_what_is_refused() -> None:
    for kind, options, said in (
        (torch.optim.SGD, {}, "SGD is neither Adam nor AdamW"),
        (torch.optim.Adam, {"weight_decay": 0.1}, "weight_decay of Adam"),
        (torch.optim.AdamW, {"amsgrad": True}, "amsgrad"),
    ):
        with pytest.raises(InvalidParameter, match=said):
            made(kind, **options)
    for options, said in (
        ({"kind": torch.optim.SGD}, "SGD is neither Adam nor AdamW"),
        ({"sampling": "balls_in_bins"}, "no accountant for two moments"),
        ({"adaptive": "plain"}, "adaptive='plain' does not release"),
        ({"second": handmade(ToeplitzMatrix(0.5 ** np.arange(4), 4), FIXED, value=2.0)}, "15 steps under"),
    ):
        with pytest.raises(InvalidParameter, match=said):
            one_call(**options)
    with pytest.raises(InvalidParameter, match="floor=0"):
        MomentAdam(torch.optim.Adam(network().parameters()), 0)
    swapped = calibrate_moments(FACTORS[1], FACTORS[0], PrivacyTarget(mu=2.0), clip_norm=CLIP, divisor=SIZE)
    with pytest.raises(InvalidParameter, match="calibrate this one"):
        JointAdam(torch.optim.Adam(network().parameters()), *FACTORS, swapped, seed=1 << 64)
