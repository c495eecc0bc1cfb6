"""A frozen reference of what the code answers, for changes that must not change an answer.

`python -m benchmarks.frozen write FILE` records it, `python -m benchmarks.frozen compare FILE` makes it again and
prints every difference; the exit code is 1 where there is one. Parts: `specs` (canonical forms, chosen mechanisms and
digests of all specs of the contract suite), `answers/MECHANISM` (certificate, digests and exact report of each of its
answers), `golden` (the files of each release), `noise` (of each golden file, 32 steps for each generator and precision)
and `tables` (comparisons).

Reports and texts have to be equal up to their numbers, numbers up to 1e-12 of themselves; all else has to be equal.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from factorize import load, parse_spec, solvers
from factorize.client import load as load_factors
from factorize.errors import FactorizeError, UnsupportedProblem
from factorize.exact import check_factor_file

TESTS = Path(__file__).parents[1] / "tests"
TOLERANCE = 1e-12
STEPS, WIDTH, SEED = 32, 67, 20_240_817
OWN_TIME = ("seconds",)
"""Keys that are left out: what a clock says."""
LONG = {"semidefinite": 1e-3}
"""Tolerance of a mechanism that would take minutes at that of the others."""
TABLES: dict[str, dict[str, Any]] = {
    "prefix": {"workload": {"kind": "prefix", "n": 12}},
    "momentum, epochs, lambda_tau": {
        "workload": {"kind": "momentum", "n": 12, "momentum": 0.9},
        "participation": {"kind": "fixed_epochs", "epochs": 3},
        "objective": {"kind": "lambda_tau", "tau": 4},
        "tolerance": 1e-6,
    },
    "window, min_sep, max": {
        "workload": {"kind": "window", "n": 12, "width": 4},
        "participation": {"kind": "min_sep", "min_sep": 4, "max_participations": 2},
        "objective": {"kind": "max"},
        "tolerance": 1e-6,
    },
}
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")

Document = dict[str, Any]


@cache
def cases() -> Any:
    """Return the small specs of the contract suite (`cases.py` of the tests, wherever it lies there)."""
    sys.path.append(str(min(TESTS.rglob("cases.py")).parent))  # with the helpers that it imports
    return import_module("cases")


def golden_files() -> list[Path]:
    """Return the files of all releases."""
    return sorted((TESTS / "golden").glob("*/*.safetensors"))


def documents(mechanism: str) -> Iterator[tuple[str, Document]]:
    """Every contract spec of a mechanism under the mean objective, by a name."""
    known = cases()
    for workload, participation in itertools.product(known.WORKLOADS, known.PARTICIPATIONS):
        yield (
            f"{workload}, {participation}",
            {
                "workload": known.WORKLOADS[workload],
                "participation": known.PARTICIPATIONS[participation],
                "mechanism": known.MECHANISMS[mechanism],
                "tolerance": LONG.get(mechanism, 1e-6),
            },
        )


def specs() -> Document:
    """Canonical forms and digests, also for the objectives that `answers` leaves out."""
    found: Document = {}
    for mechanism in cases().MECHANISMS:
        for (name, document), objective in itertools.product(documents(mechanism), cases().OBJECTIVES):
            key = f"{mechanism}: {name}, {objective}"
            try:
                spec = solvers.choose(parse_spec({**document, "objective": cases().OBJECTIVES[objective]}))
            except FactorizeError as error:
                found[key] = {"refused": type(error).__name__}
                continue
            found[key] = {"digest": spec.digest, "canonical": spec.canonical().document()}
    return found


def answers(mechanism: str) -> Document:
    """Return what the contract suite answers: certificates, digests and exact reports."""
    return {name: answer(document) for name, document in documents(mechanism)}


def answer(document: Document) -> Document:
    """One answer, or the kind of the refusal."""
    try:
        found = solvers.solve(parse_spec(document))
    except UnsupportedProblem as error:
        return {"refused": type(error).__name__}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "answer.safetensors"
        found.save(path)
        data = path.read_bytes()
    workload = found.spec.workload
    user = {str(workload.sha256): workload.array} if workload.kind == "matrix" else {}
    return {**stated(found), "exact": check_factor_file(data, user=user).document()}


def stated(found: Any) -> Document:
    """Digests and certificate of a result."""
    manifest = found.manifest
    return {
        "spec_digest": manifest["spec_digest"],
        "digest": manifest["digest"],
        "matrices": manifest["matrices"],
        "dual": manifest.get("dual"),
        "iterations": manifest["solver"].get("iterations"),
        "certificate": manifest["certificate"],
    }


def golden() -> Document:
    """Return what each golden file states, and what the exact checker says of it."""
    found: Document = {}
    for path in golden_files():
        data = path.read_bytes()
        report = check_factor_file(data).document()
        file = {"sha256": hashlib.sha256(data).hexdigest(), **stated(load(path)), "exact": report}
        found[f"{path.parent.name}/{path.stem}"] = file
    return found


def noise() -> Document:
    """The noise of each golden file, by generator and precision."""
    found: Document = {}
    for path in golden_files():
        factors = load_factors(path)
        for generator, precision in itertools.product(("sfc64", "shake128"), ("float32", "float64")):
            name = f"{path.parent.name}/{path.stem}, {generator}, {precision}"
            try:
                found[name] = noise_bits(factors, generator, precision)
            except UnsupportedProblem as error:
                found[name] = {"structure": factors.structure, "refused": type(error).__name__}
    return found


def noise_bits(factors: Any, generator: str, precision: str) -> Document:
    """Structure, standard deviation and the sha256 of the first steps of the noise."""
    calibration = factors.calibrate(epsilon=1.0, delta=1e-6)
    made = factors.noise(calibration, WIDTH, seed=SEED, generator=generator, precision=precision)
    rows = [np.asarray(made.next()).tobytes() for _ in range(min(STEPS, factors.steps))]
    bits = hashlib.sha256(b"".join(rows)).hexdigest()
    return {"structure": factors.structure, "sigma": calibration.sigma_of_sums, "bits": bits}


def tables() -> Document:
    """Comparisons of all mechanisms, without a limit on their time."""
    return {
        name: without_clocks(solvers.compare(parse_spec(document), buffers=3, most_seconds=1e6).to_dict())
        for name, document in TABLES.items()
    }


def without_clocks(value: Any) -> Any:
    """Plain data without what a clock said."""
    if isinstance(value, dict):
        return {key: without_clocks(each) for key, each in value.items() if key not in OWN_TIME}
    return [without_clocks(each) for each in value] if isinstance(value, list | tuple) else value


def parts() -> dict[str, Callable[[], Document]]:
    """Return what makes each part."""
    by_mechanism = {f"answers/{name}": partial(answers, name) for name in cases().MECHANISMS}
    return {"golden": golden, "noise": noise, "specs": specs, "tables": tables, **by_mechanism}


def chosen(asked: list[str] | None) -> list[str]:
    """Names of parts: those that are asked for, a name with all that lies below it, or all.

    Raises:
        SystemExit: there is no such part.
    """
    names = list(parts())
    if not asked:
        return names
    for wanted in asked:
        if not any(_below(name, wanted) for name in names):
            sys.exit(f"no part {wanted!r}; use {', '.join(names)}")
    return [name for name in names if any(_below(name, wanted) for wanted in asked)]


def _below(name: str, wanted: str) -> bool:
    return name == wanted or name.startswith(f"{wanted}/")


def reference(names: list[str]) -> Document:
    """Make parts, saying how long each took."""
    found: Document = {}
    makers = parts()
    for name in names:
        began = time.process_time()
        found[name] = json.loads(json.dumps(makers[name]()))
        print(f"{name}: {len(found[name])} entries, {time.process_time() - began:.1f} CPU s", flush=True)
    return found


def differences(before: Any, now: Any, *, exact: bool, at: str = "") -> Iterator[str]:
    """Every difference between two pieces of plain data, with its place."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in [*before, *(key for key in now if key not in before)]:
            place = f"{at} > {key}" if at else str(key)
            if key in before and key in now:
                yield from differences(before[key], now[key], exact=exact, at=place)
            else:
                yield f"{place}: {'is new' if key in now else 'is gone'}: {_brief(now.get(key, before.get(key)))}"
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for i, (old, new) in enumerate(zip(before, now, strict=True)):
            yield from differences(old, new, exact=exact, at=f"{at}[{i}]")
    elif isinstance(before, list) and isinstance(now, list):
        yield from (f"{at}: is gone: {_brief(each)}" for each in before if each not in now)
        yield from (f"{at}: is new: {_brief(each)}" for each in now if each not in before)
        yield f"{at}: had {len(before)} entries, has {len(now)}"
    elif not (before == now and type(before) is type(now)) and (exact or not alike(before, now)):
        yield f"{at}: was {_brief(before)}, is {_brief(now)}"


