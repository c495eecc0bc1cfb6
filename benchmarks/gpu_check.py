"""Checks that only a GPU can make: bits, law and speed of the noise, and of a private step, on CUDA. A few minutes.

    python -m benchmarks.gpu_check

Prints one line for each check. Exits with 0 where all hold, 1 where one does not, and 2 where there is no such device
and nothing was checked. `--device cpu` tries the program itself, with the checks that a CPU can make.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from opacus.optimizers import DPOptimizer

from factorize import parse_spec
from factorize.adapters.gradients.clipping import clipped_sums
from factorize.adapters.opacus import CorrelatedOptimizer
from factorize.adapters.private import make_private
from factorize.adapters.torch import NoiseGenerator
from factorize.solvers import solve

SEED, STEPS, BANDS, EXAMPLES = (1 << 100) + 5, 32, 8, 16
MAX_Z = 6.0
"""The standard deviations that a statistic of the noise may be off; by chance one is in less than one of 10^7 runs."""
MAX_ROUNDING = 1e-12
"""The relative difference that two sums in float64 in different orders may have."""


class Check(NamedTuple):
    """The findings of a check: its name, whether it holds, and the numbers."""

    name: str
    holds: bool
    numbers: str


@cache
def factors_of(steps: int) -> Any:
    """Return a banded strategy, whose noise a device makes by itself."""
    mechanism = {"kind": "banded_square_root", "bands": BANDS}
    return solve(parse_spec({"workload": {"kind": "prefix", "n": steps}, "mechanism": mechanism}))


def rows(factors: Any, parameters: Sequence[torch.Tensor], count: int = STEPS, **options: Any) -> torch.Tensor:
    """Return rows of a new generator's noise on the CPU, shape (count, entries), in units of its scale."""
    noise = NoiseGenerator(factors, factors.calibrate(mu=1.0), parameters, seed=SEED, **options)
    found = [torch.cat([part.flatten().cpu() for part in noise.next()]) for _ in range(count)]
    noise.close()
    return torch.stack(found) / noise.sigma


