"""What reaches the noise: sums that no rounding moves farther than the clip norm, and noise that is rounded last."""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from handmade import handmade
from opacus import GradSampleModule

from factorize.adapters.gradients.clipped_sums import CLIP_FACTOR, check_roundings
from factorize.adapters.gradients.clipping import clipped_moments, clipped_sums, refuse_narrow
from factorize.adapters.gradients.example_gradients import ExampleGradients
from factorize.adapters.gradients.gradient_rows import GradientRows
from factorize.adapters.gradients.layer_rows import LayerRows
from factorize.adapters.opacus import CorrelatedOptimizer
from factorize.adapters.torch import NoiseGenerator
from factorize.client import even_shard
from factorize.errors import InvalidParameter
from factorize.privacy import Calibration, PrivacyTarget, calibrate
from factorize.structures.buffered import BufferedMatrix

N, ROWS, CLIP = 6, 7, 0.7
NARROW = [torch.float16, torch.bfloat16]
TYPES = [*NARROW, torch.float32, torch.float64]


def gradients(dtype: torch.dtype, seed: int = 0) -> list[torch.Tensor]:
    luck = torch.Generator().manual_seed(seed)
    return [torch.randn(ROWS, *shape, generator=luck).to(dtype) for shape in ((3, 4), (5,), ())]


def by_hand(samples: list[torch.Tensor], counted: range | list[int] = range(ROWS)) -> list[np.ndarray]:
    """In Python's numbers, example by example."""
    sums = [np.zeros(sample.shape[1:]) for sample in samples]
    for i in counted:
        rows = [sample[i].double().numpy() for sample in samples]
        norm = math.sqrt(math.fsum(value * value for row in rows for value in row.ravel().tolist()))
        for total, row in zip(sums, rows, strict=True):
            total += row * min(1.0, CLIP * CLIP_FACTOR / norm)
    return sums


def factors() -> object:
    u = np.random.default_rng(1).uniform(0.2, 0.6, (3, N, 2))
    return handmade(BufferedMatrix(np.ones(N), *u), value=2.5)


def scale(mu: float = 1.0, **more: int) -> Calibration:
    return calibrate(factors().sensitivity, PrivacyTarget(mu=mu), clip_norm=CLIP, **more)


@pytest.fixture(params=[1 << 20, 1], ids=["torch", "compiled"])
def least_compiled(request, monkeypatch):
    """Entries from which compiled loops add up, in place of torch's operations."""
    monkeypatch.setattr("factorize.adapters.gradients.clipping.MIN_COMPILED_ENTRIES", request.param)


def test_norms_of_many_entries():
    """Both are layouts for which torch's norm in float32 is low, by 6e-5 and by 0.29; compiled loops take the first."""
    luck = torch.Generator().manual_seed(1)
    for sample in (torch.randn(1, 2**22, generator=luck).exp() * 1e-3, torch.ones(2**25, 2).t()[:, : 2**25]):
        low = sample.norm(2, dim=-1).double() / sample.double().norm(2, dim=-1)
        assert low.min() < 1 - 2e-5
        for i in range(len(sample)):
            assert 0.999999 < float(clipped_sums([sample[i : i + 1]], 1.0)[0].norm()) <= 1


