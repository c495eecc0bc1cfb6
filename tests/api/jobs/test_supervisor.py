"""The supervisor against real children: every way to end, every limit, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import forked_body
import psutil
import pytest
from shared_processes import own_children

from factorize.api.jobs import supervisor
from factorize.api.jobs.ending import Ending, SolveEnding
from factorize.api.jobs.supervisor import Request, run
from factorize.api.processes import guards
from factorize.api.processes.nursery import SUPPORTED

DIGEST = "ab" * 32
PRELUDE = """
import json, os, subprocess, sys, time
def say(**event):
    print(json.dumps(event), flush=True)
"""
WAY: list[str] = []
DONE = f'say(event="done", digest="{DIGEST}")'


def child(body: str) -> tuple[str, ...]:
    """A child process that runs these lines."""
    return (sys.executable, "-I", "-S", "-c", PRELUDE + textwrap.dedent(body))


@pytest.fixture(params=["started", "forked"] if SUPPORTED else ["started"], autouse=True)
def way(request, monkeypatch) -> str:
    """Where children come from: a command, or the nursery (on Linux). Silence is told of where a test asks for it."""
    monkeypatch.setattr(supervisor, "SILENT_SECONDS", 60.0)
    WAY[:] = [request.param]
    return request.param


def request(body: str, *, memory_mb: int = 64, seconds_limit: float = 30, threads: int = 1) -> Request:
    spec = '{"workload":{"kind":"prefix","n":4}}'
    limits = (memory_mb, seconds_limit, threads)
    if WAY == ["forked"]:
        return Request("0" * 64, spec, PRELUDE + textwrap.dedent(body), *limits, module="forked_body")
    return Request("0" * 64, spec, "file:///a store", *limits, child(body))


def run_child(body: str, *, events: list[dict[str, object]] | None = None, **limits: float) -> SolveEnding:
    report = (events if events is not None else []).append
    return run(request(body, **limits), report=report, cancelled=lambda: False)  # type: ignore[arg-type]  # ints fit


def wait_for(condition, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """True for a process that runs; a zombie that waits for init does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def read_pids(path: Path, count: int) -> list[int]:
    """Process numbers that a child has written to a file, one to a line."""
    wait_for(lambda: path.exists() and path.read_text().count("\n") == count)
    return [int(line) for line in path.read_text().split()]


def test_done_with_the_documented_line_on_stdin():
    outcome = run_child(f"""
        line = json.loads(sys.stdin.readline())
        spec = {{"workload": {{"kind": "prefix", "n": 4}}}}
        assert line == {{"spec": spec, "store": "file:///a store"}}, line
        {DONE}
    """)
    assert (outcome.ending, outcome.digest, outcome.error) == (Ending.DONE, DIGEST, None)
    assert 0 < outcome.seconds < 30


def test_threads_are_in_the_environment_and_the_service_settings_are_not(monkeypatch):
    monkeypatch.setenv("FACTORIZE_DATABASE", "postgresql://user:secret@host/jobs")
    names = guards.THREAD_VARIABLES
    outcome = run_child(
        f"""
        assert [os.environ[name] for name in {names}] == ["3"] * 4
        assert not [name for name in os.environ if name.startswith("FACTORIZE_")]
        {DONE}
        """,
        threads=3,
    )
    assert outcome.ending is Ending.DONE, outcome


def test_the_temporary_folder_of_a_child_is_removed(tmp_path):
    outcome = run_child(f"""
        folder = os.environ["TMPDIR"]
        open(os.path.join(folder, "scratch"), "w").close()
        open({str(tmp_path / "folder")!r}, "w").write(folder)
        {DONE}
    """)
    assert outcome.ending is Ending.DONE
    assert not Path((tmp_path / "folder").read_text()).exists()


