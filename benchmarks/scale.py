"""Every structured mechanism at n = 10^6: seconds, memory and gap of solve, certificate and publication.

    python -m benchmarks scale [--cap SECONDS]

Each spec runs in a process of its own, so that its peak of memory is its own: it is solved, certified and published
into a store, the exact checker in a further process included, whose peak counts as well. Goal: each below 4 GiB. What
is refused is listed with its reason, and what takes longer than the cap (1800 s by default) is ended. A mechanism whose
arrays grow with n^2 has to refuse; one that does not fit a participation too.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.report import Report, duration

Document = dict[str, Any]

STEPS, QUICK_STEPS = 1_000_000, 20_000
TOLERANCE = 1e-3
CAP_SECONDS = 1800.0
MECHANISMS: tuple[Document, ...] = (
    {"kind": "identity"},
    {"kind": "anti_pgd"},
    {"kind": "square_root"},
    {"kind": "banded_square_root", "bands": 16},
    {"kind": "banded_inverse_square_root", "bands": 16},
    {"kind": "toeplitz"},
    {"kind": "banded_toeplitz", "bands": 16},
    {"kind": "nu_toeplitz", "nu": "tune"},
    {"kind": "blt", "buffers": 4},
    {"kind": "tree", "decoder": "online"},
    {"kind": "tree", "decoder": "honaker_online"},
    {"kind": "tree", "decoder": "honaker_full"},
    {"kind": "buffered_linear", "buffers": 8},
    {"kind": "banded", "bands": 4},
    {"kind": "banded", "bands": 16},
    {"kind": "banded", "bands": 64},
    {"kind": "fft"},
    {"kind": "dense"},
)
QUICK: tuple[Document, ...] = ({"kind": "blt", "buffers": 4}, {"kind": "banded", "bands": 4}, {"kind": "fft"})
PARTICIPATIONS: tuple[Document, ...] = (
    {"kind": "single"},
    {"kind": "fixed_epochs", "epochs": 4},
    {"kind": "min_sep", "min_sep": 1000},
)


def specs(n: int, *, quick: bool = False) -> Iterator[Document]:
    """Yield what is solved; if quick, one of each way to be certified, and one that has to refuse."""
    mechanisms = [each for each in MECHANISMS if not quick or each in QUICK]
    for participation in PARTICIPATIONS[: 1 if quick else None]:
        for mechanism in mechanisms:
            spec = {"workload": {"kind": "prefix", "n": n}, "participation": participation, "mechanism": mechanism}
            yield spec | {"tolerance": TOLERANCE}


def measure(document: Document) -> Document:
    """Solve, certify and publish a spec in this process; return what it took, or why it was refused."""
    from factorize import solvers
    from factorize.api.proof import prove
    from factorize.errors import FactorizeError
    from factorize.spec import parse_spec
    from factorize.storage.store import open_store

    began, used = time.perf_counter(), time.process_time()
    try:
        needed = solvers.estimate(parse_spec(document))
        found = solvers.solve(parse_spec(document))
    except FactorizeError as error:
        return {"refused": str(error)}
    solved = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - used, "gib": _peak(False)}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(folder)
        try:
            manifest = store.put(found, check=partial(prove, store=store.url))
        except FactorizeError as error:
            return {"refused": f"publication: {error}"} | solved
    certificate = found.certificate
    bound = certificate.class_lower_bound
    return solved | {
        "estimated": needed.seconds,
        "estimated_gib": needed.bytes / 2**30,
        "publishing": time.perf_counter() - began,
        "publishing_gib": _peak(True),
        "bytes": manifest["files"][0]["bytes"],
        "rmse": certificate.loss.rmse,
        "gap": certificate.relative_gap,
        "class_gap": None if bound is None else certificate.loss.objective / bound.objective - 1,
        "converged": certificate.converged,
        "sensitivity": certificate.sensitivity.kind,
        "gib": _peak(False),
    }


def _peak(children: bool) -> float:
    """Return the peak of resident memory in GiB; of this process, or of those that it has waited for."""
    kilobytes = resource.getrusage(resource.RUSAGE_CHILDREN if children else resource.RUSAGE_SELF).ru_maxrss
    return kilobytes / (2**30 if sys.platform == "darwin" else 2**20)


def apart(document: Document, cap: float) -> Document:
    """Measure in a process of its own."""
    command = (sys.executable, "-m", "benchmarks.scale")
    try:
        done = subprocess.run(command, input=json.dumps(document), capture_output=True, text=True, timeout=cap)
    except subprocess.TimeoutExpired:
        return {"refused": f"was ended after {cap:g} s"}
    if done.returncode:
        return {"refused": (done.stderr.strip().splitlines() or ["killed, perhaps for memory"])[-1]}
    answer: Document = json.loads(done.stdout)
    return answer


def run(report: Report, cap: float | None = None) -> None:
    """Print a row for each spec."""
    n = QUICK_STEPS if report.quick else STEPS
    report.heading(f"n={n}, tolerance {TOLERANCE:g}: seconds to a certified result, peak of memory, gap")
    for document in specs(n, quick=report.quick):
        named = f"{named_by(document['mechanism'])}, {document['participation']['kind']}"
        found = apart(document, cap or CAP_SECONDS)
        if "rmse" not in found:
            report.remark(f"{named}: {found['refused']}")
            continue
        report.row(
            named,
            seconds=found["seconds"],
            **report.dgemms(found["seconds"]),
            note=note(found),
            spec=document,
            **{name: value for name, value in found.items() if name != "seconds"},
        )


def note(found: Document) -> str:
    """Return the other columns of a row."""
    gaps = [f"{name} {found[key]:.3g}" for name, key in (("gap", "gap"), ("class gap", "class_gap")) if found[key]]
    return ", ".join(
        [
            f"CPU {duration(found['cpu'])}",
            f"{found['gib']:.2f} GiB",
            f"published in {duration(found['publishing'])} with {found['publishing_gib']:.2f} GiB",
            *(gaps or ["no bound"]),
            f"rmse {found['rmse']:.6g}",
            "converged" if found["converged"] else "not converged",
        ]
    )


def named_by(mechanism: Document) -> str:
    """Return a mechanism in one word, with its size."""
    return "-".join(str(value) for value in mechanism.values())


def main() -> None:
    """Measure the spec on stdin and answer on stdout."""
    print(json.dumps(measure(json.load(sys.stdin))))


if __name__ == "__main__":
    main()
