"""Noise as tensors: the covariance that the guarantee needs for every structure, restarts, shards, replays, devices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from handmade import Handmade, handmade
from structure_cases import NAMES, strategies

from factorize.adapters import torch_engine
from factorize.adapters.opacus import CorrelatedOptimizer
from factorize.adapters.torch import NoiseGenerator
from factorize.adapters.torch_engine import device_normals
from factorize.client import even_shard
from factorize.errors import InvalidParameter, UnsupportedProblem
from factorize.factors.sensitivity import Sensitivity
from factorize.noise import generator as core
from factorize.noise.normals import ReplayableNormals
from factorize.noise.source import Streamable, noise_source
from factorize.privacy import PrivacyTarget, calibrate

N, D = 20, 40_000
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
STREAMING = [name for name in NAMES if name not in ("dense", "toeplitz", "scaled", "scaled and dense")]


class CpuNormals:
    """The client's normals, in float32: so that what torch does with those of a CUDA device can be tested on a CPU."""

    block = 1 << 16

    def __init__(self, seed: int, context: str, device: torch.device | None = None) -> None:
        self._normals = ReplayableNormals(seed, context)
        self.key = self._normals.key

    def fill(self, out: torch.Tensor, step: int, block: int, scale: float = 1.0) -> None:
        """Fill a tensor of one whole block, with this standard deviation."""
        drawn = np.empty(self.block)
        self._normals.fill(drawn, step, block)
        out.copy_(torch.from_numpy(drawn * scale))


def factors(name: str, n: int = N) -> Handmade:
    return handmade(strategies(n)[name])


def scale(made: Handmade, sigma: float = 1.7):
    return calibrate(made.sensitivity, PrivacyTarget(mu=1.0), clip_norm=sigma)