def test_progress_is_the_newest_and_bounded_in_rate():
    events: list[dict[str, object]] = []
    outcome = run_child(
        f"""
        for i in range(3000):
            say(event="progress", iteration=i, relative_gap=1 / (i + 1), seconds=0.1, other="dropped")
            time.sleep(0.0003)
        {DONE}
        """,
        events=events,
    )
    assert outcome.ending is Ending.DONE
    found = {"iteration": 2999, "relative_gap": 1 / 3000, "class_gap": None, "seconds": 0.1}
    assert outcome.progress == found | {"phase": None, "seconds_left": None}
    assert 1 <= len(events) <= 2 + 2 * outcome.seconds
    iterations = [event["iteration"] for event in events]
    assert iterations == sorted(iterations)  # type: ignore[type-var]  # all integers


def test_what_is_stored_is_told_once_before_the_end_of_the_child_and_is_cancelled_no_more(tmp_path):
    gate, said = tmp_path / "gate", []

    def stored(ending: SolveEnding) -> None:
        said.append((ending.ending, ending.digest))
        gate.touch()

    body = f"""
        {DONE}
        while not os.path.exists({str(gate)!r}): time.sleep(0.01)
        time.sleep(0.3)
    """
    outcome = run(request(body), report=lambda _: None, cancelled=lambda: bool(said), stored=stored)
    assert outcome.ending is Ending.DONE and said == [(Ending.DONE, DIGEST)]


def test_nonsense_on_stdout_is_passed_over():
    events: list[dict[str, object]] = []
    outcome = run_child(
        f"""
        print("a library says hello"); print("[1, 2"); print("[" * 9000); print("null")
        sys.stdout.write("x" * 300000 + json.dumps(dict(event="done", digest="{"cd" * 32}")) + "\\n")
        say(event="progress", iteration=7, relative_gap=float("nan"), class_gap="0.1", seconds=2)
        say(event="progress", iteration=True, seconds=3); say(event="progress", iteration=8, seconds=None)
        {DONE}
        """,
        events=events,
    )
    assert (outcome.ending, outcome.digest) == (Ending.DONE, DIGEST)
    found = {"iteration": 7, "relative_gap": None, "class_gap": None, "seconds": 2}
    assert outcome.progress == found | {"phase": None, "seconds_left": None}
    assert events in ([], [outcome.progress])


def test_progress_of_the_first_moment_is_told_by_the_end_alone(monkeypatch):
    monkeypatch.setattr(supervisor, "FIRST_SECONDS", 600.0)
    events: list[dict[str, object]] = []
    body = f'say(event="progress", iteration=3, seconds=2.0)\ntime.sleep(0.3)\n{DONE}'
    outcome = run(request(body), report=events.append, cancelled=lambda: False, report_interval=600.0)
    assert outcome.ending is Ending.DONE and outcome.progress is not None
    assert (events, outcome.progress["iteration"]) == ([], 3)


def test_a_silent_child_is_told_of_again_with_later_seconds(monkeypatch):
    monkeypatch.setattr(supervisor, "SILENT_SECONDS", 0.1)
    events: list[dict[str, object]] = []
    line = 'say(event="progress", iteration=3, seconds=2.0, phase="certify", seconds_left=0.25)'
    assert run_child(f"{line}\ntime.sleep(1)\n{DONE}", events=events).ending is Ending.DONE
    seconds = [event["seconds"] for event in events]
    assert len(events) > 2 and seconds == sorted(seconds) and seconds[0] == 2.0 < seconds[1]  # type: ignore[type-var]
    assert {event["phase"] for event in events} == {"certify"} and {event["iteration"] for event in events} == {3}
    assert events[0]["seconds_left"] == 0.25 and events[-1]["seconds_left"] is None


def test_a_flood_of_output_neither_blocks_the_child_nor_fills_the_memory():
    before = psutil.Process().memory_info().rss
    outcome = run_child(f"""
        for _ in range(200):
            sys.stdout.write("y" * 100000); sys.stderr.write("z" * 100000)
        print()
        {DONE}
    """)
    assert outcome.ending is Ending.DONE
    assert psutil.Process().memory_info().rss - before < 16 << 20


