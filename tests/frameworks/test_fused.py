"""The fused generator: Philox by its published answers, the kernel beside numpy in float64, and the law of the noise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import interpreted_kernel
import numpy as np
import pytest
import torch
import triton
from handmade import handmade
from interpreted_kernel import dozen
from scipy import stats
from test_noise import statistic
from test_torch_noise import DEVICES, STREAMING, D, N, Rows, draw, factors, flat, make, parameters, scale
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from factorize.adapters.fused.counted_normals import QUARTER, SPAN, counted_key, counted_normals, philox
from factorize.adapters.fused.fused_engine import FusedStreaming, span_pieces
from factorize.adapters.fused.step_kernel import fused_step
from factorize.client.recurrences.buffered import StateSpaceRecurrence
from factorize.client.regions import Region
from factorize.errors import InvalidParameter, UnsupportedProblem


@pytest.mark.parametrize(
    ("counters", "key", "answer"),
    [
        ([0] * 4, (0, 0), "6627e8d5e169c58dbc57ac4c9b00dbd8"),
        ([0xFFFFFFFF] * 4, (0xFFFFFFFF, 0xFFFFFFFF), "408f276d41c83b0ea20bc7c66d5451fd"),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            (0xA4093822, 0x299F31D0),
            "d16cfe0994fdcceb5001e42024126ea1",
        ),
    ],
)
def test_philox_gives_the_known_answers_of_random123(counters, key, answer):
    found = "".join(f"{int(word):08x}" for word in philox(counters, *key))
    assert found == answer


def test_normals_are_normal_and_independent():
    key = counted_key(3, "x")
    drawn = np.array([np.concatenate([counted_normals(key, step, span) for span in range(64)]) for step in range(4)])
    assert min(stats.kstest(row, "norm").pvalue for row in drawn) > 1e-6
    size = drawn.shape[1]
    lags = [np.mean(drawn[0, : size - lag] * drawn[0, lag:]) for lag in (1, 2, 255, 256, 257, 512, 768, SPAN)]
    assert np.abs([*lags, *np.corrcoef(drawn)[0, 1:]]).max() < 6 / np.sqrt(size)


@pytest.mark.parametrize("device", DEVICES)
class TestNoise:
    @pytest.mark.parametrize("name", STREAMING)
    def test_whitens_to_the_normals_in_numpy(self, name, device):
        """C x = sigma z, with z from the definition in float64: no statistics, every entry."""
        made = factors(name)
        noise = make(made, parameters(device), generator="philox")
        key = counted_key(7, made.digest)
        z = np.array([np.concatenate([counted_normals(key, t, s) for s in range(-(-D // SPAN))])[:D] for t in range(N)])
        white = made.strategy.dense() @ draw(noise) / noise.sigma
        assert np.abs(white - z).max() < 3e-5

    @pytest.mark.parametrize("name", ["buffered", "redrawn"])
    def test_covariance(self, name, device):
        made = factors(name)
        assert statistic(draw(make(made, parameters(device), generator="philox")), Rows(made), scale(made).sigma) < 1

    @pytest.mark.parametrize("precision", ["float32", "float64"])
    def test_restarts_and_shards_agree(self, device, precision):
        made, size = factors("buffered"), 30_011
        options = {"generator": "philox", "precision": precision}
        whole = draw(make(made, parameters(device, size=size), **options))
        for first, last in ((0, 1), (5000, 20_001), (20_001, size)):
            part = make(made, parameters(device, size=size), shard=(first, last), **options)
            rows = [flat(part.next()).numpy() for _ in range(9)]
            again = make(made, parameters(device, size=size), shard=(first, last), **options)
            again.load_state_dict(part.state_dict())
            assert np.allclose([*rows, *draw(again)], whole[:, first:last], rtol=0, atol=1e-6)

    def test_many_diagonals(self, device):
        made = handmade(dozen(N))
        noise = make(made, parameters(device), generator="philox")
        key = counted_key(7, made.digest)
        z = np.array([np.concatenate([counted_normals(key, t, s) for s in range(-(-D // SPAN))])[:D] for t in range(N)])
        assert np.abs(made.strategy.dense() @ draw(noise) / noise.sigma - z).max() < 3e-5

    def test_refuses_no_seed(self, device):
        with pytest.raises(InvalidParameter, match="randbits"):
            make(factors("blt"), parameters(device), generator="philox", seed=-1)


def test_pieces_of_a_region_cover_it_once():
    region = Region.of([(3, 5), (SPAN - 2, SPAN + 7), (2 * SPAN, 5 * SPAN), (6 * SPAN + 1, 6 * SPAN + 2)])
    spans, low, high, at = span_pieces(region).T
    places = [np.arange(a, b) + s * SPAN for s, a, b in zip(spans, low, high, strict=True)]
    assert np.array_equal(np.concatenate(places), region.positions())
    assert np.array_equal(at, np.r_[0, np.cumsum(high - low)[:-1]])
    assert (low < high).all() and high.max() <= SPAN
    assert len(span_pieces(Region.of([]))) == 0


class TestKernel:
    def test_whitens_to_the_normals_in_numpy_for_every_structure(self):
        """In Triton's interpreter, in a process of its own: it is chosen before Triton is imported."""
        script = Path(interpreted_kernel.__file__)
        paths = os.pathsep.join([str(script.parent), *sys.path])
        run = subprocess.run(
            [sys.executable, "-W", "ignore", str(script)],
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        distances = json.loads(run.stdout)
        assert {name for name, far in distances.items() if far is not None} == {*STREAMING, "a dozen diagonals"}
        assert max(far for far in distances.values() if far is not None) < 1e-5

    @pytest.mark.parametrize(
        ("states", "draws", "coupled", "again"),
        [(4, 0, False, False), (3, 0, True, False), (4, 2, False, False), (12, 0, False, True)],
    )
    def test_compiles_for_a_gpu_that_is_not_here(self, states, draws, coupled, again):
        pointers = {"out": "*fp32", "state": "*fp32", "pieces": "*i64", "numbers": "*fp64", "steps": "*i64"}
        chosen = {"K": states, "M": draws, "BY_X": not draws, "COUPLED": coupled, "RELOAD": again, "EXACT": True}
        chosen["QUARTER"] = QUARTER
        kinds = {**pointers, "key": "*i64", "width": "i64", **dict.fromkeys(chosen, "constexpr")}
        source = ASTSource(fn=fused_step, signature=kinds, constexprs=chosen, attrs={})
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
        assert made.asm["ptx"].count("st.global") >= 4
        assert "mma" not in made.asm["ptx"]  # no product in fewer digits


def test_philox_is_never_chosen_unasked():
    assert make(factors("blt"), [torch.zeros(3)]).generator == "torch"


def test_refuses_many_states_that_move_into_each_other():
    blocks = np.full((4, 20, 20), 0.01)
    recurrence = StateSpaceRecurrence(np.ones(4), blocks[:, None], np.ones((4, 20)), np.full((4, 20), 0.01))
    with pytest.raises(UnsupportedProblem, match="20 states"):
        FusedStreaming(recurrence, b"01234567", 1.0, Region.of([(0, 3)]), torch.device("cpu"))