def alike(before: Any, now: Any) -> bool:
    """Whether two values are floats, or texts with numbers, that agree within the tolerance.

    Integers, truth values and sha256 are alike only where they are equal, which the caller has seen to.
    """
    if isinstance(before, float) and isinstance(now, float):
        return math.isclose(before, now, rel_tol=TOLERANCE, abs_tol=TOLERANCE**2)
    if not (isinstance(before, str) and isinstance(now, str)):
        return False
    if before.startswith(("0x", "-0x")):
        return now.startswith(("0x", "-0x")) and "p" in before and alike(float.fromhex(before), float.fromhex(now))
    if " " not in before or _NUMBER.sub("#", before) != _NUMBER.sub("#", now):
        return False
    pairs = zip(_NUMBER.findall(before), _NUMBER.findall(now), strict=True)
    return all(old == new or ("." in old and alike(float(old), float(new))) for old, new in pairs)


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 300 else f"{text[:297]}..."


def write(path: Path, names: list[str]) -> int:
    """Record the reference."""
    path.write_text(json.dumps(reference(names), indent=0, sort_keys=True) + "\n")
    print(f"written to {path}")
    return 0


def compare(path: Path, asked: list[str] | None, *, exact: bool) -> int:
    """Make the parts of a reference again, print every difference, return 1 where there is one.

    What is new since the reference has nothing to differ from: it is printed and not counted.
    """
    before = json.loads(path.read_text())
    names = chosen(asked)
    found = [f"{name}: is gone" for name in before if name not in parts()]
    now = reference([name for name in names if name in before])
    for name, entries in now.items():
        found += differences(
            before[name], {key: entries[key] for key in before[name] if key in entries}, exact=exact, at=name
        )
    new = [f"{name} > {key}" for name in now for key in now[name] if key not in before[name]]
    new += [name for name in names if name not in before]
    for text in [*found, *(f"{name}: is new" for name in new)]:
        print(text)
    print(f"{len(found)} differences in {sum(map(len, now.values()))} entries of {len(now)} parts")
    return int(bool(found) or not now)


def main(arguments: list[str] | None = None) -> int:
    """Write or compare."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.frozen", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("action", choices=("write", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--part", action="append", metavar="NAME", help="only this one; may be given several times")
    parser.add_argument("--exact", action="store_true", help="numbers have to be equal too")
    asked = parser.parse_args(arguments)
    if asked.action == "write":
        return write(asked.file, chosen(asked.part))
    return compare(asked.file, asked.part, exact=asked.exact)


if __name__ == "__main__":
    sys.exit(main())