def test_failed_carries_the_message_of_the_child():
    outcome = run_child("""
        say(event="failed", error={"type": "unsupported-problem", "message": "bands=9 exceeds min_sep=8"})
        sys.exit(3)
    """)
    assert outcome.ending is Ending.FAILED and outcome.digest is None
    assert outcome.error == {"type": "unsupported-problem", "message": "bands=9 exceeds min_sep=8"}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("raise ValueError('no such workload')", "ValueError: no such workload"),
        ("sys.exit(7)", "exit status 7"),
        ("pass", "without a result"),
        ('say(event="done", digest="../../etc/passwd")', "without a result"),
        (f"{DONE}; sys.exit(1)", "exit status 1"),
        ('say(event="failed", error="text")', "without a result"),
    ],
)
def test_an_end_without_a_usable_result_is_failed(body, says):
    outcome = run_child(body)
    assert outcome.ending is Ending.FAILED and outcome.error is not None
    assert says in outcome.error["message"]


def test_a_very_long_message_is_cut():
    outcome = run_child('say(event="failed", error={"type": "t" * 500, "message": "m" * 5000}); sys.exit(1)')
    assert outcome.error == {"type": "t" * 100, "message": "m" * 2000}


def test_a_command_that_does_not_exist_is_failed_with_its_name():
    missing = Request("0" * 64, "{}", "store", 64, 30, 1, ("/no/such/program",))
    outcome = run(missing, report=lambda event: None, cancelled=lambda: False)
    assert outcome.ending is Ending.FAILED and outcome.error is not None
    assert "/no/such/program" in outcome.error["message"]


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_a_child_killed_by_a_signal_is_crashed(number):
    outcome = run_child(f"os.kill(os.getpid(), {int(number)}); time.sleep(60)")
    assert outcome.ending is Ending.CRASHED and outcome.error is not None
    assert number.name in outcome.error["message"]


@pytest.mark.parametrize("target", ["os.getpid()", "os.getppid()"], ids=["child", "guard"])
def test_a_child_or_guard_told_to_end_from_outside_is_interrupted(target):
    outcome = run_child(f"os.kill({target}, {int(signal.SIGTERM)}); time.sleep(60)")
    assert outcome.ending is Ending.INTERRUPTED


def test_wall_limit():
    outcome = run_child("time.sleep(60)", seconds_limit=0.5)
    assert outcome.ending is Ending.TIMEOUT and outcome.error is not None
    assert outcome.error["type"] == "timeout" and "0.5 s" in outcome.error["message"]
    assert outcome.seconds >= 0.5


@pytest.mark.parametrize(
    "catch",
    [
        "",
        """
        except MemoryError as error:
            say(event="failed", error={"type": "MemoryError", "message": str(error)})
            sys.exit(1)
        """,
    ],
    ids=["traceback", "reported"],
)
def test_memory_limit(catch):
    body = textwrap.dedent("try:\n    block = bytearray(2 << 30)") + textwrap.dedent(catch or "\nfinally: pass")
    outcome = run_child(body, memory_mb=16)
    assert outcome.ending is Ending.OUT_OF_MEMORY and outcome.error is not None
    assert outcome.error["type"] == "out_of_memory" and "16 MB" in outcome.error["message"]


def test_memory_within_the_limit_is_given():
    assert run_child(f"block = bytearray(200 << 20); {DONE}", memory_mb=256).ending is Ending.DONE


def test_memory_is_watched_where_the_kernel_does_not_limit_it(monkeypatch):
    monkeypatch.setattr(supervisor, "_KERNEL_LIMITS_DATA", False)
    monkeypatch.setattr(Request, "data_limit_mb", property(lambda self: self.memory_mb))
    outcome = run_child("block = bytearray(b'1') * (300 << 20); time.sleep(60)", memory_mb=100)
    assert outcome.ending is Ending.OUT_OF_MEMORY


