"""The benchmarks run at tiny sizes and compare runs rightly; speed is not tested, and no other library is fetched."""

from __future__ import annotations

import json
import os
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from factorize.solvers import choose
from factorize.spec import parse_spec

ROOT = Path(__file__).parents[2]


@pytest.fixture
def machine(benchmark_of: Any) -> Any:
    return benchmark_of("report").Machine.measured(side=32)


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)


def test_quick_runs_print_rows_and_write_them(tmp_path: Path) -> None:
    done = run("single", "toeplitz", "--quick", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "GFLOP/s" in done.stdout.splitlines()[0]
    for name in ("single", "toeplitz"):
        document = json.loads((tmp_path / "build" / "bench" / f"{name}.json").read_text())
        assert document["machine"]["cores"] >= 1
        assert set(document["machine"]["versions"]) == {"python", "numpy", "numba"}
        rows = [row for row in document["rows"] if "problem" in row]
        assert rows
        for row in rows:
            assert row["seconds"] > 0
            assert row["ratio"] > 0
            assert row["problem"] in done.stdout
    exponents = {row["problem"]: row["exponent"] for row in rows}
    assert exponents == {"Toeplitz optimum, n=256": None}


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    done = run("nothing", folder=tmp_path)
    assert done.returncode == 2
    assert "no benchmark nothing; use single" in done.stderr


def test_rows_state_growth_and_which_are_slower_than_before(
    benchmark_of: Any, machine: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = benchmark_of("report")
    kept = report.Report("squares", machine)
    for n, seconds in ((100, 1.0), (200, 4.0)):
        kept.row(f"n={n}", seconds=seconds, ratio=seconds, of="of one", series=("n", n))
    assert kept.rows[0]["exponent"] is None
    assert kept.rows[1]["exponent"] == pytest.approx(2.0)
    earlier = kept.write(tmp_path)
    assert [row["seconds"] for row in json.loads(earlier.read_text())["rows"]] == [1.0, 4.0]
    now = [kept.rows[0] | {"ratio": 1.2}, kept.rows[1] | {"ratio": 6.0}, {"remark": "of neither"}]
    assert list(report.slower(earlier, now)) == ["n=200: 6 of one, 4 before"]
    assert "n^2.00" in capsys.readouterr().out


def test_the_search_needs_no_square_array(benchmark_of: Any) -> None:
    n = 16_384
    found = benchmark_of("single").apart("prefix", n)
    assert found["gap"] <= 1e-9
    assert found["peak_bytes"] < 8 * n * n / 2


def test_a_run_of_the_peer_is_read_without_its_compile_time(benchmark_of: Any) -> None:
    document = {
        "times": [5.0, 6.0, 7.0, 8.0],
        "cpu": [6.0, 7.5, 9.0, 10.5],
        "losses": [4.0, 2.2, 2.002, 2.0000001],
        "compile_seconds": 4.0,
        "final_loss": 2.0,
    }
    peer = benchmark_of("peer").Run(document, lower_bound=2.0)
    assert peer.first_within(1e-1 + 1e-9) == 1
    assert peer.seconds(peer.first_within(1.1e-3)) == 3.0
    assert peer.first_within(1e-9) is None
    assert peer.last == 3
    assert peer.cores == pytest.approx(1.5)
    assert peer.final_gap == 0.0


def test_rows_of_a_peer_that_met_the_clock_are_lower_bounds(
    benchmark_of: Any, machine: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    peer = benchmark_of("peer")
    document = {
        "times": [1.0, 11.0, 21.0],
        "cpu": [1.0, 2.0, 3.0],
        "losses": [4.0, 2.001, 2.0001],
        "default_stop": 1,
        "stalled": False,
        "compile_seconds": 1.0,
        "final_loss": 2.0001,
        "problem": {},
        "versions": {},
    }
    optimum = peer.solved({"workload": {"kind": "prefix", "n": 8}, "mechanism": {"kind": "dense"}}).lower_bound
    document["losses"] = [loss / 2.0 * optimum for loss in document["losses"]]
    monkeypatch.setattr(peer, "run_peer", lambda *_a, **_k: peer.Run(document, optimum))
    report = benchmark_of("report").Report("peer", machine)
    spec = {"workload": {"kind": "prefix", "n": 8}, "mechanism": {"kind": "dense"}}
    peer.compare(report, Path("none"), "prefix", spec, {"kind": "dense", "n": 8}, cap=1.0)
    rows = {row["problem"]: row for row in report.rows if "problem" in row and "seconds" in row}
    assert rows["prefix: own L-BFGS, default stop"]["seconds"] == 10.0
    assert rows["prefix: own L-BFGS, gap 1e-03"]["bound"] is False
    unreached = rows["prefix: own L-BFGS, gap 1e-06 not reached"]
    assert unreached["seconds"] == 20.0
    assert unreached["bound"] is True
    assert rows["prefix: fastest, default stop"]["bound"] is False
    assert rows["prefix: fastest, gap 1e-09 not reached"]["bound"] is True
    assert "or more" in capsys.readouterr().out


def test_a_run_whose_loss_no_longer_falls_is_not_the_fastest(benchmark_of: Any) -> None:
    peer = benchmark_of("peer")

    def run_of(times: list[float], losses: list[float], *, stalled: bool) -> Any:
        document = {"times": times, "losses": losses, "default_stop": None, "stalled": stalled, "compile_seconds": 0.0}
        return peer.Run(document, lower_bound=1.0)

    stuck = run_of([1.0, 2.0], [2.0, 2.0], stalled=True)
    slow = run_of([1.0, 9.0], [2.0, 1.0], stalled=False)
    stopped = run_of([1.0, 5.0], [2.0, 1.5], stalled=False)
    assert peer._fastest([], 1e-9) is None
    assert peer._fastest([stuck], 1e-9) is None
    assert peer._fastest([stuck, slow], 1e-9) is slow
    assert peer._fastest([stuck, slow, stopped], 1e-9) is stopped


def test_without_the_peer_the_benchmark_says_so(
    benchmark_of: Any, machine: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    peer = benchmark_of("peer")

    def missing() -> Path:
        raise peer.PeerMissing("pip found no index")

    monkeypatch.setattr(peer, "python", missing)
    report = benchmark_of("report").Report("peer", machine)
    peer.run(report)
    assert "jax_privacy was not measured: pip found no index" in capsys.readouterr().out


class TestScale:
    """The processes of `python -m benchmarks scale`, at few steps."""

    @pytest.mark.parametrize("mechanism", [{"kind": "tree", "decoder": "honaker_full"}, {"kind": "banded", "bands": 3}])
    def test_a_spec_is_solved_and_published(self, benchmark_of: Any, mechanism: dict[str, Any]) -> None:
        scale = benchmark_of("scale")
        document = {"workload": {"kind": "prefix", "n": 60}, "participation": {"kind": "fixed_epochs", "epochs": 4}}
        found = scale.measure(document | {"mechanism": mechanism, "tolerance": 1e-3})
        assert found["converged"] and found["sensitivity"] == "exact" and found["gap"] > 0
        assert (found["class_gap"] is not None) == (mechanism["kind"] == "banded")
        assert 0 < found["gib"] < 4 and 0 < found["publishing_gib"] < 4 and found["bytes"] > 500
        assert "published in" in scale.note(found)

    def test_what_is_refused_says_why(self, benchmark_of: Any) -> None:
        scale = benchmark_of("scale")
        specs = list(scale.specs(scale.STEPS))
        assert len(specs) == len(scale.MECHANISMS) * len(scale.PARTICIPATIONS)
        fft = next(spec for spec in scale.specs(scale.QUICK_STEPS, quick=True) if spec["mechanism"]["kind"] == "fft")
        assert "limit of 16384 for dense arrays" in scale.measure(fft)["refused"]
        assert scale.named_by({"kind": "banded", "bands": 4}) == "banded-4"

    def test_a_run_of_its_own_is_ended_by_the_cap(self, benchmark_of: Any) -> None:
        scale = benchmark_of("scale")
        assert scale.apart(next(scale.specs(10)), 1e-3) == {"refused": "was ended after 0.001 s"}


class TestPage:
    """The measured part of the page comes from the JSON files of one run."""

    @pytest.fixture
    def folder(self, benchmark_of: Any, machine: Any, tmp_path: Path) -> Path:
        module = benchmark_of("report")
        report = module.Report("single", machine)
        report.heading("How long does the search take?")
        report.row("prefix, n=8 | m", seconds=3.0, ratio=4.0, of="DGEMM(32)", note="gap 1e-9")
        for size in (4, 5):
            report.row(f"making, n={size}", seconds=1.0, ratio=4.0, of="DGEMM(32)")
            report.row(f"proof, n={size}", seconds=2.0, ratio=0.5, of="its making")
        report.remark("Beside nothing else.")
        report.write(tmp_path)
        return tmp_path

    def test_each_question_has_a_table(self, benchmark_of: Any, folder: Path) -> None:
        page = benchmark_of("page")
        text = page.measured(page.documents(folder))
        assert "**How long does the search take?**" in text
        assert "| problem | seconds |\n| --- | --- |\n| prefix, n=8 / m | 3 s |\n" in text
        assert (
            "| problem | making | proof |\n| --- | --- | --- |\n| n=4 | 1 s | 2 s (0.5 its making) |\n| n=5 |" in text
        )

    def test_what_stands_above_is_kept(self, benchmark_of: Any, folder: Path) -> None:
        page = benchmark_of("page")
        once = page.page("# Benchmarks\n\n", page.documents(folder))
        assert once.startswith(f"# Benchmarks\n\n{page.BEGIN}")
        assert page.page(once, page.documents(folder)) == once

    def test_quick_runs_and_several_machines_are_refused(self, benchmark_of: Any, folder: Path) -> None:
        page = benchmark_of("page")
        document = json.loads((folder / "single.json").read_text())
        document["machine"]["cores"] += 1
        (folder / "other.json").write_text(json.dumps(document))
        with pytest.raises(ValueError, match="several machines"):
            page.documents(folder)
        document["quick"] = True
        (folder / "other.json").write_text(json.dumps(document))
        with pytest.raises(ValueError, match="not quick"):
            page.documents(folder)


class TestPath:
    """What `python -m benchmarks path` is made of."""

    def test_a_thousand_specs_are_different(self, benchmark_of: Any) -> None:
        specs = [choose(parse_spec(document)) for document in benchmark_of("path").many_specs(1000, 256)]
        assert len({spec.digest for spec in specs}) == 1000
        assert max(spec.workload.n for spec in specs) == 256

    def test_every_post_is_answered_and_timed(self, benchmark_of: Any) -> None:
        posting = benchmark_of("posting")
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"
        with answering(answer) as host:
            seen = posting.posts(host, posting.post_request(host, "/", b"{}"), clients=3, count=20)
        assert len(seen.seconds) == 20
        assert seen.size == 3
        assert 0 < seen.quantile(0.5) <= seen.quantile(0.99) <= seen.wall

    def test_an_answer_that_is_no_200_ends_the_measurement(self, benchmark_of: Any) -> None:
        posting = benchmark_of("posting")
        with (
            answering(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n") as host,
            pytest.raises(ValueError, match="503"),
        ):
            posting.posts(host, posting.post_request(host, "/", b"{}"), clients=2, count=4)


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """Give the address of a server that answers every request with the same bytes."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            while self.request.recv(1 << 16):
                self.request.sendall(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield "{}:{}".format(*server.server_address)
        finally:
            server.shutdown()
            thread.join()
