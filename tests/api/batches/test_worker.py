"""Workers that stay: many answers from one process, and a crash that costs one of them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest

from factorize.api.batches.worker import Worker
from factorize.errors import LimitExceeded, UnsupportedProblem

PATIENCE = 600.0


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker("toy_worker", "toy")
    yield made
    made.close()


def test_one_process_answers_many_requests(worker: Worker) -> None:
    answers = [worker.ask({"do": "echo", "at": at}, seconds=PATIENCE) for at in range(3)]
    assert [answer["echo"]["at"] for answer in answers] == [0, 1, 2]
    assert {answer["pid"] for answer in answers} == {worker.pid}


def test_what_it_refuses_is_the_same_error_here_and_it_goes_on(worker: Worker) -> None:
    with pytest.raises(UnsupportedProblem, match="no such thing"):
        worker.ask({"do": "refuse"}, seconds=PATIENCE)
    assert worker.ask({"do": "echo"}, seconds=PATIENCE)["pid"] == worker.pid


def test_a_crash_costs_one_answer_and_says_its_last_words(worker: Worker) -> None:
    first = worker.ask({"do": "echo"}, seconds=PATIENCE)["pid"]
    with pytest.raises(LimitExceeded, match=r"the toy ended with status -6 .*: out of luck; nothing is stored"):
        worker.ask({"do": "crash"}, seconds=PATIENCE)
    second = worker.ask({"do": "echo"}, seconds=PATIENCE)["pid"]
    assert first != second
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


def test_what_takes_too_long_is_killed(worker: Worker) -> None:
    worker.ask({"do": "echo"}, seconds=PATIENCE)
    with pytest.raises(LimitExceeded, match=r"took longer than 0.2 s and was killed"):
        worker.ask({"do": "sleep"}, seconds=0.2)
    assert worker.ask({"do": "echo"}, seconds=PATIENCE)["pid"] == worker.pid


def test_a_kill_from_another_thread_ends_the_wait_and_nothing_starts_again(worker: Worker) -> None:
    worker.ask({"do": "echo"}, seconds=PATIENCE)
    threading.Timer(0.1, worker.kill).start()
    began = time.monotonic()
    with pytest.raises(LimitExceeded):
        worker.ask({"do": "sleep"}, seconds=PATIENCE)
    assert time.monotonic() - began < PATIENCE
    with pytest.raises(LimitExceeded, match="was closed"):
        worker.ask({"do": "echo"}, seconds=PATIENCE)