FAMILY = """
    log = {path!r}
    def note(pid):
        with open(log, "a") as file: file.write(str(pid) + "\\n")
    note(os.getppid())
    note(os.getpid())
    sleep = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"]
    note(subprocess.Popen(sleep).pid)
    note(subprocess.Popen(sleep, start_new_session=True).pid)
"""


def test_cancel_kills_the_child_and_its_children_quickly(tmp_path):
    log, ask = tmp_path / "pids", threading.Event()
    outcomes: list[SolveEnding] = []
    body = textwrap.dedent(FAMILY.format(path=str(log))) + "\ntime.sleep(60)"
    thread = threading.Thread(
        target=lambda: outcomes.append(run(request(body), report=lambda event: None, cancelled=ask.is_set))
    )
    thread.start()
    pids = read_pids(log, 4)
    assert all(alive(pid) for pid in pids)
    ask.set()
    thread.join(600)
    assert outcomes[0].ending is Ending.CANCELLED
    assert not [pid for pid in pids if alive(pid)]
    assert not own_children()  # no zombie either


def test_what_a_finished_child_leaves_behind_is_killed(tmp_path):
    log = tmp_path / "pids"
    outcome = run_child(textwrap.dedent(FAMILY.format(path=str(log))) + f"\n{DONE}")
    assert outcome.ending is Ending.DONE
    assert not [pid for pid in read_pids(log, 4) if alive(pid)]


def test_an_exception_in_report_kills_the_child(tmp_path):
    log = tmp_path / "pids"
    body = (
        textwrap.dedent(FAMILY.format(path=str(log)))
        + '\nsay(event="progress", iteration=1, seconds=0.1)\ntime.sleep(60)'
    )

    def report(event: dict[str, object]) -> None:
        raise OSError("the event log is gone")

    with pytest.raises(OSError, match="event log"):
        run(request(body), report=report, cancelled=lambda: False)
    assert not [pid for pid in read_pids(log, 4) if alive(pid)]


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGSTOP])
def test_a_guard_that_is_killed_or_stopped_takes_nobody_with_it(tmp_path, stop, monkeypatch):
    monkeypatch.setattr(supervisor, "GRACE_SECONDS", 0.5)
    log = tmp_path / "pids"
    body = textwrap.dedent(FAMILY.format(path=str(log))) + f"\nos.kill(os.getppid(), {int(stop)})\ntime.sleep(60)"
    outcome = run(
        request(body, seconds_limit=60 if stop == signal.SIGKILL else 4),
        report=lambda event: None,
        cancelled=lambda: False,
    )
    assert outcome.ending is (Ending.CRASHED if stop == signal.SIGKILL else Ending.TIMEOUT)
    pids = read_pids(log, 4)[:3]  # the last left the session, and with the guard the only one who knew it
    wait_for(lambda: not [pid for pid in pids if alive(pid)])
    os.kill(read_pids(log, 4)[3], signal.SIGKILL)


HOST = """
import sys
sys.path[:0] = {folders!r}
from factorize.api.jobs.supervisor import Request, run
run({request!r}, report=lambda event: None, cancelled=lambda: False)
"""


def test_kill_9_of_the_process_that_runs_the_supervisor_leaves_no_orphan(tmp_path):
    log = tmp_path / "pids"
    asked = request(textwrap.dedent(FAMILY.format(path=str(log))) + "\ntime.sleep(60)", seconds_limit=60)
    folders = [str(Path(supervisor.__file__).parents[3]), str(Path(forked_body.__file__).parent)]
    host = subprocess.Popen([sys.executable, "-c", HOST.format(folders=folders, request=asked)])
    pids = read_pids(log, 4)
    host.kill()
    host.wait()
    wait_for(lambda: not [pid for pid in pids if alive(pid)])


def test_no_descriptor_and_no_process_is_leaked():
    run_child(DONE)
    before = psutil.Process().num_fds()
    for _ in range(3):
        run_child(DONE)
    assert psutil.Process().num_fds() == before
    assert not own_children()
