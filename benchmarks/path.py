"""From spec to proven bytes: posted to a running service until done, on the command line, in a batch, and posted again.

    python -m benchmarks path [--quick | --full]

Each time is that of a spec which nobody has asked for before, so that all of it is solved, certified, proved and
published. Large sizes are measured beside a float64 matrix product of the same side in the same run. `--full` adds
n = 16,384 and 10,000 steps in 8 epochs, which take gigabytes.
"""

from __future__ import annotations

import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.posting import bare_server, post_request, posts
from benchmarks.report import Report, dgemm, duration
from benchmarks.service import service

Document = dict[str, Any]
CLIENTS = 64
SMALL_MECHANISMS = (
    "dense",
    "square_root",
    "nu_toeplitz",
    "identity",
    "tree",
    "fft",
    "anti_pgd",
    "banded_inverse_square_root",
)
_EXTRA_FIELDS: dict[str, Document] = {
    "nu_toeplitz": {"nu": "tune"},
    "tree": {"decoder": "online"},
    "banded_inverse_square_root": {"bands": 8},
}


def run(report: Report) -> None:
    """Measure all rows of the table."""
    with tempfile.TemporaryDirectory() as folder:
        with service(str(Path(folder) / "store")) as host:
            _until_done(report, host)
            _posted_again(report, host)
        _proofs(report)
        _command_line(report, Path(folder))
        _batch(report, Path(folder))


def prefix(n: int, mechanism: str = "auto", **parameters: Any) -> Document:
    """Return a spec of prefix sums."""
    return {"workload": {"kind": "prefix", "n": n}, "mechanism": {"kind": mechanism, **parameters}}


def epochs(of: int) -> Document:
    """Return a spec of prefix sums over 8 epochs of so many steps."""
    return {"workload": {"kind": "prefix", "n": 8 * of}, "participation": {"kind": "fixed_epochs", "epochs": 8}}


def small_specs(sizes: Sequence[int]) -> list[Document]:
    """Return specs that are a closed form or dense, of these sizes."""
    return [prefix(n, kind, **_EXTRA_FIELDS.get(kind, {})) for n in sizes for kind in SMALL_MECHANISMS]


