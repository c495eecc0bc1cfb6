"""The main job end to end: start the service, post specs, watch them being solved, download, verify, draw, train.

Everything lands in the folder `.demo` (or the one given); run it with `make demo`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from factorize.client.connection import Event
from factorize.client.service import Service

ROOT = Path(__file__).parents[1]
FACTORIZE = [sys.executable, "-m", "factorize.api.cli"]
SPECS: dict[str, dict[str, Any]] = {
    "OPT_F: the optimum for prefix sums": {"workload": {"kind": "prefix", "n": 1024}},
    "lambda_tau: low noise between restarts": {
        "workload": {"kind": "prefix", "n": 512},
        "objective": {"kind": "lambda_tau", "tau": 64},
    },
    "fixed epochs: eight passes over the data": {
        "workload": {"kind": "momentum", "n": 256, "momentum": 0.9},
        "participation": {"kind": "fixed_epochs", "epochs": 8},
        "tolerance": 1e-6,
    },
    "nu-Toeplitz, tuned": {
        "workload": {"kind": "prefix", "n": 2048},
        "mechanism": {"kind": "nu_toeplitz", "nu": "tune"},
    },
}


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / ".demo").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    say(
        "About 40 s on two cores: a service solves and proves four specs, then a model trains on one.\n"
        f"  Look at optimum.png and training.png in {folder}, at the address below while it runs, and at docs/start.md"
    )
    with running_service(folder) as url:
        service = Service(url)
        digests = [solve(service, title, spec) for title, spec in SPECS.items()]
        again(service)
        for name, digest in zip(("optimum", "lambda_tau", "fixed_epochs", "nu_toeplitz"), digests, strict=True):
            factorize("get", digest, "--to", folder / f"{name}.safetensors", "--service", url)
        for name in ("optimum", "fixed_epochs"):
            factorize("verify", folder / f"{name}.safetensors")
        factorize("plot", folder / "optimum.safetensors", "--to", folder / "optimum.png")
        factorize("calibrate", folder / "optimum.safetensors", "--epsilon", "2", "--delta", "1e-6")
        say("Train on it: logistic regression on scikit-learn's digits, noise rows streamed from the service")
        run([sys.executable, "examples/train_digits.py", "--service", url, "--plot", folder / "training.png"])
    say(f"Done. Factors and pictures are in {folder}")


@contextmanager
def running_service(folder: Path) -> Iterator[str]:
    """Start `factorize serve` on a free port; its first line of output is its address."""
    say("Start the service on its embedded default: one process, SQLite, a folder")
    command = [*FACTORIZE, "serve", "--port", "0", "--store", str(folder / "store")]
    with (folder / "service.log").open("w") as log:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT)
    assert server.stdout is not None
    try:
        line = server.stdout.readline()
        if not line:
            sys.exit(f"the service did not start; see {folder / 'service.log'}")
        url = line.split()[-1]
        print(f"  {url}")
        yield url
    finally:
        server.terminate()
        server.wait(timeout=30)


def solve(service: Service, title: str, spec: dict[str, Any]) -> str:
    """Post a spec, show its progress, and say what the certificate says."""
    say(f"{title}\n  POST /v1/factorizations {json.dumps(spec)}")
    started = time.perf_counter()
    manifest = service.manifest(spec, progress=News())
    certificate = manifest["certificate"]
    sensitivity, gap = certificate["sensitivity"], certificate["relative_gap"]
    print(
        f"  {manifest['spec']['mechanism']['kind']}: objective {certificate['loss']['objective']:.9g}, "
        f"lower bound {bound(certificate)}, gap {'unknown' if gap is None else f'{gap:.2g}'}\n"
        f"  sensitivity {sensitivity['value']:.12g} ({sensitivity['kind']}, {sensitivity['rule']}); "
        f"{time.perf_counter() - started:.2f} s; digest {manifest['digest'][:12]}..."
    )
    return str(manifest["digest"])


def bound(certificate: dict[str, Any]) -> str:
    found = certificate["lower_bound"]
    return "unknown" if found is None else f"{found['objective']:.9g}"


class News:
    """Prints what is new of a job's progress, which is told several times a second."""

    line = ""

    def __call__(self, event: Event) -> None:
        """Print an event if it says something else than the one before."""
        if event.kind != "progress":
            return
        gap = event.data.get("relative_gap") or event.data.get("class_gap")
        line = f"iteration {event.data.get('iteration')}" + ("" if gap is None else f": gap {gap:.2g}")
        if event.data.get("phase") == "compile":
            line = "compiling, once on this machine"
        if line != self.line:
            print(f"    {line}", flush=True)
        self.line = line


def again(service: Service) -> None:
    """The same spec a second time is answered from the store."""
    spec = next(iter(SPECS.values()))
    started = time.perf_counter()
    service.post(spec)
    print(f"  the first spec again: answered from the store in {1e3 * (time.perf_counter() - started):.1f} ms")


def factorize(*arguments: object) -> None:
    say("factorize " + " ".join(str(a) for a in arguments))
    run([*FACTORIZE, *arguments])


def run(command: list[Any]) -> None:
    subprocess.run([str(part) for part in command], check=True, cwd=ROOT)


def say(text: str) -> None:
    print(f"\n=> {text}", flush=True)


if __name__ == "__main__":
    main()