def parameters(device: str = "cpu", dtype: torch.dtype = torch.float32, size: int = D) -> list[torch.Tensor]:
    return [torch.zeros(shape, device=device, dtype=dtype) for shape in ((size // 4, 3), (size - size // 4 * 3,))]


@pytest.fixture(autouse=True)
def normals_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_engine, "device_normals", normals_of)


def normals_of(seed: int, context: str, device: torch.device) -> object:
    return CpuNormals(seed, context) if device.type == "cpu" else device_normals(seed, context, device)


def streams(made: Handmade) -> bool:
    strategy = made.strategy
    return isinstance(noise_source(strategy.structure, strategy.tensors(), strategy.n, "x"), Streamable)


def make(made: Handmade, like: list[torch.Tensor] | None = None, *, seed: int = 7 << 64, **options) -> NoiseGenerator:
    """The noise that torch makes on the device, where C has a recurrence."""
    chosen = {"generator": "torch" if streams(made) else "sfc64", **options}
    return NoiseGenerator(made, scale(made), like or parameters(), seed=seed, **chosen)


def flat(noise: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([part.reshape(-1) for part in noise]).cpu()


def draw(noise: NoiseGenerator) -> np.ndarray:
    return np.array([flat(step).double().numpy() for step in noise])


class TestArithmetic:
    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize("name", STREAMING)
    def test_whitens_to_the_normals_that_were_drawn(self, name, device):
        """C x = sigma z, with z drawn beside it: no statistics, every entry."""
        made, where = factors(name), torch.device(device)
        normals = normals_of(7 << 64, "handmade", where)
        z = torch.empty(normals.block, device=where)
        expected = []
        for step in range(N):
            normals.fill(z, step, 0)
            expected.append(z[:D].cpu().double().numpy())
        white = made.strategy.dense() @ draw(make(made, parameters(device))) / make(made).sigma
        assert np.abs(white - np.array(expected)).max() < 2e-5

    @pytest.mark.parametrize("generator", ["sfc64", "shake128"])
    def test_the_cores_generators_have_the_cores_bits(self, generator):
        made = factors("buffered")
        strategy = made.strategy
        source = noise_source(strategy.structure, strategy.tensors(), N, made.digest)
        beside = core.NoiseGenerator(source, scale(made), D, seed=7 << 64, generator=generator)
        for step in make(made, generator=generator):
            assert np.array_equal(flat(step).numpy(), beside.next())


class TestReplay:
    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize("generator", ["torch", "sfc64"])
    @pytest.mark.parametrize("arrays", [True, False])
    @pytest.mark.parametrize("name", ["banded", "redrawn"])
    def test_goes_on_with_the_same_bits(self, name, generator, arrays, device, tmp_path):
        made = factors(name)
        whole, part = (make(made, parameters(device), generator=generator) for _ in range(2))
        for _ in range(11):
            whole.next()
            part.next()
        torch.save(part.state_dict(arrays=arrays), tmp_path / "noise.pt")
        resumed = make(made, parameters(device), generator=generator)
        resumed.load_state_dict(torch.load(tmp_path / "noise.pt", weights_only=True))
        assert resumed.step == 11
        assert np.array_equal(draw(resumed), draw(whole))

    def test_skip(self):
        whole, skipping = make(factors("tree")), make(factors("tree"))
        rows = draw(whole)
        skipping.skip(13)
        assert np.array_equal(draw(skipping), rows[13:])
        with pytest.raises(InvalidParameter, match="would repeat noise"):
            skipping.skip(-1)

    @pytest.mark.parametrize("name", ["buffered", "banded", "state_space", "redrawn", "tree", "blt"])
    def test_shards_hold_the_whole(self, name):
        size = 150_001  # three blocks, cut in their midst
        made = factors(name, 6)
        whole = draw(make(made, parameters(size=size)))
        parts = [draw(make(made, parameters(size=size), shard=even_shard(size, rank, 4))) for rank in range(4)]
        assert np.allclose(np.hstack(parts), whole, rtol=0, atol=1e-6)

    @pytest.mark.parametrize(
        "key", ["sigma", "size", "factorization", "generator", "commitment", "shard", "steps", "version"]
    )
    def test_refuses_another_runs_checkpoint(self, key):
        noise = make(factors("blt"))
        noise.next()
        with pytest.raises(InvalidParameter, match=key):
            noise.load_state_dict({**noise.state_dict(), key: "other"})

    def test_refuses_a_damaged_one(self):
        noise = make(factors("blt"))
        noise.next()
        state = noise.state_dict()
        for damage in ({"state": state["state"] + 1}, {"step": 2}, {"state": state["state"][:1]}):
            with pytest.raises(InvalidParameter, match="damaged"):
                noise.load_state_dict({**state, **damage})
        with pytest.raises(InvalidParameter, match="outside"):
            noise.load_state_dict({**state, "step": N + 1})


class TestTypes:
    @pytest.mark.parametrize("wrong", [3, "weights", [np.zeros(3)], [("weight", torch.zeros(3))], [None]])
    def test_what_is_no_tensor_is_refused(self, wrong):
        made = factors("blt")
        with pytest.raises(InvalidParameter, match="parameters have a .* among them; give tensors"):
            NoiseGenerator(made, scale(made), wrong, seed=1 << 64)
        noise = make(made)
        with pytest.raises(InvalidParameter, match="sums have a .* among them; give tensors"):
            noise.add_to_sum(wrong)
        with pytest.raises(InvalidParameter, match="is no checkpoint"):
            noise.load_state_dict(wrong)

    @pytest.mark.parametrize("wrong", ["sgd", 3, None])
    def test_what_is_no_optimizer_or_model_is_refused(self, wrong):
        made = factors("blt")
        with pytest.raises(InvalidParameter, match=f"the optimizer is a {type(wrong).__name__}"):
            CorrelatedOptimizer(wrong, made, scale(made), seed=1 << 64)
        optimizer = torch.optim.SGD(parameters(), lr=0.1)
        with pytest.raises(InvalidParameter, match="model is of type str; give the model"):
            CorrelatedOptimizer(optimizer, made, scale(made), seed=1 << 64, model="net")


class TestTensors:
    def test_refuses_step_n(self):
        noise = make(factors("buffered"))
        assert len(draw(noise)) == N == noise.step
        with pytest.raises(InvalidParameter, match=f"past n={N}"):
            noise.next()

    @pytest.mark.parametrize("device", DEVICES)
    def test_chooses_its_generator(self, device):
        for name, own in (("buffered", "torch"), ("dense", "sfc64")):
            made = factors(name)
            noise = NoiseGenerator(made, scale(made), parameters(device), seed=1 << 64)
            assert noise.generator == (own if device == "cuda" else "sfc64")
        with pytest.raises(InvalidParameter, match="needs a recurrence"):
            make(factors("dense"), generator="torch")

    @pytest.mark.parametrize("device", ["cpu", "meta"])
    def test_other_devices_have_no_generator_of_torch(self, device):
        with pytest.raises(UnsupportedProblem, match=f"not on {device}; use generator='sfc64'"):
            device_normals(1 << 64, "x", torch.device(device))
        with pytest.raises(InvalidParameter, match="randbits"):
            device_normals((1 << 64) - 1, "x", torch.device("cuda"))

    @pytest.mark.parametrize(
        "options", [{"shard": (3, 3)}, {"threads": 0, "generator": "sfc64"}, {"seed": -1}, {"generator": "philox"}]
    )
    def test_options_out_of_range(self, options):
        with pytest.raises(InvalidParameter):
            make(factors("blt"), **options)

    def test_no_parameters_or_no_calibration(self):
        made = factors("blt")
        with pytest.raises(InvalidParameter, match="at least one"):
            NoiseGenerator(made, scale(made), [], seed=1 << 64)
        with pytest.raises(InvalidParameter, match="bare float"):
            NoiseGenerator(made, 1.0, parameters(), seed=1 << 64)
        other = calibrate(Sensitivity(2.0, "exact", "by hand", {"kind": "single"}), PrivacyTarget(mu=1.0))
        with pytest.raises(InvalidParameter, match="calibrate this one"):
            NoiseGenerator(made, other, parameters(), seed=1 << 64)
        with pytest.raises(InvalidParameter, match="not a factorization"):
            NoiseGenerator(object(), other, parameters(), seed=1 << 64)
