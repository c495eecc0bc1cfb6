"""Choosing: how far the recommended row is from the best row that any spec of ours makes, over forty jobs.

A job is a workload, a number of epochs, a memory and a target: a public order, or batches sampled by Poisson's law at
(2, 1e-5). One comparison answers for both targets. What it is held against is a search of its own:
every mechanism in every size within the memory, with each normalisation, decoder and number of redraws, for the
workload itself and for easier ones, to the full tolerance. Balls in bins are left out: a claim takes seconds a row.

    python -m benchmarks choosing
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks.report import Report, at_most
from factorize.accounting.laws.sampling_scheme import SamplingOptions
from factorize.accounting.schemes import SCHEMES
from factorize.client.noise_source import noise_source
from factorize.errors import FactorizeError
from factorize.privacy import PrivacyTarget
from factorize.solvers.comparing.compare import Sampling, compare
from factorize.solvers.comparing.comparison import Comparison
from factorize.solvers.solving import solve
from factorize.spec import parse_spec

STEPS, QUICK_STEPS = 16, 8
MEMORIES = (1, 4)
EPOCHS = (1, 4)
TARGET = PrivacyTarget(epsilon=2.0, delta=1e-5)
BATCH = 50
SCHEMES_OF = {"public order": ("fixed",), "Poisson": ("fixed", "poisson", "cyclic_poisson")}
WITHIN = 0.01
WORKLOADS: dict[str, dict[str, Any]] = {
    "prefix": {"kind": "prefix"},
    "momentum 0.9": {"kind": "momentum", "momentum": 0.9},
    "momentum 0.9, cosine": {"kind": "momentum", "momentum": 0.9, "learning_rates": {"kind": "cosine", "final": 0.1}},
    "decay 0.9": {"kind": "decay", "rate": 0.9},
    "window 4": {"kind": "window", "width": 4},
}


class Made(NamedTuple):
    """A row that a spec of ours makes.

    Attributes:
        name: of the spec.
        vectors: of noise state.
        rmse: by scheme, at the target.
    """

    name: str
    vectors: int
    rmse: dict[str, float]


def document(workload: str, n: int, epochs: int) -> dict[str, Any]:
    """Return the spec of a job without a mechanism."""
    several = {"kind": "fixed_epochs", "epochs": epochs} if epochs > 1 else {"kind": "single"}
    return {"workload": {**WORKLOADS[workload], "n": n}, "participation": several}


def variants(n: int, epochs: int) -> Iterator[dict[str, Any]]:
    """Yield every mechanism in every size within the largest memory, with all its options."""
    norms = ("none", "columns", "auto")
    yield {"kind": "identity"}
    yield {"kind": "anti_pgd"}
    yield {"kind": "lambda_cgd", "correlation": "tune"}
    for kept in range(1, min(MEMORIES[-1], n // 2) + 1):
        yield {"kind": "banded", "bands": kept + 1}
        yield {"kind": "banded_inverse_fractional_root", "bands": kept + 1, "gamma": "tune"}
        for kind in ("banded_toeplitz", "banded_square_root", "banded_inverse_square_root"):
            yield from ({"kind": kind, "bands": kept + 1, "normalization": one} for one in norms)
        if kept in (*MEMORIES, MEMORIES[-1] - 1):
            yield from ({"kind": "blt", "buffers": kept, "normalization": one} for one in norms[:2])
            for redraws in sorted({0, 1, epochs - 1}) if epochs > 1 else (0,):
                more = {"redraws": redraws} if redraws else {}
                yield {"kind": "buffered_linear", "buffers": kept, **more}
    for decoder in ("online", "honaker_online", "honaker_full"):
        yield {"kind": "tree", "decoder": decoder}
        yield from (
            {"kind": "tree", "decoder": decoder, "restart_every": size} for size in (2, 4, 8) if size < n and epochs > 1
        )


def made(asked: dict[str, Any]) -> Iterator[Made]:
    """Yield the rows of all variants that have a solver and fit the largest memory."""
    spec = parse_spec(asked)
    n, epochs = spec.workload.n, spec.participation.passes or 1
    easier = spec.workload.easier()
    others = [None] if easier is None else [None, easier.document()]
    for mechanism in variants(n, epochs):
        for other in others:
            if other is not None and mechanism["kind"] not in ("buffered_linear", "blt", "banded", "banded_toeplitz"):
                continue
            more = {} if other is None else {"optimize_for": other}
            try:
                found = solve(parse_spec({**asked, "mechanism": mechanism, **more}), evidence=False)
                cost = noise_source(found.structure, found.strategy_tensors(), n, found.digest).cost
                rmse = dict(errors(found))
            except FactorizeError:
                continue
            if cost.vectors <= MEMORIES[-1]:
                yield Made(f"{mechanism}{' for easier' if other else ''}", cost.vectors, rmse)


def errors(found: Any) -> Iterator[tuple[str, float]]:
    """Yield the error of a result at the target, by scheme that fits."""
    n, epochs = found.spec.workload.n, found.spec.participation.passes or 1
    sizes = {"dataset_size": n // epochs * BATCH, "batch_size": BATCH}
    for name in dict.fromkeys(name for names in SCHEMES_OF.values() for name in names):
        asked = SamplingOptions() if name == "fixed" else SamplingOptions(**sizes)
        scheme = SCHEMES[name]
        if scheme.misfit(found.spec.participation, found.matrix, asked) is None:
            sigma = scheme.calibrate(found, TARGET, asked).sigma * (asked.batch_size or 1)
            yield name, sigma / found.certificate.sensitivity.value * found.certificate.loss.rmse


def recommended(table: Comparison, memory: int, schemes: tuple[str, ...]) -> float:
    """Return the error of the row that the comparison recommends for a memory and a target."""
    names = {None if name == "fixed" else name for name in schemes}
    from factorize.solvers.comparing.comparison import recommend

    rows = sorted((row for row in table.rows if row.sampling in names), key=lambda row: row.rmse_at_privacy or 0.0)
    chosen = recommend(rows, memory)
    assert chosen is not None  # independent noise keeps nothing
    return float(rows[chosen.row].rmse_at_privacy or 0.0)


def jobs(workload: str, n: int, epochs: int) -> Iterator[tuple[str, float, str]]:
    """Yield name, recommended error over the best one, minus 1, and the best row, for each memory and target."""
    asked = document(workload, n, epochs)
    sizes = Sampling(n // epochs * BATCH, BATCH)
    kept = sorted({name for names in SCHEMES_OF.values() for name in names} - {"fixed"})
    found = list(made(asked))
    for memory in MEMORIES:
        table = compare(parse_spec(asked), buffers=memory, privacy=TARGET, sampling=sizes, samplings=kept)
        for target, schemes in SCHEMES_OF.items():
            best, name = min(
                (one.rmse[scheme], f"{one.name} {scheme}")
                for one in found
                if one.vectors <= memory
                for scheme in schemes
                if scheme in one.rmse
            )
            share = recommended(table, memory, schemes) / best - 1
            yield f"{workload}, {epochs} epochs, {memory} vectors, {target}", share, name


def run(report: Report) -> None:
    """Measure all jobs; quick: three workloads with few steps and one epoch."""
    report.heading("Is the recommended row the best that a spec of ours makes?")
    n = QUICK_STEPS if report.quick else STEPS
    workloads = tuple(WORKLOADS)[:1] if report.quick else tuple(WORKLOADS)
    for workload in workloads:
        for epochs in EPOCHS[:1] if report.quick else EPOCHS:
            began = time.process_time()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                found = list(jobs(workload, n, epochs))
            seconds = (time.process_time() - began) / len(found)
            for name, share, best in found:
                goal = at_most("ratio", 1 + share, 1 + WITHIN)
                report.row(f"{name}, n={n}", seconds=seconds, ratio=1 + share, of=f"of {best}", goals=[goal])