def bits(device: torch.device, size: int) -> Iterator[Check]:
    """Compare noise with that of the CPU, of a second run, of a restart, and of shards."""
    factors, like = factors_of(STEPS), [torch.zeros(size, device=device), torch.zeros(7, 3, device=device)]
    here = rows(factors, like, generator="sfc64")
    same = torch.equal(here, rows(factors, [p.cpu() for p in like], generator="sfc64"))
    yield Check("sfc64 has the bits of the CPU", same, f"{here.numel()} numbers")
    whole = rows(factors, like)
    yield Check("a second run has the same bits", torch.equal(whole, rows(factors, like)), f"{whole.numel()} numbers")
    scale = factors.calibrate(mu=1.0)
    first = NoiseGenerator(factors, scale, like, seed=SEED)
    first.skip(BANDS)
    kept = first.state_dict()
    first.close()
    again = NoiseGenerator(factors, scale, like, seed=SEED)
    again.load_state_dict(kept)
    later = torch.cat([part.flatten().cpu() for part in again.next()]) / again.sigma
    again.close()
    yield Check("a restart goes on with the same bits", torch.equal(later, whole[BANDS]), f"at step {BANDS}")
    part = rows(factors, like, shard=(size // 3, size))
    off = float((part - whole[:, size // 3 : size]).abs().max())
    yield Check("a shard has the numbers of the whole", off <= 1e-6, f"{off:.1e} apart at most")


def law(name: str, found: np.ndarray, strategy: np.ndarray) -> Check:
    """Undo C, and compare moments, neighbours in time and space, and the distribution with those of normals."""
    z = strategy[: len(found), : len(found)] @ found.astype(np.float64)
    count = z.size
    statistic = {
        "mean": z.mean() * count**0.5,
        "variance": ((z**2).mean() - 1) * (count / 2) ** 0.5,
        "fourth moment": ((z**4).mean() - 3) * (count / 96) ** 0.5,
        "next entry": (z[:, 1:] * z[:, :-1]).mean() * count**0.5,
        "distribution": abs(np.mean(np.abs(z) < 0.6744897501960817) - 0.5) * 2 * count**0.5,
    }
    statistic |= {f"{lag} steps on": (z[lag:] * z[:-lag]).mean() * (z[lag:].size) ** 0.5 for lag in range(1, BANDS + 1)}
    worst = max(statistic, key=lambda key: abs(statistic[key]))
    return Check(
        f"law of {name}", abs(statistic[worst]) <= MAX_Z, f"{count} numbers; {worst} {statistic[worst]:+.1f} sd"
    )


def laws(device: torch.device, size: int) -> Iterator[Check]:
    """Test the noise of every generator that the device has, and that of JAX where JAX has such a device."""
    factors, like = factors_of(STEPS), [torch.zeros(size, device=device)]
    strategy = factors.strategy.finite().dense()
    for generator in ["sfc64", *(["torch"] if device.type == "cuda" else [])]:
        yield law(generator, rows(factors, like, generator=generator).numpy(), strategy)
    try:
        import jax

        from factorize.adapters.jax import correlated_noise

        jax_device = jax.devices("gpu" if device.type == "cuda" else device.type)[0]
    except (ImportError, RuntimeError):
        print(f"JAX has no {device.type} device here: its noise is not checked")
        return
    with jax.default_device(jax_device):
        noise = correlated_noise(factors, factors.calibrate(mu=1.0), seed=SEED)
        update, zeros = jax.jit(noise.update), jax.numpy.zeros(size)
        state, found = noise.init(zeros), []
        for _ in range(STEPS):
            row, state = update(zeros, state)
            found.append(np.asarray(row))
        noise.close()
    yield law("JAX", np.stack(found) / factors.calibrate(mu=1.0).sigma_of_sums, strategy)


def clipping(device: torch.device, size: int) -> Iterator[Check]:
    """Compare clipped sums with float64 on the CPU, where one example has an infinite gradient."""
    generator = torch.Generator().manual_seed(1)
    for kind in (torch.float32, torch.bfloat16):
        samples = [torch.randn(EXAMPLES, *shape, generator=generator).to(kind) for shape in ((size,), (5, 3))]
        samples[1][2] = float("inf")
        sums = [total.cpu() for total in clipped_sums([each.to(device) for each in samples], 1.0)]
        flat = torch.cat([each.flatten(1) for each in samples], 1).double()
        norms = flat.norm(dim=1)
        clipped = torch.where(norms.isfinite()[:, None], flat * (1 / norms).clamp(max=1.0)[:, None], 0.0)
        total, own = clipped.nan_to_num(0.0).sum(0), torch.cat([each.flatten() for each in sums])
        off = float((own - total).norm() / total.norm())
        yield Check(f"clipped sums of {kind}", off <= 2e-6 + MAX_ROUNDING, f"{off:.1e} off; 1e-6 is the smaller norm")


def jobs(device: torch.device) -> Iterator[Check]:
    """Compare what one job releases on the device with what it releases on the CPU."""
    x = torch.randn(48, 12, generator=torch.Generator().manual_seed(2))
    found = []
    for place in (device, torch.device("cpu")):
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(12, 9), torch.nn.Tanh(), torch.nn.Linear(9, 2)).to(place)
        data = torch.utils.data.TensorDataset(x.to(place), (x.sum(1) > 0).long().to(place))
        job: dict[str, Any] = {"epsilon": 4.0, "delta": 1e-5, "epochs": 1, "batch_size": 6, "seed": SEED}
        model, optimizer, loader, _ = make_private(
            model, torch.optim.SGD(model.parameters(), lr=0.1), data, factors_of(BANDS), generator="sfc64", **job
        )
        for inputs, targets in loader:
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
        optimizer.close()
        found.append(torch.cat([p.detach().cpu().flatten() for p in model.parameters()]))
    off = float((found[0] - found[1]).norm() / found[1].norm())
    yield Check("a job trains as on the CPU", off <= 1e-3, f"weights differ by {off:.1e}")


def speeds(device: torch.device, size: int) -> Iterator[Check]:
    """State seconds and memory of a row and of a step, beside torch's normals and Opacus's step; nothing can fail."""
    factors = factors_of(STEPS)
    like, plain = [torch.zeros(size, device=device)], torch.empty(size, device=device)
    noise = NoiseGenerator(factors, factors.calibrate(mu=1.0), like, seed=SEED)
    yield _compared(f"noise of {size} numbers, {BANDS} bands", device, noise.next, "torch.normal", plain.normal_)
    noise.close()
    scale = factors.calibrate(mu=1.0, divisor=EXAMPLES)
    sgd = [torch.optim.SGD([torch.nn.Parameter(torch.zeros(size, device=device))], lr=0.1) for _ in range(2)]
    ours = CorrelatedOptimizer(sgd[0], factors, scale, seed=SEED)
    theirs = DPOptimizer(sgd[1], noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=EXAMPLES)
    samples = torch.randn(EXAMPLES, size, device=device)

    def step(optimizer: Any) -> None:
        optimizer.zero_grad()
        (parameter,) = optimizer.params
        parameter.grad_sample = samples
        parameter.grad = samples.sum(0)
        optimizer.step()
        samples.__dict__.pop("_processed", None)

    yield _compared(
        f"step of {size} parameters, {EXAMPLES} examples",
        device,
        lambda: step(ours),
        "Opacus",
        lambda: step(theirs),
    )
    ours.close()


def _compared(name: str, device: torch.device, own: Callable[[], object], peer: str, other: Callable[[], Any]) -> Check:
    """Return the median of turns, and the peak of the device's memory, of two calls."""
    times: dict[bool, list[float]] = {True: [], False: []}
    peaks: dict[bool, int] = {}
    for _ in range(7):
        for mine, call in ((True, own), (False, other)):
            if device.type == "cuda":
                torch.cuda.synchronize(device)
                torch.cuda.reset_peak_memory_stats(device)
            began = time.perf_counter()
            call()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
                peaks[mine] = torch.cuda.max_memory_allocated(device)
            times[mine].append(time.perf_counter() - began)
    seconds, others = (statistics.median(times[key][2:]) for key in (True, False))
    memory = f"; peak memory {peaks[True] / 2**20:.0f} MiB, {peaks[False] / 2**20:.0f}" if peaks else ""
    return Check(name, True, f"{1e3 * seconds:.2f} ms, {peer} {1e3 * others:.2f}: {seconds / others:.2f} times{memory}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all checks, and return the exit status."""
    parser = argparse.ArgumentParser(description="Bits, law and speed on a GPU.")
    parser.add_argument("--device", default="cuda", help="of torch; cpu tries the program itself")
    parser.add_argument("--size", type=int, help="entries of the noise, in place of 10^6 and 10^7")
    asked = parser.parse_args(arguments)
    device = torch.device(asked.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("No CUDA device is here: nothing was checked. Run this where torch.cuda.is_available() is true.")
        return 2
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU, which says nothing of a GPU"
    print(f"torch {torch.__version__} on {name}")
    began, failed, size = time.perf_counter(), 0, asked.size or 10**6
    parts = [bits(device, size), laws(device, size // 8), clipping(device, size), jobs(device)]
    parts += [speeds(device, each) for each in ([size] if asked.size else [10**6, 10**7])]
    for check in (check for part in parts for check in part):
        failed += not check.holds
        print(f"{'holds' if check.holds else 'FAILS'}: {check.name}: {check.numbers}", flush=True)
    print(f"{failed} checks failed; {time.perf_counter() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
