"""The nursery's process: everything imported, compiled code loaded, one thread, so that forking it is sound.

`nursery.py` starts it with a socket as its stdin and asks it for children, one message each: the order as JSON, with
the descriptors of stdin, stdout, stderr and the supervisor's socket. It forks a guard (reaper.py) in a session of its
own, the guard forks the child, and the child calls `main` of its module. Neither keeps a descriptor of the nursery's.
Between two messages the nursery loads compiled code (warming.py), so whoever asks early waits for one piece at most.

The guard writes the wait status of the child to the supervisor's socket, whose other side no other process has. It has
run nothing but this file, so it can fork further children that know nothing of the first: the child asks for them by
`sibling.py`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from factorize.api.isolated import PROVE
from factorize.api.processes import sibling
from factorize.api.processes.reaper import Guard, bound
from factorize.api.processes.sibling import ASKING, MESSAGE_BYTES, STATUS_BYTES
from factorize.api.processes.warming import Warmth, one_thread

_REFUSED = 126 << 8  # a wait status: exit 126


@dataclass(frozen=True, slots=True)
class ChildOrder:
    """What is asked of the nursery.

    Attributes:
        module: whose `main` the child calls.
        threads: threads per BLAS, OpenMP or numba pool.
        data_bytes: private memory that the child may reserve; 0 for no limit.
        environment: variables that the child sets.
    """

    module: str
    threads: int
    data_bytes: int
    environment: dict[str, str]


def main() -> int:
    """Fork children on request until nobody can ask any more."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps guards; supervisors learn of their end elsewhere
    with socket.socket(fileno=os.dup(0)) as asking:
        os.set_inheritable(0, False)
        warmth = Warmth()
        while True:
            while not select.select([asking], [], [], 0)[0] and warmth.next():
                pass
            message, descriptors = _received(asking, 4)
            if not message:
                return 0
            _answer(asking, ChildOrder(**json.loads(message)), descriptors, warmth)


def _received(asking: socket.socket, most: int) -> tuple[bytes, list[int]]:
    message, descriptors, _, _ = socket.recv_fds(asking, MESSAGE_BYTES, most)
    return message, descriptors


def _answer(asking: socket.socket, order: ChildOrder, descriptors: Sequence[int], warmth: Warmth) -> None:
    """Fork a guard, and send its process number with a descriptor of it; the reason where that is not sound."""
    with _closing(descriptors):
        if not one_thread():
            asking.sendall(json.dumps({"refused": "a library has started threads"}).encode())
            return
        guard = os.fork()
        if guard == 0:
            asking.close()
            _guard(order, descriptors, warmth)
        answer = json.dumps({"pid": guard}).encode()
        try:
            handle = os.pidfd_open(guard)
        except ProcessLookupError:  # it is dead already; the supervisor's socket says so
            asking.sendall(answer)
            return
        with _closing([handle]):
            socket.send_fds(asking, [answer], [handle])


def _guard(order: ChildOrder, descriptors: Sequence[int], warmth: Warmth) -> NoReturn:
    """Be the guard of one child."""
    try:
        os.setsid()
        *streams, watch = descriptors
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        status = _Family(order, watch, warmth).wait()
        os.write(watch, status.to_bytes(STATUS_BYTES, "little"))
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


class _Family:
    """A guard with its child, and what the child asks it to fork beside."""

    def __init__(self, order: ChildOrder, watch: int, warmth: Warmth) -> None:
        self._order, self._warmth = order, warmth
        self._me = os.getpid()
        self._siblings: set[int] = set()
        self._guard = Guard(watch)
        asking, child_side = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._asking: socket.socket | None = asking

        def run() -> NoReturn:
            bound(order.data_bytes, self._me)
            os.dup2(child_side.fileno(), ASKING, inheritable=False)
            sibling.attach()
            _become(order.module, order, warmth, keep=ASKING)

        with child_side:
            self._guard.start(run)

    def wait(self) -> int:
        """Return the child's wait status once nothing of the family is left."""
        return self._guard.wait(self._descriptor, self._fork_sibling, self._sibling_ended)

    def _descriptor(self) -> int | None:
        return None if self._asking is None else self._asking.fileno()

    def _fork_sibling(self) -> None:
        assert self._asking is not None
        message, descriptors = _received(self._asking, 3)
        with _closing(descriptors):
            if not message:
                self._asking.close()
                self._asking = None
                return
            if message != PROVE.encode() or len(descriptors) != 3 or self._siblings:
                self._say(_REFUSED)
                return
            beside = os.fork()
            if beside == 0:
                bound(self._order.data_bytes, self._me, self._guard.child)
                for number, stream in enumerate(descriptors):
                    os.dup2(stream, number)
                _become(PROVE, self._order, self._warmth)
            self._siblings.add(beside)

    def _sibling_ended(self, pid: int, status: int) -> None:
        if pid in self._siblings:
            self._siblings.discard(pid)
            self._say(status)

    def _say(self, status: int) -> None:
        if self._asking is not None:
            with contextlib.suppress(OSError):  # the child has gone, and this guard soon
                self._asking.send(status.to_bytes(STATUS_BYTES, "little"))


def _become(module: str, order: ChildOrder, warmth: Warmth, keep: int = 2) -> NoReturn:
    """Run a module in this forked process; descriptors above `keep` are closed."""
    status = 1
    try:
        os.closerange(keep + 1, os.sysconf("SC_OPEN_MAX"))
        os.environ.update(order.environment)
        sys.argv = [module]
        warmth.use_threads(order.threads)
        status = importlib.import_module(module).main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(status)


@contextlib.contextmanager
def _closing(descriptors: Sequence[int]) -> Iterator[None]:
    try:
        yield
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main())