@pytest.mark.usefixtures("least_compiled")
class TestClippedSums:
    @pytest.mark.parametrize("dtype", TYPES)
    def test_by_hand(self, dtype):
        samples = gradients(dtype)
        for mine, theirs in zip(clipped_sums(samples, CLIP), by_hand(samples), strict=True):
            assert mine.dtype == torch.float64
            assert np.abs(mine.numpy() - theirs).max() < 1e-11

    @pytest.mark.parametrize("dtype", TYPES)
    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_what_is_not_finite_or_padding_counts_as_zero(self, dtype, bad):
        samples = gradients(dtype)
        expected = by_hand(samples, [0, 3, 4, 6])
        samples[1][2, 1], samples[2][5] = bad, -bad
        counted = torch.ones(ROWS, dtype=torch.bool)
        counted[1] = False
        for mine, theirs in zip(clipped_sums(samples, CLIP, counted), expected, strict=True):
            assert np.abs(mine.numpy() - theirs).max() < 1e-11

    def test_what_half_precision_cannot_hold(self):
        """The squares of these gradients, and their sum, are beyond float16; the examples count."""
        samples = [torch.full((ROWS, 50), 6e4, dtype=torch.float16)]
        assert torch.allclose(
            clipped_sums(samples, CLIP)[0], torch.tensor(ROWS * CLIP * CLIP_FACTOR / math.sqrt(50)).double()
        )

    @pytest.mark.parametrize(("examples", "spread"), [(2, 0), (700, 0), (700, 12)])
    def test_no_example_moves_a_rounded_sum_by_more_than_the_clip_norm(self, examples, spread):
        """Exact fractions; the gradients of all others cancel, so that the sum has roundings and little else."""
        luck = torch.Generator().manual_seed(examples + spread)
        half = torch.randn(examples // 2, 9, generator=luck) * 10 ** (
            spread * torch.rand(examples // 2, 1) - spread / 2
        )
        rows = torch.cat([half, -half.flip(1), torch.tensor([[0.3, 0.4, *(0.1,) * 7]]) * 1e3])
        for lost in (0, examples):
            without = rows.clone()
            without[lost] = 0
            sums = [clipped_sums([each[:, :4], each[:, 4:]], CLIP) for each in (rows, without)]
            pairs = zip(*(torch.cat(each).tolist() for each in sums), strict=True)
            moved = sum((Fraction(own) - Fraction(other)) ** 2 for own, other in pairs)
            assert Fraction(CLIP) ** 2 * (1 - Fraction(1, 2**18)) < moved <= Fraction(CLIP) ** 2 or not lost

    def test_refuses_sums_whose_roundings_are_not_paid_for(self):
        for examples, parts in ((1 << 16, 1 << 6), (520_000, 508), (46_000, 45_000)):
            check_roundings(examples, parts)
        for examples, parts in ((1 << 20, 1), (50_000, 50_000)):
            with pytest.raises(InvalidParameter, match="use a smaller batch_size"):
                check_roundings(examples, parts)

    def test_cut_into_parts(self, monkeypatch):
        samples = gradients(torch.float32)
        whole = clipped_sums(samples, CLIP)
        monkeypatch.setattr("factorize.adapters.gradients.clipping.MAX_WIDENED_ENTRIES", 9)
        monkeypatch.setattr("factorize.adapters.gradients.clipping.MAX_ADDED_EXAMPLES", 3)
        for mine, theirs in zip(clipped_sums(samples, CLIP), whole, strict=True):
            assert torch.allclose(mine, theirs, rtol=1e-14)

    def test_threads_change_no_bit(self, monkeypatch):
        samples = gradients(torch.float32)
        alone = clipped_sums(samples, CLIP)
        monkeypatch.setattr("factorize.adapters.gradients.clipping.MIN_SHARE_ENTRIES", 1)
        monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
        assert all(map(torch.equal, clipped_sums(samples, CLIP), alone))

    def test_no_examples_and_zero_gradients(self):
        assert [total.abs().sum() for total in clipped_sums([g[:0] for g in gradients(torch.float32)], CLIP)] == [0] * 3
        assert clipped_sums([torch.zeros(2, 3)], CLIP)[0].tolist() == [0, 0, 0]

    @pytest.mark.parametrize("precision", ["high", "medium"])
    def test_reduced_matrix_products_do_not_reach_it(self, precision, monkeypatch):
        before = torch.get_float32_matmul_precision()
        samples = gradients(torch.float32)
        expected = clipped_sums(samples, CLIP)
        torch.set_float32_matmul_precision(precision)
        try:
            assert all(map(torch.equal, clipped_sums(samples, CLIP), expected))
        finally:
            torch.set_float32_matmul_precision(before)


class Twice(torch.nn.Module):
    """A table of words that is its last layer, too, and a layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.words, self.between = torch.nn.Embedding(11, 20), torch.nn.Linear(20, 20)
        self.last = torch.nn.Linear(20, 11, bias=False)
        self.last.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.between(torch.tanh(self.between(self.words(x)))))


class TestStreamed:
    """Gradients of examples that are made a few at a time are those that are in memory."""

    @pytest.mark.parametrize(("examples", "exact"), [(7, True), (1100, False)])
    def test_sums_are_those_of_rows_in_memory(self, examples, exact, monkeypatch):
        monkeypatch.setattr("factorize.adapters.gradients.layer_rows.MAX_STREAMED_ENTRIES", 2000)
        x = torch.randint(0, 11, (examples, 1), generator=torch.Generator().manual_seed(0))
        counted, found = torch.arange(examples) != 3, []
        for kind in (GradSampleModule, functools.partial(ExampleGradients, mode="streamed")):
            model = kind(Twice())
            model(x).square().mean().backward()
            samples = [p.grad_sample for p in model.parameters()]
            found.append((*clipped_sums(samples, 1e-3, counted), *clipped_moments(samples, CLIP)[1]))
            rows = GradientRows.of(samples)
            assert rows.sketch.shape == (examples, 11 * 20 + 20 * 20 + 20)
        assert all(isinstance(sample, LayerRows) for sample in samples)
        for mine, theirs in zip(*found, strict=True):
            assert torch.equal(mine, theirs) if exact else torch.allclose(mine, theirs, rtol=1e-12)

    def test_what_is_smaller_than_its_layer_keeps_stays_in_memory(self):
        model = ExampleGradients(torch.nn.Linear(3, 2), mode="streamed")
        model(torch.ones(4, 9, 3)).sum().backward()
        assert torch.is_tensor(model._module.weight.grad_sample)


class TestRelease:
    def like(self, dtype: torch.dtype) -> list[torch.Tensor]:
        return [torch.zeros(300, 4, dtype=dtype), torch.zeros(7, dtype=dtype)]

    @pytest.mark.parametrize("dtype", TYPES)
    def test_is_the_sum_rounded_last(self, dtype):
        beside = NoiseGenerator(factors(), scale(), self.like(torch.float32), seed=7 << 64)
        noise = NoiseGenerator(factors(), scale(), self.like(dtype), seed=7 << 64)
        luck = torch.Generator().manual_seed(2)
        for _ in range(N):
            sums = [torch.randn(p.shape, generator=luck, dtype=torch.float64) for p in self.like(dtype)]
            expected = [
                (total + drawn.double()).float().to(dtype) for total, drawn in zip(sums, beside.next(), strict=True)
            ]
            released = noise.add_to_sum(sums)
            assert all(map(torch.equal, released, expected)) and {part.dtype for part in released} == {dtype}

    def test_no_digit_of_a_gradient_is_beyond_the_noise(self):
        """In float64 the last 29 bits of the sum would be the gradient's own."""
        sums = [torch.full((300, 4), 1.0 + 2.0**-45, dtype=torch.float64), torch.ones(7, dtype=torch.float64)]
        for released in NoiseGenerator(factors(), scale(), self.like(torch.float64), seed=7 << 64).add_to_sum(sums):
            assert torch.equal(released, released.float().double())

    @pytest.mark.parametrize("dtype", [*NARROW, torch.float8_e4m3fn, torch.int64])
    def test_refuses_sums_that_are_rounded(self, dtype):
        noise = NoiseGenerator(factors(), scale(), self.like(torch.bfloat16), seed=7 << 64)
        with pytest.raises(InvalidParameter, match="raises its sensitivity; clip and sum in float32"):
            noise.add_to_sum([part.to(dtype) for part in self.like(torch.float32)])
        assert noise.step == 0
        refuse_narrow(self.like(torch.float32))

    def test_refuses_other_shapes(self):
        noise = NoiseGenerator(factors(), scale(), self.like(torch.float32), seed=7 << 64)
        for sums in ([], self.like(torch.float32)[:1], self.like(torch.float32)[::-1]):
            with pytest.raises(InvalidParameter, match="the shapes of the 2 parameters"):
                noise.add_to_sum(sums)
        assert noise.step == 0

    @pytest.mark.parametrize("dtype", TYPES)
    def test_a_mean_gets_the_noise_over_the_divisor_and_a_release_is_a_sum_divided(self, dtype):
        c = scale(1.0, divisor=8)
        beside, noise, job = (NoiseGenerator(factors(), c, self.like(dtype), seed=7 << 64) for _ in range(3))
        sums = [torch.full(p.shape, 0.01, dtype=torch.float64) for p in self.like(dtype)]
        drawn = [total + part.double() for total, part in zip(sums, beside.next(), strict=True)]
        added = noise.add_to_mean(total / 8 for total in sums)
        for mean, released, noisy in zip(added, job.release(sums), drawn, strict=True):
            assert mean.dtype == released.dtype == dtype and torch.equal(released, (noisy / 8).float().to(dtype))
            assert torch.allclose(mean.double(), noisy / 8, rtol=1e-2 if dtype in NARROW else 1e-6)
        assert all(torch.equal(total, torch.full_like(total, 0.01)) for total in sums)

    @pytest.mark.parametrize("threads", [1, 2])
    @pytest.mark.parametrize("dtype", TYPES)
    def test_a_release_in_memory_that_is_kept_has_the_same_bits(self, dtype, threads):
        """Tensors that begin and end within blocks of the noise, one without entries, and memory that does not fit."""
        like = [torch.empty(shape, dtype=dtype) for shape in ((300, 99), (0, 3), (70_001,), (5, 7, 401))]
        beside = NoiseGenerator(factors(), scale(divisor=7), like, seed=7 << 64)
        job = NoiseGenerator(factors(), scale(divisor=7), like, seed=7 << 64, threads=threads)
        out = [torch.empty_like(like[0]), None, torch.empty(70_001, 2, dtype=dtype)[:, 0], torch.empty_like(like[3])]
        sums = [torch.full(p.shape, 1e-4, dtype=torch.float64) for p in like]
        expected = [((total + z) / 7).float().to(dtype) for total, z in zip(sums, beside.next(), strict=True)]
        released = job.release(sums, out=out)
        assert all(map(torch.equal, released, expected))
        kept = [
            place is not None and own.data_ptr() == place.data_ptr() for own, place in zip(released, out, strict=True)
        ]
        assert kept == [True, False, False, True]

    def test_noise_for_means_is_refused_without_a_divisor_and_for_what_can_only_be_sums(self):
        like = self.like(torch.float32)
        noise = NoiseGenerator(factors(), scale(), like, seed=7 << 64)
        with pytest.raises(InvalidParameter, match="has no divisor"):
            noise.add_to_mean(like)
        assert noise.step == 0
        noise = NoiseGenerator(factors(), scale(1.0, divisor=600), like, seed=7 << 64)
        with pytest.raises(InvalidParameter, match="it is a sum"):
            noise.add_to_mean([part + 1 for part in like])  # norm 34.7
        assert noise.step == 0 and len(noise.add_to_mean([(part + 1) / 600 for part in like])) == 2

    def test_shards(self):
        like = self.like(torch.bfloat16)
        whole = torch.cat([p.flatten() for p in NoiseGenerator(factors(), scale(), like, seed=7 << 64).next()])
        shard = even_shard(1207, 1, 3)
        noise = NoiseGenerator(factors(), scale(), like, seed=7 << 64, shard=shard)
        (released,) = noise.add_to_sum([torch.ones(shard[1] - shard[0])])
        assert torch.allclose(released, 1 + whole[shard[0] : shard[1]], atol=1e-6)


class TestOptimizer:
    def trained(
        self, dtype: torch.dtype, mu: float, autocast: bool = False
    ) -> tuple[CorrelatedOptimizer, list[torch.Tensor]]:
        """One step of real Opacus; also return the per-example gradients that it had."""
        torch.manual_seed(4)
        net = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)).to(dtype)
        model = GradSampleModule(net, loss_reduction="sum")
        optimizer = CorrelatedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), factors(), scale(mu), seed=1 << 64)
        luck = torch.Generator().manual_seed(0)
        x, y = torch.randn(ROWS, 6, generator=luck).to(dtype), torch.randint(0, 3, (ROWS,), generator=luck)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            torch.nn.functional.cross_entropy(model(x), y, reduction="sum").backward()
        samples = [g.clone() for g in optimizer.grad_samples]
        optimizer.step()
        return optimizer, samples

    @pytest.mark.parametrize("autocast", [False, True])
    @pytest.mark.parametrize("dtype", TYPES)
    def test_releases_exact_sums_with_noise_rounded_last(self, dtype, autocast):
        optimizer, samples = self.trained(dtype, 1.0, autocast)
        drawn = NoiseGenerator(factors(), scale(), [p.float() for p in optimizer.params], seed=1 << 64).next()
        for p, total, noise in zip(optimizer.params, by_hand(samples), drawn, strict=True):
            expected = (torch.from_numpy(total) + noise.double()).float().to(dtype)
            assert p.grad.dtype == dtype
            assert (
                torch.allclose(p.grad, expected, rtol=1e-6, atol=0)
                if dtype in TYPES[2:]
                else torch.equal(p.grad, expected)
            )

    def test_gradients_are_used_once(self):
        optimizer, _ = self.trained(torch.bfloat16, 1.0)
        with pytest.raises(InvalidParameter, match="call zero_grad"):
            optimizer.step()
        for p in optimizer.params:
            p.grad_sample = torch.zeros(ROWS, *p.shape)
        with pytest.raises(InvalidParameter, match="zero_grad"):
            optimizer.clip_and_accumulate()
        assert optimizer.noise.step == 1

    @pytest.mark.parametrize("name", ["max_grad_norm", "expected_batch_size", "noise_multiplier"])
    def test_settings_that_were_changed_are_refused(self, name):
        """As the schedulers of Opacus do; the noise is the calibration's."""
        torch.manual_seed(4)
        model = GradSampleModule(torch.nn.Linear(6, 3), loss_reduction="sum")
        optimizer = CorrelatedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), factors(), scale(), seed=1 << 64)
        setattr(optimizer, name, 3.0)
        model(torch.randn(ROWS, 6)).pow(2).sum().backward()
        with pytest.raises(InvalidParameter, match=r"but the noise is for \(0\.7, None, 1\.0\)"):
            optimizer.step()
        assert optimizer.noise.step == 0
