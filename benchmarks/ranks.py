"""What correlated noise costs where two ranks train together: time and memory of `optimizer.step`.

    python -m benchmarks ranks

Two processes over gloo, one thread each, hold replicas of one vector of parameters and the gradient of one example.
`correlated_optimizer` takes a step with buffered noise (4 buffers), and takes turns with itself on C = I, which adds
independent noise: clipping, sums over the ranks and the update of SGD are the same. A step lasts until the slower rank
is done. 10^7 parameters; --full takes 10^8 (16 GB of memory), --quick 10^5. torch comes with `make
.venv-frameworks/.installed`.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
from pathlib import Path

from benchmarks.report import Report, at_most
from factorize.solvers import solve
from factorize.spec import parse_spec

RANKS, STEPS, ROUNDS = 2, 32, 7
MECHANISMS = {"buffered": {"kind": "buffered_linear", "buffers": 4}, "independent": {"kind": "identity"}}
SCRIPT = Path(__file__).with_name("ranks_script.py")
PYTHON = SCRIPT.parents[1] / ".venv-frameworks" / "bin" / "python"


def run(report: Report) -> None:
    """Print the time of a step with either noise, their ratio, and what each rank keeps."""
    if not PYTHON.exists():
        report.remark("not run: torch is not here; call make .venv-frameworks/.installed first")
        return
    size = 10**5 if report.quick else 10**8 if report.full else 10**7
    report.heading(f"One step of {size:.0e} parameters on {RANKS} ranks")
    with tempfile.TemporaryDirectory() as folder:
        for name, mechanism in MECHANISMS.items():
            spec = {"workload": {"kind": "prefix", "n": STEPS}, "mechanism": mechanism}
            solve(parse_spec(spec)).save(Path(folder) / f"{name}.safetensors")
        question = {"folder": folder, "ranks": RANKS, "size": size, "rounds": 3 if report.quick else ROUNDS}
        done = subprocess.run([PYTHON, SCRIPT, json.dumps(question)], capture_output=True, text=True)
        if done.returncode:
            report.remark(f"not measured: {done.stderr.strip()[-300:]}")
            return
        found = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(RANKS)]
    for rank, each in enumerate(found):
        report.remark(
            f"rank {rank}: {each['vectors'] / size:.3g} numbers of state for each parameter; at most "
            f"{each['peak'] / 2**20:.0f} MiB in memory with both optimizers"
        )
    slower = {name: [max(pair) for pair in zip(*(each[name] for each in found), strict=True)] for name in MECHANISMS}
    ratio = statistics.median(a / b for a, b in zip(slower["buffered"], slower["independent"], strict=True))
    spent = {name: sum(sum(each[f"{name} processor"]) for each in found) for name in MECHANISMS}
    report.row(
        "buffered, 4 buffers",
        seconds=statistics.median(slower["buffered"]),
        ratio=ratio,
        of="of a step that adds independent noise",
        note=f"independent {statistics.median(slower['independent']):.3f} s; "
        f"{spent['buffered'] / spent['independent']:.3f} of its processor seconds on all ranks",
        goals=[] if report.quick else [at_most("ratio", ratio, 1.5)],
        times=slower["buffered"],
        independent=slower["independent"],
        memory=[each["peak"] for each in found],
    )
