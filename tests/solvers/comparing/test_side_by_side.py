"""Tasks in threads: all run, in order of beginning, and whoever raises first ends the others."""

from __future__ import annotations

import threading
import warnings
from contextvars import ContextVar
from functools import partial

import pytest

from factorize.errors import Cancelled
from factorize.solvers.comparing.side_by_side import run_all

WAIT = 30.0  # seconds; never reached


@pytest.mark.parametrize("workers", [1, 2, 3, 9])
def test_all_tasks_run_and_are_heard_in_the_calling_thread(workers: int) -> None:
    here, heard = threading.get_ident(), []

    def hear(news: int) -> None:
        assert threading.get_ident() == here
        heard.append(news)

    run_all([lambda tell, i=i: tell(i) for i in range(7)], hear, workers=workers)
    assert sorted(heard) == list(range(7))
    if workers == 1:
        assert heard == list(range(7))


def test_two_run_at_a_time() -> None:
    together = threading.Barrier(2)
    run_all([lambda _tell: together.wait(WAIT) and None for _ in range(4)], lambda _news: None, workers=2)
    assert not together.broken


def test_tasks_see_the_context_of_the_caller() -> None:
    name: ContextVar[str] = ContextVar("name", default="none")
    seen: list[str] = []
    token = name.set("given")
    run_all([lambda _tell: seen.append(name.get()) for _ in range(3)], lambda _news: None, workers=2)
    name.reset(token)
    assert seen == ["given"] * 3


def test_warnings_that_one_task_silences_for_all_are_as_before_afterwards() -> None:
    together, before = threading.Barrier(2), list(warnings.filters)

    def task(_tell, first: bool) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            together.wait(WAIT)
            if first:
                together.wait(WAIT)  # the other has put its filters back, and these are gone
                warnings.warn("of a library", RuntimeWarning, stacklevel=1)
        if not first:
            together.wait(WAIT)

    run_all([partial(task, first=True), partial(task, first=False)], lambda _news: None, workers=2)
    assert list(warnings.filters) == before


def test_what_hear_raises_ends_all_tasks() -> None:
    ended: list[str] = []

    def task(tell, name: str) -> None:
        try:
            while True:
                tell(name)
        except Cancelled:
            ended.append(name)
            raise

    def hear(_news: str) -> None:
        raise Cancelled("enough")

    with pytest.raises(Cancelled, match="enough"):
        run_all([partial(task, name="a"), partial(task, name="b")], hear, workers=2)
    assert set(ended) <= {"a", "b"}  # one may not have begun
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("side by side")]


def test_what_a_task_raises_is_raised_here_once_the_others_have_ended() -> None:
    began = threading.Event()
    ended: list[bool] = []

    def endless(tell) -> None:
        try:
            while True:
                tell(None)
                began.set()
        finally:
            ended.append(True)

    def fails(_tell) -> None:
        assert began.wait(WAIT)
        raise ZeroDivisionError("of the task")

    with pytest.raises(ZeroDivisionError, match="of the task"):
        run_all([endless, fails, endless], lambda _news: None, workers=2)
    assert ended == [True]
