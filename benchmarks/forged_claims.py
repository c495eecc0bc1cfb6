"""A thousand forged claims of privacy under balls-in-bins sampling, and what it takes to check a true one.

Each forgery starts from a claim that the accountant made and the checker accepts. Some are forged with every digest,
and the epsilon without secrecy, made right again; those are kept only if an estimate says that they are false by a
margin: more bins, a larger order or a delta below the claimed one can be true. Goals: all refused, half of them with
the claim's seed and half with fresh ones; verification takes at most twice the time of the making.
"""

from __future__ import annotations

import copy
import itertools
import math
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from benchmarks import forged_bounds
from benchmarks.report import Report
from factorize.accounting import calibrate_bins
from factorize.checker.sampling import bets, star
from factorize.checker.sampling.calibrations import check_calibration

FORGERY_COUNT = 1000
TARGETS = ((8.0, 1e-5), (2.0, 1e-6), (2.0, 1e-10))
_MIN_DELTA_RATIO = 1.03  # the factor of delta
_CHUNKS = 12


class Base(NamedTuple):
    """A true claim and the file that it is about."""

    data: bytes
    column: np.ndarray
    claim: dict[str, Any]
    digest: str


Forgery = tuple[bytes, dict[str, Any]]
Generator = np.random.Generator


def factorization(column: np.ndarray, epochs: int) -> Any:
    """Return a certified Toeplitz factorization of prefix sums."""
    from specs import claimed, spec_of

    from factorize.structures.toeplitz import ToeplitzMatrix

    return claimed(spec_of(len(column), "square_root", epochs), ToeplitzMatrix(column, len(column)))


def truncated_root(n: int, taps: int) -> np.ndarray:
    """Return the column of the inverse of the first taps of the inverse square root of prefix sums."""
    inverse = np.cumprod([1.0, *((i - 1.5) / i for i in range(1, taps))])
    column = np.zeros(n)
    column[0] = 1.0
    for t in range(1, n):
        reach = min(taps, t + 1)
        column[t] = -inverse[1:reach] @ column[t - reach + 1 : t][::-1]
    return column


def based(column: np.ndarray, epochs: int, epsilon: float, delta: float) -> Base:
    """Return a claim of the accountant's."""
    factors = factorization(column, epochs)
    made = calibrate_bins(factors, epsilon=epsilon, delta=delta)
    return Base(data_of(factors), column, made.claim.document(), made.claim.digest)


def estimate(base: Base, sigma: float, data: bytes, bins: int) -> float:
    """Return delta of the pair for a file, from a few chunks."""
    epsilon = float.fromhex(base.claim["epsilon"])
    return float(import_module("star_claims").estimate(_gram(data, bins), sigma, epsilon, _CHUNKS))


def _gram(data: bytes, bins: int) -> Any:
    return import_module("star_claims").gram_of(data, bins)


def _numbers(base: Base) -> tuple[float, float, int]:
    return (*(float.fromhex(base.claim[name]) for name in ("sigma", "delta")), base.claim["mechanism"]["bins"])


def _with(claim: dict[str, Any], **values: Any) -> dict[str, Any]:
    return dict(import_module("star_claims").changed(claim, **values))


def _sealed(data: bytes, claim: dict[str, Any], **values: Any) -> Forgery:
    """Return a claim that only the test can refuse: its epsilon without secrecy is that of the numbers."""
    return data, dict(import_module("star_claims").consistent(_with(claim, **values), data))


def smaller_delta(base: Base, rng: Generator) -> Forgery:
    """Claim a delta that is 5 % or more below the truth."""
    sigma, _, bins = _numbers(base)
    return _sealed(base.data, base.claim, delta=rng.uniform(0.5, 0.95) * estimate(base, sigma, base.data, bins))


def smaller_sigma(base: Base, rng: Generator) -> Forgery | None:
    """Claim a sigma that is 1 % to 5 % below the smallest that is true."""
    sigma, delta, bins = _numbers(base)
    lower = sigma
    while estimate(base, lower, base.data, bins) < delta:
        lower *= 0.998
    return _sealed(base.data, base.claim, sigma=lower * rng.uniform(0.95, 0.99))