def specs_of_several(sizes: Sequence[int]) -> list[Document]:
    """Return the same under several participations: epochs, for multiples of 16, and steps apart."""
    found = []
    for spec in small_specs(sizes):
        n = spec["workload"]["n"]
        found += [spec | {"participation": {"kind": "fixed_epochs", "epochs": epochs}} for epochs in (4, 16)]
        if spec["mechanism"]["kind"] != "dense":  # dense has no optimum for steps apart
            found += [spec | {"participation": {"kind": "min_sep", "min_sep": n // of}} for of in (4, 16)]
    return found


def many_specs(count: int, most: int) -> list[Document]:
    """Return `count` different specs with n <= most: two workloads, dense and closed forms."""
    kinds: list[Callable[[int], Document]] = [
        lambda n: prefix(n, "dense"),
        lambda n: prefix(n, "square_root"),
        lambda n: prefix(n, "nu_toeplitz", nu="tune"),
        lambda n: {"workload": {"kind": "momentum", "n": n, "momentum": 0.9}, "mechanism": {"kind": "dense"}},
    ]
    sizes = range(most, 1, -1)
    found = [kind(n) for n in sizes for kind in kinds][:count]
    if len(found) < count:
        raise ValueError(f"there are only {len(found)} of these specs with n <= {most}; {count} were asked for")
    return found


def _until_done(report: Report, host: str) -> None:
    report.heading("Posted to a warm service, until done")
    connection = http.client.HTTPConnection(host)
    done(connection, prefix(8, "dense"))  # nobody measures the first solve of all
    _wait_until_loaded(connection)
    for label, some, sizes in (
        ("closed forms and dense", small_specs, range(60, 257, 28)),
        ("the same in epochs and steps apart", specs_of_several, range(64, 257, 64)),
    ):
        times = [done(connection, spec) for spec in some((16,) if report.quick else sizes)]
        _row(report, f"{label}, n <= {16 if report.quick else max(sizes)}", times)
    for n, repeats in ((1000, 5), (2048, 5), (4096, 3), (16384, 1)):
        _sized(report, connection, "prefix", n, repeats, prefix)
    for of, repeats in ((128, 3), (256, 3), (1250, 1)):
        _sized(report, connection, "8 epochs of", of, repeats, epochs, side=8)
    for label, spec in structured(report.quick).items():
        _row(report, label, [done(connection, spec)])
    connection.close()


def _wait_until_loaded(connection: http.client.HTTPConnection) -> None:
    """Return once the service says that nothing is left that it loads once."""
    while True:
        connection.request("GET", "/readyz")
        document = json.loads(connection.getresponse().read())
        if all(note["state"] != "loading" for note in document.get("notes", [])):
            return
        time.sleep(0.1)


def _sized(
    report: Report,
    connection: http.client.HTTPConnection,
    label: str,
    n: int,
    repeats: int,
    spec: Callable[[int], Document],
    *,
    side: int = 1,
) -> None:
    """Measure neighbouring sizes beside a matrix product of the size."""
    if n * side > 4096 and not report.full:
        return
    sizes = [(min(n, 16) if report.quick else n) + step for step in range(1 if report.quick else repeats)]
    times = [done(connection, spec(size)) for size in sizes]
    connection.close()  # a service hangs up on a client that is silent for as long as a large product takes
    product = dgemm(side * sizes[0], repeats=2)
    _row(report, f"{label} {n}", times, of=(product, f"DGEMM({side * sizes[0]})"))


def structured(quick: bool) -> dict[str, Document]:
    """Return the specs whose search takes part of the time."""
    n, long = (32, 48) if quick else (1000, 2048)
    return {
        f"toeplitz, n={n}": prefix(n, "toeplitz"),
        f"blt of 4, n={n}": prefix(n, "blt", buffers=4),
        f"banded of 16, n={n}": prefix(n, "banded", bands=16) | {"participation": {"kind": "min_sep", "min_sep": 16}},
        f"buffered_linear of 6, n={long}": prefix(long, "buffered_linear", buffers=6),
    }


def done(connection: http.client.HTTPConnection, spec: Document) -> float:
    """Post a spec until its manifest comes; returns seconds.

    Raises:
        ValueError: it failed.
    """
    began = time.perf_counter()
    while True:
        connection.request("POST", "/v1/factorizations", json.dumps(spec), {"Prefer": "wait=30"})
        answer = connection.getresponse()
        document = json.loads(answer.read())
        if answer.status == 200:
            return time.perf_counter() - began
        if document.get("state") not in ("queued", "running"):
            raise ValueError(f"{spec} ended as {document}")


def _posted_again(report: Report, host: str) -> None:
    """Report 64 clients that post a spec which is solved already, and the same to a bare application."""
    report.heading(f"Posted again by {CLIENTS} clients at once")
    count = 640 if report.quick else 6_000
    body = json.dumps(prefix(8, "dense")).encode()
    request = post_request(host, "/v1/factorizations", body)
    warm = posts(host, request, clients=CLIENTS, count=CLIENTS)
    ours = posts(host, request, clients=CLIENTS, count=count)
    with bare_server(warm.size) as other:
        bare = posts(other, post_request(other, "/", body), clients=CLIENTS, count=count // 4)
    ratio = ours.rate / bare.rate
    for label, seen in (("bare ASGI application", bare), ("cached POST", ours)):
        report.row(
            f"{label}, {warm.size} bytes",
            seconds=seen.quantile(0.5),
            ratio=ratio if seen is ours else 1.0,
            of="x the rate of the bare application",
            note=f"{seen.rate:.0f} requests/s, p99 {duration(seen.quantile(0.99))}",
            requests_per_second=seen.rate,
            p99=seen.quantile(0.99),
        )


def _proofs(report: Report) -> None:
    """Report the exact checker on files of dense optima, everything proved that can be."""
    report.heading("The whole proof of a dense file, in this process")
    from factorize.checker.check import check_factor_file
    from factorize.numbers.blas_threads import one_blas_thread
    from factorize.solvers import solve
    from factorize.spec import parse_spec

    for n in (1024, 2048):
        side = 32 if report.quick else n
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "dense.safetensors"
            solve(parse_spec(prefix(side, "dense"))).save(file)
            data = file.read_bytes()
        times = []
        for _ in range(2):
            with one_blas_thread(side):  # the prover works in the same way
                began = time.perf_counter()
                found = check_factor_file(data)
                times.append(time.perf_counter() - began)
            if not found.supported:
                raise ValueError(f"the proof fails: {found.failed}")
        product = dgemm(side, repeats=2)
        _row(report, f"dense, n={n}", times[1:], of=(product, f"DGEMM({side})"))


def _command_line(report: Report, folder: Path) -> None:
    report.heading("The command line, cold, file written")
    sizes = (16,) if report.quick else (2048, 2049, 2050)
    times = []
    for n in sizes:
        arguments = ["solve", json.dumps(prefix(n)), "--to", str(folder / f"{n}.safetensors")]
        times.append(_timed_command(*arguments, "--store", str(folder / "cold")))
    _row(report, f"solve, n={sizes[0]}", times)


def _batch(report: Report, folder: Path) -> None:
    report.heading("One batch of different specs")
    count, most = (4, 12) if report.quick else (1000, 256)
    listed = folder / "specs.jsonl"
    listed.write_text("".join(json.dumps(spec) + "\n" for spec in many_specs(count, most)))
    seconds = _timed_command("batch", str(listed), "--store", str(folder / "batch"))
    _row(report, f"{count} specs, n <= {most}", [seconds])


def _timed_command(*arguments: str) -> float:
    """Return the seconds of a command; it must succeed."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "factorize.api.cli", *arguments]
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


def _row(report: Report, label: str, times: Sequence[float], *, of: tuple[float, str] | None = None) -> None:
    middle = statistics.median(times)
    compared = report.dgemms(middle) if of is None else {"ratio": middle / of[0], "of": of[1]}
    note = f"p99 {duration(_quantile(times, 0.99))} of {len(times)}" if len(times) > 1 else ""
    report.row(label, seconds=middle, **compared, note=note, times=list(times))


def _quantile(times: Sequence[float], share: float) -> float:
    return float(np.quantile(times, share))
