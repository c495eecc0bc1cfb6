"""Receipts of every kind with two fields changed: each is refused, or says no more than an accountant of its own finds.

The accountant shares nothing with the checker: patterns are listed one by one, the Gaussian curve is written here, and
Poisson sampling is that of dp_accounting. Every other receipt tells a lie of a table, for which the forger adapts what
follows from it (sensitivity, mu, epsilon), so that one check alone stands between the lie and a proof; the others have
any two fields changed. FORGERIES=3000 changes 3,000, tests some hundred.
"""

from __future__ import annotations

import copy
import itertools
import math
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from manifest_mutations import MISSING, at, changed, nodes
from receipt_runs import KINDS, Run, signed
from scipy.optimize import brentq
from scipy.stats import norm

from factorize.checker.receipt import check_receipt
from factorize.checker.receipt_text import page, say_counts, text
from factorize.encoding import json_digest
from factorize.errors import TooLarge
from factorize.format.quantities import at_least, at_most

FORGERIES = int(os.environ.get("FORGERIES", "200"))
PARTICIPATIONS = [
    {"kind": "single"},
    {"kind": "fixed_epochs", "epochs": 2},
    {"kind": "min_sep", "min_sep": 2},
    {"kind": "min_sep", "min_sep": 6, "max_participations": 1},
    {"kind": "min_sep", "min_sep": 4, "max_participations": 4.5},
    {"kind": "fixed_epochs", "epochs": True},
]
PLAUSIBLE: dict[str, list[Any]] = {
    "participation": [
        *({"kind": "fixed_epochs", "epochs": epochs} for epochs in (2, 3, 4, 6)),
        *({"kind": "min_sep", "min_sep": apart, "max_participations": 12 // apart} for apart in (1, 2, 3, 4, 6)),
        {"kind": "single"},
    ],
    "participations": [1, 2, 3, 4],
    "separation": [None, 2, 3, 4, 5, 6, 8],
    "period": [None, 1, 2, 3, 4, 5, 6, 8],
    "contributions": [1, 12, 24, 36, 72],
    "groups": [1, 2, 3, 6, 12, 10**6],
    "compositions": [1, 2, 3, 4, 12],
    "sampling_probability": [0.1, 0.25, 1.0],
    "batch_size": [1, 3, 6, 12],
    "dataset_size": [12, 24, 48],
    "clip_norm": [0.5, 1.0, 2.0, 1e-60, 1e-30],
    "sigma_of_sums": [0.5, 1.0, 5.0, 1e5, 1e-40, 1e30],
    "adjacency": ["zero_out", "replace_one"],
    "unit": ["example", "user"],
    "epsilon": [0.5, 1.9, 2.1, 4.0, 0.0, 1e6],
    "delta": [1e-6, 1.1e-5, 1e-3],
    "mu": [0.1, 1.0, 4.0],
    "sensitivity": [0.5, 1.0, 2.0, 5.0],
    "sensitivity_kind": ["exact", "upper_bound"],
}
TOGETHER = [
    list(PLAUSIBLE),
    ["participations", "separation", "period", "contributions"],
    ["participation", "groups", "compositions", "batch_size", "sampling_probability", "participations"],
    ["clip_norm", "sigma_of_sums", "epsilon", "mu", "sensitivity", "adjacency"],
]
"""Fields that are changed together."""
WORDS = ["zero_out", "replace_one", "exact", "upper_bound", "fixed", "cyclic_poisson", "user", "example", "float64"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    return {make.__name__: make(tmp_path_factory.mktemp("run")) for make in KINDS}


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Balle and Wang 2018, theorem 8."""
    return float(norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu)))


def largest_norm(matrix: np.ndarray, most: int, apart: int, period: int) -> float:
    """The largest norm that one unit vector in the steps of a pattern attains, over all patterns, listed one by one."""
    products, found = matrix.T @ matrix, 0.0
    for count in range(1, most + 1):
        for steps in itertools.combinations(range(len(products)), count):
            gaps = np.diff(steps)
            if (gaps >= apart).all() and (gaps % period == 0).all():
                found = max(found, float(products[np.ix_(steps, steps)].sum()))
    return found**0.5


def least_delta(document: dict[str, Any], run: Run, epsilon: float) -> float:
    """Delta of what was counted, with the noise that is stated, from below."""
    stated, steps = document["calibration"], document["steps"]
    unit = stated["clip_norm"] * {"zero_out": 1, "replace_one": 2}[stated["adjacency"]]
    if stated["sampling"] == "fixed":
        most, gap, period = steps["participations"], steps["separation"] or 1, steps["period"] or 1
        norms = [largest_norm(matrix, most, gap, period) for matrix in run.matrices]
        sigmas = [stated["sigma_of_sums"], stated.get("second_sigma_of_sums")]
        shifts = [size * unit**power / sigma for size, sigma, power in zip(norms, sigmas, (1, 2), strict=False)]
        return gaussian_delta(epsilon, float(np.hypot(*shifts) if len(shifts) == 2 else shifts[0]) * (1 - 1e-9))
    assert stated["sampling"] == "cyclic_poisson"
    assert np.tril(run.matrices[0], -stated["groups"]).any() == 0, "an example meets its own noise"
    column = largest_norm(run.matrices[0], 1, 1, 1)
    chance = stated["batch_size"] / (stated["dataset_size"] // stated["groups"])
    step = privacy_loss_distribution.from_gaussian_mechanism(
        stated["sigma_of_sums"] / unit / column,
        sampling_prob=chance,
        pessimistic_estimate=False,
        use_connect_dots=False,
        value_discretization_interval=1e-3,
    )
    sampled = float(step.self_compose(-(-12 // stated["groups"])).get_delta_for_epsilon(epsilon))
    whole = largest_norm(run.matrices[0], 12, stated["groups"], stated["groups"]) * unit / stated["sigma_of_sums"]
    return min(sampled * (1 - 0.02), gaussian_delta(epsilon, whole * (1 - 1e-9)))


def least_mu(forged: dict[str, Any], run: Run) -> float:
    """What was counted over the noise that is stated, from below."""
    stated, steps = forged["calibration"], forged["steps"]
    unit = stated["clip_norm"] * {"zero_out": 1, "replace_one": 2}[stated["adjacency"]]
    size = largest_norm(run.matrices[0], steps["participations"], steps["separation"] or 1, steps["period"] or 1)
    return size * unit / stated["sigma_of_sums"] * (1 - 1e-9)


def is_possible(forged: dict[str, Any]) -> bool:
    """Whether some order of the steps that were taken has these counts, of as many units as there are."""
    steps, data = forged["steps"], forged["data"]
    counted, most, apart, period = steps["counted"], steps["participations"], steps["separation"], steps["period"]
    taken, units = max(last for _, last in steps["processes"]), data["users"] or data["used"]
    if units > data["examples"] or not 0 < counted["number"] <= units:
        return False
    if most == 1:
        return apart is None and period is None and counted["contributions"] == counted["number"]
    if apart is None or period is None or apart % period or apart * (most - 1) >= taken:
        return False
    return most + counted["number"] - 1 <= counted["contributions"] <= most * counted["number"]


def assert_true(forged: dict[str, Any], run: Run) -> None:
    """A receipt that was verified says no more than is true of the run whose fields it states."""
    own, stated, steps = run.document, forged["calibration"], forged["steps"]
    covered = run.matrices[0].shape[1] if run.matrices[0].shape[1] > 1 else math.inf
    assert forged["epsilon"] == stated["epsilon"] and 0 < max(last for _, last in steps["processes"]) <= covered
    assert steps["counted"]["unit"] == forged["unit"] and (forged["unit"] == "user") == bool(forged["data"]["users"])
    assert forged["factors"] == own["factors"] and forged["noise"]["generator"] in ("sfc64", "torch", "shake128")
    for name in ("sigma_of_means", "second_sigma_of_means"):
        if stated.get(name) is not None:
            sums = stated[name.replace("means", "sums")]
            assert stated[name] * stated["divisor"] >= sums * (1 - 1e-12), f"less noise in means than {sums} in sums"
    end, before = 0, None
    assert len(set(forged["noise"]["commitments"])) == len(forged["noise"]["commitments"])
    for (first, last), link in zip(steps["processes"], steps["chain"], strict=True):
        assert link["previous"] == before and (first == end or (first < end and steps["unpublished"]))
        before, end = json_digest({"run": forged["run"], **link, "steps": [first, last]}), max(end, last)
    names = [other["name"] for other in forged["others"]]
    assert len(set(names)) == len(names)
    assert (bool(names) or "trials" in forged) == (forged["together"] is not None)
    if stated["sampling"] == "fixed":
        assert is_possible(forged) and stated["mu"] >= least_mu(forged, run)
    else:
        counts = {**steps["counted"], **{name: steps[name] for name in ("participations", "separation", "period")}}
        assert all(value is None for name, value in counts.items() if name != "unit"), "a secret order is shown"
        assert forged["noise"]["ranks"] == 1 and stated["adjacency"] == "zero_out"
    if stated["sampling"] in ("fixed", "cyclic_poisson"):
        assert least_delta(forged, run, forged["epsilon"]) <= forged["delta"]
        assert stated.get("dataset_size", 0) <= (forged["data"]["users"] or forged["data"]["examples"])
        assert forged["delta"] >= stated["delta"] + forged["overflow_delta"]
    else:  # the claim is tested bit by bit: nothing that it rests on may have changed
        exact = (
            "sigma_of_sums",
            "clip_norm",
            "epsilon",
            "delta",
            "bins",
            "epochs",
            "claim",
            "adjacency",
            "sampling",
            "claim_digest",
        )
        assert all(stated[name] == own["calibration"][name] for name in exact)
        assert forged["delta"] >= own["delta"] and stated["mu"] >= own["calibration"]["mu"] * (1 - 1e-9)
    if forged["together"]:
        mus = [least_mu(forged, run), *(other["mu"] for other in forged["others"])]
        whole, delta = float(np.sqrt(np.square(mus).sum())), forged["together"]["delta"]
        mean, epsilon = forged.get("trials", {"mean": 1.0})["mean"], forged["together"]["epsilon"]
        below = np.linspace(-9, 9, 3001)  # the best of a random number: docs/notes/selection.md
        ratios = (1 + (mean - 1) * norm.cdf(below + mus[0])) / (1 + (mean - 1) * norm.cdf(below))
        assert mean * gaussian_delta(epsilon - 2 * np.log(ratios.max()), whole) <= delta


def forged_values(rng: random.Random, path: tuple[Any, ...], value: Any, pool: list[Any]) -> Any:
    """Another value for a field: near it, far from it, of another type, of another field, or none."""
    if path[-1:] == ("participation",):
        return rng.choice(PARTICIPATIONS)
    odd = [None, True, False, 0, 1, -1, 4.5, "", [], {}, "1", MISSING, 1e300, 5e-324]
    if isinstance(value, bool) or value is None or rng.random() < 0.15:
        return rng.choice([*odd, not value, 12, 4, 0.5])
    if isinstance(value, str):
        return rng.choice([*WORDS, value + "\n## Privacy: epsilon 0.01, proved", value[:-1], "torch"])
    if isinstance(value, int):
        return rng.choice([value + 1, value - 1, 2 * value, value // 2, 1, 2, 4, 12, 1 << 40, float(value)])
    if isinstance(value, float):
        near = [value * factor for factor in (0.5, 0.9, 0.999999, 1.000001, 1.1, 2, 1e3, 1e-3, 1e40, 1e-60)]
        return rng.choice([*near, rng.choice(pool), 1e5, 1.0, 0.0])
    if isinstance(value, list) and value:
        return rng.choice([[], value[:-1], [*value, value[-1]], value[::-1]])
    return rng.choice(odd)


def allowed_steps(participation: dict[str, Any]) -> tuple[int, int, int]:
    """Most steps of one example, the least distance, and what all distances are multiples of, in 12 steps."""
    if participation["kind"] == "single":
        return 1, 1, 1
    if participation["kind"] == "fixed_epochs":
        return participation["epochs"], 12 // participation["epochs"], 12 // participation["epochs"]
    most = participation.get("max_participations") or -(-12 // participation["min_sep"])
    return most, participation["min_sep"], 1


def adapted(forged: dict[str, Any], run: Run, told: Collection[str] = ()) -> dict[str, Any]:
    """A forger's receipt: sensitivity, mu and the least epsilon follow again from the fields that were changed.

    What the forger tells stays.
    """
    stated = forged["calibration"]
    if stated["sampling"] not in ("fixed", "cyclic_poisson") or len(run.matrices) == 2:
        return forged
    if "sensitivity" not in told:
        size = largest_norm(run.matrices[0], *allowed_steps(stated["participation"])) * (1 + 1e-8)
        stated |= {"sensitivity": size, "sensitivity_kind": "upper_bound"}
    unit = stated["clip_norm"] * {"zero_out": 1, "replace_one": 2}[stated["adjacency"]]
    if "mu" not in told:
        stated["mu"] = stated["sensitivity"] * unit / stated["sigma_of_sums"] * (1 + 1e-9)
    mu = stated["mu"]
    stated["noise_multiplier"] = (1 - 2e-9) / mu
    epsilon = gaussian_epsilon(mu, stated["delta"])
    if stated["sampling"] == "cyclic_poisson":
        step = privacy_loss_distribution.from_gaussian_mechanism(
            stated["sigma_of_sums"] / unit / stated["largest_column"],
            sampling_prob=stated["sampling_probability"],
            value_discretization_interval=1e-3,
        )
        sampled = step.self_compose(stated["compositions"]).get_epsilon_for_delta(stated["delta"])
        epsilon = min(epsilon, float(sampled) * 1.02)
    if "epsilon" not in told:
        forged["epsilon"] = stated["epsilon"] = epsilon + 1e-6
    if forged["together"] and "together" not in told:
        whole = float(np.sqrt(mu**2 + sum(other["mu"] ** 2 for other in forged["others"]))) * (1 + 1e-9)
        search = forged.get("trials", {"mean": 1.0, "surplus": 0.0})
        least = gaussian_epsilon(whole, forged["together"]["delta"] / search["mean"]) + 1e-6
        forged["together"] |= {"mu": whole, "epsilon": least + 2 * search["surplus"]}
    return forged


def gaussian_epsilon(mu: float, delta: float) -> float:
    return float(brentq(lambda at: gaussian_delta(at, mu) - delta, 0, 1e3))


def _less(factor: float) -> Callable[[Any], Any]:
    return lambda value: value * factor


def _same(value: Any) -> Any:
    return value


SINGLE = {"kind": "single"}
LINK: dict[str, Any] = {"process": "1" * 64, "previous": None}
ONCE: dict[str, Any] = {"steps/participations": 1, "steps/separation": None, "steps/period": None}
LIES: list[dict[str, Any]] = [
    # how often one took part
    {"calibration/participation": SINGLE},
    {"calibration/participation": {"kind": "fixed_epochs", "epochs": 2}},
    {"calibration/participation": {"kind": "min_sep", "min_sep": 6, "max_participations": 2}},
    {"calibration/participation": SINGLE, **ONCE},
    {"calibration/participation": SINGLE, "steps/participations": 1},
    {"calibration/participation": SINGLE, **ONCE, "steps/counted/contributions": 1},
    {"calibration/participation": SINGLE, **ONCE, "steps/counted/number": 72, "steps/counted/contributions": 72},
    {"calibration/participation": {"kind": "fixed_epochs", "epochs": 2}, "steps/participations": 2},
    {"calibration/participation": {"kind": "fixed_epochs", "epochs": 2}, "steps/separation": 9, "steps/period": 6},
    {"calibration/participation": {"kind": "min_sep", "min_sep": 6}, "steps/separation": 12, "steps/period": 12},
    {"steps/separation": 8, "steps/period": 3},
    {"steps/separation": 4, "steps/period": 8},
    {"steps/separation": 8, "steps/period": 8},
    {"steps/participations": None},
    {"data/used": 48, "data/examples": 24},
    {"unit": "user", "steps/counted/unit": "user"},
    {"unit": "user", "data/users": 12},
    # what the noise is, and what follows from it
    {"calibration/sensitivity": _less(0.9)},
    {"calibration/sensitivity": _less(0.9), "calibration/sensitivity_kind": "exact"},
    {"calibration/mu": _less(0.9), "calibration/epsilon": _same, "calibration/sensitivity": _same},
    {"epsilon": _less(0.9), "calibration/epsilon": _less(0.9)},
    {"epsilon": _less(0.9), "calibration/epsilon": _less(0.9), "calibration/groups": _same},
    {"epsilon": _less(0.9)},
    {"delta": _less(0.9)},
    {"calibration/sigma_of_means": _less(0.9)},
    {"calibration/second_sigma_of_sums": _less(0.9)},
    {"noise/commitments": ["0" * 64] * 2},
    {"calibration/weight": _less(0.5), "calibration/second_sigma_of_sums": _less(2)},
    {"factors/0/spec/workload/kind": "decay"},
    {"factors/0/digest": "0" * 64},
    # which steps were taken
    {"steps/processes": [[0, 13]]},
    {"steps/processes": []},
    {"steps/processes": [[1, 12]]},
    {"steps/processes": lambda taken: [*taken, [6, 12]], "steps/chain": lambda chain: [*chain, LINK]},
    {
        "steps/processes": lambda taken: [*taken, [6, 12]],
        "steps/chain": lambda chain: [*chain, {**LINK, "previous": ""}],
    },
    {"steps/processes": [[0, 6], [6, 12]], "steps/chain": lambda chain: [*chain, LINK]},
    {"steps/processes": [[0, 6], [8, 12]], "steps/chain": lambda chain: [*chain, LINK]},
    # how examples are sampled
    {"calibration/compositions": 1},
    {
        "calibration/compositions": 3,
        "calibration/participation": {"kind": "min_sep", "min_sep": 2, "max_participations": 3},
    },
    {"calibration/participation": SINGLE, "calibration/batch_size": 12, "calibration/sampling_probability": 1.0},
    {
        **{"calibration/groups": 1, "calibration/compositions": 12, "calibration/sampling_probability": 0.25},
        "calibration/participation": {"kind": "min_sep", "min_sep": 1},
    },
    {"calibration/sampling_probability": _less(0.5)},
    {"calibration/largest_column": _less(0.9)},
    {"calibration/dataset_size": 48, "calibration/sampling_probability": 0.25},
    {"calibration/adjacency": "replace_one"},
    {"calibration/adjacency": "replace_one", "calibration/groups": _same},
    {"calibration/claim_digest": "sha256:" + "0" * 64},
    {"noise/ranks": 2},
    {"steps/participations": 1},
    {"steps/counted/contributions": 72},
    {"calibration/bins": 6, "calibration/epochs": 2},
    {"calibration/sigma_of_sums": _less(0.9)},
    # other runs
    {"others": lambda others: others[:1] * 2},
    {"others": [{"name": "pilot", "mu": 0.1}], "together": None},
    {"together": None},
    {"together/epsilon": _less(0.9)},
    {"together/mu": _less(0.9), "together/epsilon": _less(0.9)},
    {"trials/surplus": _less(0.9)},
    {"trials/surplus": 0.0},
    {"trials/mean": _less(4)},
]
"""What a forger would like to say, by places and values; the values of two that say how often one took part differ."""


def lies(runs: dict[str, Run]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Endlessly, every lie in every kind of receipt that it changes, one kind after the other."""
    for turn in itertools.count():
        for lie in LIES:
            fitting = [name for name, run in runs.items() if changed_by(run.document, lie) is not None]
            name = fitting[turn % len(fitting)]
            yield name, told(runs[name], lie)


def changed_by(document: dict[str, Any], lie: dict[str, Any]) -> dict[str, Any] | None:
    """A copy of a receipt that tells a lie; None where it has no such fields, or tells the same without."""
    forged = document
    for path, value in lie.items():
        places = tuple(int(part) if part.isdigit() else part for part in path.split("/"))
        try:
            before = at(forged, places)
            forged = changed(forged, places, value(before) if callable(value) else value)
        except (KeyError, TypeError, IndexError):
            return None
    return None if forged == document else forged


def told(run: Run, lie: dict[str, Any]) -> dict[str, Any]:
    """A copy of a receipt that tells a lie, with what follows from it."""
    forged = changed_by(run.document, lie)
    assert forged is not None
    steps, fields = forged["steps"], {part for path in lie for part in path.split("/")}
    for link, earlier, taken in zip(steps["chain"][1:], steps["chain"], steps["processes"], strict=False):
        if link["previous"] == "":  # the forger knows how
            link["previous"] = json_digest({"run": forged["run"], **earlier, "steps": taken})
    with suppress(KeyError, TypeError, ValueError, ZeroDivisionError, AssertionError, OverflowError):
        return adapted(copy.deepcopy(forged), run, fields)
    return forged


def differences(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Places of values that are not those of another receipt."""
    before = {path: value for path, value in nodes(other) if not isinstance(value, (dict, list))}
    after = {path: value for path, value in nodes(one) if not isinstance(value, (dict, list))}
    return {"/".join(map(str, path)): value for path, value in after.items() if before.get(path) != value}


def forged_pair(rng: random.Random, document: dict[str, Any], run: Run) -> dict[str, Any]:
    """A copy of a receipt in which two fields are others; in some cases the forger adapts what follows from them."""
    places = [(path, value) for path, value in nodes(document) if path and path[0] not in ("digest", "schema")]
    pool = [value for _, value in places if isinstance(value, float)]
    kind, together = rng.choice(["any", "plausible", "plausible"]), rng.choice(TOGETHER)
    telling = [(path, value) for path, value in places if path[-1] in together]
    chosen = rng.choices(places, k=2) if kind == "any" or len(telling) < 2 else rng.sample(telling, 2)
    plausible = [rng.choice([value, *PLAUSIBLE.get(path[-1], [value])]) for path, value in chosen]
    values = plausible if kind != "any" else [forged_values(rng, path, value, pool) for path, value in chosen]
    if rng.random() < 0.2:
        values[1] = values[0]
    forged = copy.deepcopy(document)
    for (path, _), value in zip(chosen, values, strict=True):
        with suppress(KeyError, IndexError, TypeError):  # the first change took its place away
            forged = changed(forged, path, value)
    if kind == "plausible" and rng.random() < 0.7:
        with suppress(KeyError, TypeError, ValueError, ZeroDivisionError, AssertionError, OverflowError):
            forged = adapted(copy.deepcopy(forged), run)
    return forged


def forgeries(runs: dict[str, Run], number: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """So many receipts with the kind of each: a lie, any two fields, and so on."""
    rng, told_ones, kinds = random.Random(63), lies(runs), itertools.cycle(runs)
    for turn in range(number):
        if turn % 2:
            name = next(kinds)
            yield name, forged_pair(rng, runs[name].document, runs[name])
        else:
            yield next(told_ones)


def test_two_changed_fields_make_no_receipt_say_more_than_is_true(runs: dict[str, Run]) -> None:
    verdicts, slowest = Counter[tuple[str, bool]](), 0.0
    for turn, (name, forged) in enumerate(forgeries(runs, FORGERIES)):
        run = runs[name]
        try:
            sealed = signed(forged)
        except ValueError:  # infinite: no JSON
            continue
        started = time.process_time()
        try:
            report = check_receipt(sealed, run.files)
        except TooLarge:  # which the command answers as a refusal, too
            continue
        slowest = max(slowest, time.process_time() - started)
        verdicts[name, report.supported] += 1
        assert all(line.isprintable() for line in text(report).splitlines())
        if report.supported and not report.unseen:
            try:
                assert_true(forged, run)
            except AssertionError as reason:
                raise AssertionError((turn, name, differences(forged, run.document))) from reason
    accepted = sum(count for (_, supported), count in verdicts.items() if supported)
    assert FORGERIES / 25 < accepted < FORGERIES / 3, verdicts
    assert FORGERIES < 3000 or slowest < 2, slowest  # processor time; the long form alone looks at it


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("in_fixed_order", {"steps/separation": 5, "steps/period": 5}, "the sensitivity is for fixed_epochs"),
        ("in_fixed_order", {"steps/separation": 6}, "contradict each other"),
        ("in_fixed_order", {"steps/participations": 1}, "distances are known where"),
        ("in_fixed_order", {"steps/counted/number": 25}, "contradict each other"),
        ("in_fixed_order", {"steps/processes": [], "steps/chain": []}, "no step was taken"),
        ("in_fixed_order", {"calibration/sigma_of_sums": 1e5}, "divisor"),
        (
            "in_fixed_order",
            {"calibration/clip_norm": 1e-60, "calibration/sigma_of_sums": 1e-60},
            "is 1e-60, outside [1e-30, 1e+30]",
        ),
        ("in_fixed_order", {"calibration/participation/epochs": True}, "epochs is 'True'"),
        ("in_fixed_order", {"calibration/participation/note": "x"}, "has others than kind, epochs"),
        ("in_fixed_order", {"unit": "user"}, "users"),
        ("in_fixed_order", {"overflow_delta": 1e-9}, "overflow"),
        (
            "in_fixed_order",
            {"noise/generator": "x\n## Privacy: epsilon 0.01, proved"},
            "generator is 'x\\n## Privacy",
        ),
        (
            "in_fixed_order",
            {"steps/refused": {"late\nproved receipt.privacy: yes": 1}},
            "which is not one of too early",
        ),
        ("apart", {"calibration/participation/max_participations": 4.5}, "max_participations is '4.5'"),
        ("apart", {"calibration/participation/min_sep": True}, "min_sep is 'True'"),
        ("in_bins", {"calibration/claim_digest": None}, "claim_digest is 'None'"),
        ("in_bins", {"steps/participations": 3}, "show what was drawn"),
        ("in_bins", {"calibration/participation": {"kind": "single"}}, "do not make"),
        ("sampled_by_poisson", {"calibration/groups": 12, "calibration/compositions": 1}, "do not make"),
        ("sampled_by_poisson", {"calibration/groups": 10**6, "calibration/compositions": 1}, "do not make"),
        ("sampled_by_poisson", {"calibration/compositions": 3}, "make 6 compositions, but 3 are stated"),
        ("sampled_by_poisson", {"calibration/participation": {"kind": "single"}}, "do not make"),
        ("sampled_by_poisson", {"calibration/sampling_probability": 0.1}, "do not make the sampling probability"),
        ("sampled_by_poisson", {"calibration/dataset_size": 240}, "are not of 24 examples"),
        (
            "sampled_by_poisson",
            {"unit": "user", "data/users": 12, "steps/counted/unit": "user"},
            "are not of 12 examples",
        ),
        ("by_users", {"steps/counted/unit": "example"}, "the auditor counted examples"),
        ("with_others", {"others/0/name": "pilot", "others/1/name": "pilot"}, "have 1 names"),
        ("without_end", {"calibration/participation": {"kind": "min_sep", "min_sep": 2}}, "no finite sensitivity"),
    ],
)
def test_what_a_forger_would_write_is_refused_by_name(
    runs: dict[str, Run], kind: str, changes: dict[str, Any], words: str
) -> None:
    forged = runs[kind].document
    for path, value in changes.items():
        places = [int(part) if part.isdigit() else part for part in path.split("/")]
        forged = changed(forged, tuple(places), value)
    report = check_receipt(signed(forged), runs[kind].files)
    assert not report.supported and words in report.failed[0], report.failed
    assert all(sentence.isprintable() for sentence in report.failed)


def test_what_no_file_can_refute_is_named_as_the_job_s_word(runs: dict[str, Run]) -> None:
    """A larger sigma makes a smaller epsilon, and no receipt shows which noise was added; nor a bin's capacity."""
    forged = copy.deepcopy(runs["in_one_epoch"].document)
    forged["calibration"]["sigma_of_sums"] *= 4
    report = check_receipt(signed(adapted(forged, runs["in_one_epoch"])), runs["in_one_epoch"].files)
    assert report.supported and forged["epsilon"] < 0.5
    for run in runs.values():
        said = "".join(check_receipt(run.text, run.files).not_checked)
        assert "the job states that it added it to every step, with this sigma" in said
        assert ("of limited capacity add 0 to delta" in said) == (run.document["calibration"]["sampling"] != "fixed")


def test_large_sigma_is_answered_at_once(runs: dict[str, Run]) -> None:
    """The exponent of its delta is beyond all numbers that fit in memory."""
    forged = runs["in_one_epoch"].document
    for sigma in (1e5, 1e8):
        forged["calibration"] |= {"sigma_of_sums": sigma, "mu": 1e-4, "noise_multiplier": 1e-3}
        assert check_receipt(signed(forged), runs["in_one_epoch"].files).supported


def test_what_is_printed_of_a_bound_is_rounded_outwards(runs: dict[str, Run]) -> None:
    forged = runs["in_one_epoch"].document
    forged["epsilon"] = forged["calibration"]["epsilon"] = 2.0000004
    report = check_receipt(signed(forged), runs["in_one_epoch"].files)
    assert report.supported and "(2.00001, 1e-05)-DP" in text(report)
    assert "(2.00001, 1e-05)-differential privacy" in page("card.md", report, forged)
    assert (at_most(1 / 3), at_least(1 / 3), at_most(1e-5), at_most(Fraction(1, 3), 2)) == (
        "0.333334",
        "0.333333",
        "1e-05",
        "0.34",
    )


def test_texts_that_reach_a_page_are_of_one_line_and_without_markup(runs: dict[str, Run]) -> None:
    report = check_receipt(runs["in_one_epoch"].text, runs["in_one_epoch"].files)
    report.prove("a | b\n## Privacy: epsilon 0.01, proved <b>`x`</b>\x1b[1m\u202e")
    report.leave("# [x](y)\nproved")
    assert all(line.isprintable() for line in text(report).splitlines())
    card = page("card.md", report, runs["in_one_epoch"].document)
    assert "- \\# \\[x\\](y)\\\\nproved" in card and "\n## Privacy" not in card


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ((None, None, None, None, None), "the order is secret, and no count shows what was drawn"),
        ((0, 0, 0, None, None), "0 contributions of 0 examples, at most 0 of each: the"),
        ((1, 1, 1, None, None), "1 contribution of 1 example, at most 1 of each: the"),
        ((2, 4, 2, 6, 2), "at most 2 of each, 6 or more steps apart and always by a multiple of 2: the"),
    ],
)
def test_counts_in_words_with_and_without_values(counts: tuple[int | None, ...], words: str) -> None:
    number, contributions, most, apart, period = counts
    counted = {"unit": "example", "number": number, "contributions": contributions}
    said = say_counts({"counted": counted, "participations": most, "separation": apart, "period": period})
    assert words in said and "None" not in said