def entry_doubled(base: Base, rng: Generator) -> Forgery | None:
    """Double one entry of |C|, every digest right again."""
    column, (sigma, delta, bins) = base.column.copy(), _numbers(base)
    column[int(rng.integers(0, min(len(column), 4)))] *= 2
    files, other = import_module("checker_files"), factorization(column, len(column) // bins)
    data = files.sealed(*files.parts(other))
    if estimate(base, sigma, data, bins) < _MIN_DELTA_RATIO * delta:
        return None
    return _sealed(data, base.claim, mechanism__factors="sha256:" + other.digest.removeprefix("sha256:"))


def fewer_bins(base: Base, rng: Generator) -> Forgery | None:
    """Claim half or a third of the bins, the epochs to fit."""
    sigma, delta, bins = _numbers(base)
    fewer = max(bins // int(rng.integers(2, 4)), 1)
    if estimate(base, sigma, base.data, fewer) < _MIN_DELTA_RATIO * delta:
        return None
    n = base.claim["mechanism"]["n"]
    return _sealed(base.data, base.claim, mechanism__bins=fewer, mechanism__epochs=-(-n // fewer))


def another_factor(name: str, least: float, most: float) -> Callable[[Base, Generator], Forgery]:
    """Multiply a number of the claim by another one."""

    def forge(base: Base, rng: Generator) -> Forgery:
        value = base.claim[name]
        factor = rng.uniform(least, most)
        return _sealed(base.data, base.claim, **{name: float.fromhex(value) * factor})

    return forge


def sealed_before(**values: Callable[[Any, Generator], Any]) -> Callable[[Base, Generator], Forgery]:
    """Change something else, and keep the digest beside the claim."""

    def forge(base: Base, rng: Generator) -> Forgery:
        claim = copy.deepcopy(base.claim)
        for name, change in values.items():
            *parts, last = name.split("__")
            place = claim
            for part in parts:
                place = place[part]
            place[last] = change(place[last], rng)
        return base.data, {"claim": claim, "claim_digest": base.digest}

    return forge


def larger_rate(base: Base, rng: Generator) -> Forgery:
    """Claim a lambda a hundredfold: the bet could lose more than there is."""
    return base.data, _with(base.claim, pq__lambda=100 * float.fromhex(base.claim["pq"]["lambda"]))


def fewer_samples(base: Base, rng: Generator) -> Forgery:
    """Claim a tenth of the samples, or one chunk, with a stake that cannot earn enough on them: log1p(x) <= x."""
    pq, delta = base.claim["pq"], float.fromhex(base.claim["delta"])
    samples = max(pq["samples"] // bets.CHUNK // 10, 1) * bets.CHUNK
    stake = min(float.fromhex(pq["lambda"]), bets.MIN_WEALTH / 2 / (samples * delta))
    return base.data, _with(base.claim, pq__samples=samples, pq__lambda=stake)


def _plain(**values: Any) -> Callable[[Base, Generator], Forgery]:
    return lambda base, rng: (base.data, _with(base.claim, **values))


def no_secrecy_understated(base: Base, rng: Generator) -> Forgery:
    """Claim the epsilon without secrecy as if there were secrecy."""
    return base.data, _with(base.claim, unamplified__epsilon_at_delta=float.fromhex(base.claim["epsilon"]))


FORGERIES: dict[str, Callable[[Base, Generator], Forgery | None]] = {
    "delta 5 % and more too small": smaller_delta,
    "sigma 1 % and more too small": smaller_sigma,
    "an entry of |C| doubled": entry_doubled,
    "fewer bins": fewer_bins,
    "epsilon 5 % and more smaller": another_factor("epsilon", 0.5, 0.95),
    "clip norm 5 % and more larger": another_factor("clip_norm", 1.05, 2.0),
    "another seed": sealed_before(attempt=lambda old, rng: old % 16 + 1),
    "m + 5": sealed_before(pq__m=lambda old, rng: old + 5),
    "twice the bins": sealed_before(mechanism__bins=lambda old, rng: 2 * old),
    "twice the bins, epochs of before": lambda base, rng: (
        base.data,
        _with(base.claim, mechanism__bins=2 * base.claim["mechanism"]["bins"]),
    ),
    "other epochs": lambda base, rng: (
        base.data,
        _with(base.claim, mechanism__epochs=base.claim["mechanism"]["epochs"] + int(rng.integers(1, 9))),
    ),
    "lambda a hundredfold": larger_rate,
    "a tenth of the samples": fewer_samples,
    "another file's digest": _plain(mechanism__factors="sha256:" + "7" * 64),
    "another protocol": _plain(protocol="star-0"),
    "no secrecy, understated": no_secrecy_understated,
}


def reused(bases: list[Base]) -> Iterator[Forgery]:
    """Put claims beside the files of others."""
    for own, other in itertools.permutations(bases, 2):
        if own.data != other.data:
            yield other.data, {"claim": own.claim, "claim_digest": own.digest}


def bases_of(quick: bool) -> list[Base]:
    """Return true claims of several matrices and targets."""
    cases = [(24, 4, 4.0, 1e-4, 24), (48, 6, 8.0, 1e-5, 4), (64, 4, 2.0, 1e-3, 8)][: 2 if quick else None]
    return [based(truncated_root(n, taps), epochs, eps, delta) for n, epochs, eps, delta, taps in cases]


def run(report: Report) -> None:
    """Forge, count what is refused, and time the true ones."""
    rng, bases = np.random.default_rng(20), bases_of(report.quick)
    for base in bases:
        if not check_calibration(base.data, base.claim).supported:
            raise RuntimeError("a claim of the accountant's is refused")
    kinds = len(FORGERIES) + 1
    each = 2 if report.quick else -(-FORGERY_COUNT // kinds)
    again = itertools.cycle(reused(bases))
    for name in [*FORGERIES, "a claim of another file"]:
        began, refused, made = time.perf_counter(), 0, 0
        while made < each:
            base = bases[int(rng.integers(len(bases)))]
            forged = FORGERIES[name](base, rng) if name in FORGERIES else next(again)
            if forged is None:
                continue
            fresh = made % 2 == 1 and "samples" not in name
            made += 1
            found = check_calibration(forged[0], forged[1], fresh=fresh)
            refused += not found.supported
            if found.supported:
                report.remark(f"{name}: accepted {forged[1]}")
        report.row(name, seconds=time.perf_counter() - began, ratio=refused / each, of="the forgeries")
    time_true_ones(report)
    forged_bounds.run(report, factorization, data_of)


def data_of(factors: Any) -> bytes:
    """Return the file of some factors."""
    files = import_module("checker_files")
    return bytes(files.sealed(*files.parts(factors)))


def time_true_ones(report: Report) -> None:
    """Report what making and checking take at n = 2048 and 256 bins."""
    n, epochs = (128, 4) if report.quick else (2048, 8)
    for epsilon, delta in TARGETS[: 1 if report.quick else None]:
        began = time.perf_counter()
        base = based(truncated_root(n, 32), epochs, epsilon, delta)
        making = time.perf_counter() - began
        began = time.perf_counter()
        found = check_calibration(base.data, base.claim)
        seconds = time.perf_counter() - began
        if not found.supported:
            report.remark(f"the claim at ({epsilon:g}, {delta:g}) is refused: {found.failed}")
        title = f"check a claim, n={n}, {n // epochs} bins, ({epsilon:g}, {delta:g})"
        report.row(title, seconds=seconds, ratio=seconds / making, of="the making")
        _closed_forms(report, base, epsilon)


def _closed_forms(report: Report, base: Base, epsilon: float) -> None:
    """Check the deterministic part alone."""
    sigma, _, bins = _numbers(base)
    began = time.perf_counter()
    found = _gram(base.data, bins)
    bound = import_module("star_claims").log_star(found, sigma, epsilon)
    star.addition(found, sigma, epsilon)
    seconds = time.perf_counter() - began
    ratio = math.exp(bound) / float.fromhex(base.claim["delta"])
    report.row(f"closed forms, {bins} bins, epsilon {epsilon:g}", seconds=seconds, ratio=ratio, of="the claimed delta")
