"""The lock of a run: one process at a time, named to whoever comes second, and free when its holder is killed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
from pathlib import Path

import pytest
from held_locks import holding

from factorize.errors import InvalidParameter
from factorize.training.run_lock import RunLock


def refused_in_a_fork(path: Path) -> bool:
    """Whether another process, which has inherited what this one has, does not get the lock."""
    child = os.fork()
    if not child:
        try:
            RunLock(path, field="path")
        except InvalidParameter:
            os._exit(17)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with holding(path) as other:
        holder = re.escape(f"run.json is in use by process {other.pid} on {socket.gethostname()}")
        for _ in range(2):
            with pytest.raises(InvalidParameter, match=holder):
                RunLock(path, field="path")
        os.kill(other.pid, signal.SIGKILL)
    RunLock(path, field="path").release()


def test_who_reads_the_lock_s_file_does_not_end_the_lock(tmp_path: Path) -> None:
    """As the holder itself does where it copies its folder; and a fork that goes on after its parent keeps none."""
    path = tmp_path / "run.json"
    lock = RunLock(path, field="path")
    shutil.copytree(tmp_path, tmp_path / "copy")
    assert refused_in_a_fork(path)
    reader, writer = os.pipe()
    if not (child := os.fork()):
        os.read(reader, 1)
        os._exit(0)
    lock.release()
    assert not refused_in_a_fork(path)
    os.write(writer, b"x")
    os.waitpid(child, 0)


def test_in_one_process_the_last_holder_has_it_and_a_fork_has_not(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    first = RunLock(path, field="path")
    second = RunLock(tmp_path / "." / "run.json", field="path")
    first.release()  # which has no lock any more
    assert refused_in_a_fork(path)
    second.release()
    assert not refused_in_a_fork(path)
