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

Guards that are forked instead of started (nursery_process.py) do the same by the same ``Guard``; their supervisor is
not their parent, so they know its death by the pipe alone.
"""

import ctypes
import os
import resource
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LINUX = sys.platform == "linux"


def _prctl(option: int, value: int) -> None:
    if _LINUX:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def bound(guard: int, group: int = 0) -> None:
    """Bind the forked process to its guard: it dies with it.

    Args:
        guard: process number of the guard; ends this process if that is gone already.
        group: process group to join; 0 for one of its own.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:
        os._exit(1)
    os.setpgid(0, group)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    if _LINUX:
        # When the machine runs out of memory, the kernel should pick the solve and not the service.
        with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")


def limit(data_bytes: int) -> None:
    """Have the kernel limit the private memory that this process may reserve; 0 for no limit."""
    if data_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))


def become(command: list[str]) -> NoReturn:
    """Turn this process into the command."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
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


def detach() -> None:
    """Give up stdin and stdout, so that the supervisor sees their end when the command ends."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)


class Guard:
    """This process as the guard of one child; for the main thread, once."""

    def __init__(self) -> None:
        self.child = 0
        self._wake, wake_write = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake_write, False)
        self._asked: list[int] = []
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda number, _: self._asked.append(number))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def start(self, run: Callable[[], NoReturn]) -> None:
        """Fork the child."""
        self.child = os.fork()
        if self.child == 0:
            run()
        with suppress(OSError):  # done by both sides: whoever comes first, the group exists from here on
            os.setpgid(self.child, self.child)
        detach()

    def wait(
        self,
        watch: int,
        asking: Callable[[], int | None] = lambda: None,
        asked: Callable[[], None] = lambda: None,
        ended: Callable[[int, int], None] = lambda _pid, _status: None,
    ) -> int:
        """Return the wait status of the child, or SIGTERM where it was to be killed; nothing of it is left then.

        Args:
            watch: descriptor that reaches its end when the supervisor closes its side or dies.
            asking: a further descriptor to listen to, while there is one.
            asked: called when that can be read.
            ended: called with process number and wait status of anything else that has ended.
        """
        status = None
        while status is None and not self._asked:
            further = asking()
            ready, _, _ = select.select([watch, self._wake, *([] if further is None else [further])], [], [])
            if watch in ready:
                self._asked.append(signal.SIGTERM)
            with suppress(BlockingIOError):
                os.read(self._wake, 4096)
            while status is None and (found := _reap()):
                if found[0] == self.child:
                    status = found[1]
                else:
                    ended(*found)
            # Last, so that what is asked for is not asked of a process that has died already.
            if further in ready and status is None and not self._asked:
                asked()
        _end_all(self.child)
        return signal.SIGTERM if status is None else status


def main(watch: int, parent: int, data_bytes: int, command: list[str]) -> NoReturn:
    """Start the command, wait for its end or the supervisor's, leave nothing behind."""
    guard = Guard()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)
    me = os.getpid()

    def run() -> NoReturn:
        os.close(watch)
        bound(me)
        limit(data_bytes)
        become(command)

    guard.start(run)
    _end_like(guard.wait(watch))


def _reap() -> tuple[int, int] | None:
    """One child that has ended and its wait status, or None."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
