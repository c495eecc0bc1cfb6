"""The small process between the supervisor and a solve: no child outlives whoever asked for it.

It is started as ``python -I -S reaper.py WATCH_FD PARENT_PID DATA_BYTES COMMAND...`` and needs the
standard library only, so it is up in about 10 ms. It starts COMMAND in a process group of its own under
the memory limit, waits, and ends the same way COMMAND ended (same exit status, same signal). It kills
everything that COMMAND started when

* the pipe WATCH_FD reaches its end, because the supervisor closed it or because its process died (every
  platform);
* its parent thread dies or somebody sends SIGTERM (Linux: ``PR_SET_PDEATHSIG``).

COMMAND itself dies with the guard (``PR_SET_PDEATHSIG`` = SIGKILL). On Linux the guard adopts orphaned
grandchildren, so that it can kill and reap even those that left the process group.

Why a process and not ``preexec_fn``: Python code between fork and exec in a process with threads can
deadlock, and ``PR_SET_PDEATHSIG`` is not inherited by grandchildren.
"""

import ctypes
import os
import resource
import select
import signal
import sys
from contextlib import suppress
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LINUX = sys.platform == "linux"


def _prctl(option: int, value: int) -> None:
    if _LINUX:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _become(command: list[str], data_bytes: int, guard: int) -> NoReturn:
    """Turn the forked process into the command."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:
        os._exit(1)
    os.setpgid(0, 0)
    for number in (signal.SIGPIPE, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    if data_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))
    if _LINUX:
        # When the machine runs out of memory, the kernel should pick the solve and not the service.
        with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]!r}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(127)


def _adopted() -> list[int]:
    """Children of this process, with the orphans it adopted."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def _end_all(child: int) -> None:
    """Kill the command's group and every adopted orphan, and reap them."""
    while True:
        for kill, pid in [(os.killpg, child), *((os.kill, pid) for pid in _adopted())]:
            with suppress(ProcessLookupError, PermissionError):
                kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _end_like(status: int) -> NoReturn:
    """End this process the way the command ended."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1)


def _detach() -> None:
    """Give up stdin and stdout, so that the supervisor sees their end when the command ends."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)


def main(watch: int, parent: int, data_bytes: int, command: list[str]) -> NoReturn:
    """Start the command, wait for its end or the supervisor's, leave nothing behind."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    asked: list[int] = []
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(watch)
        _become(command, data_bytes, guard)
    with suppress(OSError):  # done by both sides: whoever comes first, the group exists from here on
        os.setpgid(child, child)
    _detach()
    ended = None
    while ended is None and not asked:
        ready, _, _ = select.select([watch, wake_read], [], [])
        if watch in ready:
            asked.append(signal.SIGTERM)
        with suppress(BlockingIOError):
            os.read(wake_read, 4096)
        while ended is None and (found := _reap()):
            ended = found[1] if found[0] == child else None
    _end_all(child)
    _end_like(signal.SIGTERM if ended is None else ended)


def _reap() -> tuple[int, int] | None:
    """One child that has ended and its wait status, or None."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
