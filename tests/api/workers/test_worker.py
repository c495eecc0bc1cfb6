"""Workers that stay: many answers from one process, every way to end, every limit, and nothing left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import toy_worker
from patience import alive, wait_for

from factorize.api.workers import worker as worker_module
from factorize.api.workers.worker import AnswerLimits, Ending, Worker, WorkerEnded
from factorize.errors import InvalidSpec, UnsupportedProblem


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker("toy_worker")
    yield made
    made.close()


def test_its_environment_has_one_thread_and_no_setting_of_the_service(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FACTORIZE_DATABASE", "postgresql://user:secret@host/jobs")
    environment = worker.ask("do", {"do": "echo"})["environment"]
    assert [environment[name] for name in worker_module.THREAD_VARIABLES] == ["1"] * 4
    assert not [name for name in environment if name.startswith("FACTORIZE_")]


def test_progress_is_bounded_in_rate_and_its_last_step_is_told(worker: Worker) -> None:
    steps: list[int] = []
    worker.ask("do", {"do": "echo", "steps": 20_000}, progress=lambda event: steps.append(event["iteration"]))
    assert steps == sorted(steps) and steps[-1] == 19_999 and len(steps) < 2_000


def test_what_it_refuses_is_the_same_error_here_and_it_goes_on(worker: Worker) -> None:
    with pytest.raises(UnsupportedProblem, match="no such thing") as refusal:
        worker.ask("do", {"do": "refuse"})
    assert refusal.value.field == "mechanism"
    with pytest.raises(InvalidSpec) as invalid:
        worker.ask("do", {"do": "refuse spec"})
    assert [(one.pointer, one.message) for one in invalid.value.violations] == [("/workload/n", "must be positive")]
    pid = worker.pid
    assert worker.ask("do", {"do": "echo"})["pid"] == pid


@pytest.mark.parametrize(
    ("request_", "ending", "words"),
    [
        ({"do": "crash"}, Ending.CRASHED, "SIGABRT.*out of luck"),
        ({"do": "signal", "number": signal.SIGSEGV}, Ending.CRASHED, "SIGSEGV"),
        ({"do": "signal", "number": signal.SIGKILL}, Ending.CRASHED, "SIGKILL, perhaps by the kernel"),
        ({"do": "signal", "number": signal.SIGTERM}, Ending.INTERRUPTED, "SIGTERM"),
        ({"do": "divide"}, Ending.FAILED, "exit status 1 .*ZeroDivisionError"),
        ({"do": "exit", "status": 7}, Ending.FAILED, "exit status 7 .*it wrote nothing to stderr"),
        ({"do": "refuse memory"}, Ending.OUT_OF_MEMORY, r"admitted with 64 MB.*\(3 GiB\)"),
        ({"do": "allocate", "mib": 2048}, Ending.OUT_OF_MEMORY, "admitted with 64 MB"),
    ],
)
def test_an_end_without_an_answer_is_named_and_costs_one_answer(
    worker: Worker, request_: dict[str, object], ending: Ending, words: str
) -> None:
    first = worker.ask("do", {"do": "echo"})["pid"]
    with pytest.raises(WorkerEnded, match=words) as end:
        worker.ask("do", request_, AnswerLimits(memory_mb=64))
    assert end.value.ending is ending
    assert not alive(first)
    assert worker.ask("do", {"do": "echo"})["pid"] != first


def test_each_answer_may_reserve_what_it_was_admitted_with_and_no_limit_outlasts_it(worker: Worker) -> None:
    answers = [worker.ask("do", {"do": "allocate", "mib": 300}, AnswerLimits(memory_mb=300)) for _ in range(3)]
    answers.append(worker.ask("do", {"do": "allocate", "mib": 2048}))
    assert {answer["pid"] for answer in answers} == {worker.pid}


def test_memory_is_watched_where_the_kernel_does_not_limit_it(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "_KERNEL_LIMITS_DATA", False)
    monkeypatch.setattr(worker_module, "_resident_mb", lambda _pid: 900.0)
    with pytest.raises(WorkerEnded) as end:
        worker.ask("do", {"do": "sleep"}, AnswerLimits(memory_mb=100))
    assert end.value.ending is Ending.OUT_OF_MEMORY


def test_a_flood_of_output_neither_blocks_it_nor_fills_the_memory(worker: Worker) -> None:
    before = psutil.Process().memory_info().rss
    worker.ask("do", {"do": "flood"})
    assert psutil.Process().memory_info().rss - before < 16 << 20


def test_what_takes_too_long_is_killed(worker: Worker) -> None:
    worker.ask("do", {"do": "echo"})
    with pytest.raises(WorkerEnded, match=r"wall limit.*it was 0.2 s") as end:
        worker.ask("do", {"do": "sleep"}, AnswerLimits(seconds=0.2))
    assert end.value.ending is Ending.TIMEOUT and worker.pid is None


def test_a_cancel_kills_it_and_what_it_has_started(worker: Worker) -> None:
    started: list[int] = []
    with pytest.raises(WorkerEnded) as end:
        worker.ask(
            "do", {"do": "child", "steps": 0}, AnswerLimits(cancelled=lambda: bool(started)),
            lambda event: started.append(event["iteration"]),
        )  # fmt: skip
    assert end.value.ending is Ending.CANCELLED
    wait_for(lambda: not alive(started[0]))


def test_an_error_of_whoever_listens_kills_it(worker: Worker) -> None:
    def lose(_event: object) -> None:
        raise OSError("the event log is gone")

    with pytest.raises(OSError, match="event log"):
        worker.ask("do", {"do": "sleep", "steps": 1}, progress=lose)
    assert worker.pid is None


def test_a_kill_from_another_thread_ends_the_wait_and_nothing_starts_again(worker: Worker) -> None:
    worker.ask("do", {"do": "echo"})
    threading.Timer(0.1, worker.kill).start()
    for _ in range(2):
        with pytest.raises(WorkerEnded) as end:
            worker.ask("do", {"do": "sleep"})
        assert end.value.ending is Ending.CANCELLED


def test_it_is_replaced_once_it_is_worn(worker: Worker) -> None:
    first = worker.ask("do", {"do": "wear"})["pid"]
    assert worker.ask("do", {"do": "echo"})["pid"] != first and not alive(first)


HOST = """
import sys
sys.path[:0] = {folders!r}
from factorize.api.workers.worker import Worker
Worker("toy_worker").ask("do", {{"do": "hold"}}, progress=lambda event: print(event["iteration"], flush=True))
"""


def test_kill_9_of_its_parent_ends_it_even_while_it_holds_the_interpreter() -> None:
    folders = [str(Path(worker_module.__file__).parents[3]), str(Path(toy_worker.__file__).parent)]
    with subprocess.Popen([sys.executable, "-c", HOST.format(folders=folders)], stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        pid = int(host.stdout.readline())
        assert alive(pid)
        host.kill()
    wait_for(lambda: not alive(pid))


def test_no_descriptor_and_no_process_is_leaked() -> None:
    def one() -> None:
        made = Worker("toy_worker")
        made.ask("do", {"do": "echo"})
        made.close()

    one()
    before, children = psutil.Process().num_fds(), set(psutil.Process().children())
    for _ in range(3):
        one()
    # An older worker may have been collected, and a thread of another service may have a file open for a moment.
    wait_for(lambda: psutil.Process().num_fds() <= before)
    wait_for(lambda: set(psutil.Process().children()) <= children)
