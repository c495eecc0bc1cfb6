"""The family of a child: its guard, the child and the process of its proof, forked before anybody asks for them.

The nursery (nursery_process.py) forks a guard in a session of its own, and the guard forks the other two. All three
wait for an order. So the forks, and the pages that each of them copies on its first steps, lie before the order and
beside other work, and not between an order and its answer. One family carries out one order and ends.

The order is that of `ChildOrder`, with the descriptors of stdin, stdout, stderr and the supervisor's socket. The child
gets the first three and calls `main` of its module. The guard writes the wait status of the child to the supervisor's
socket, whose other side no other process has. It has run nothing but this file, so what it forks knows nothing of the
child; the child asks for the proof by `sibling.py`. Where the nursery ends before there is an order, the family ends.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import NoReturn

from factorize.api.isolated import PROVE
from factorize.api.processes import sibling
from factorize.api.processes.reaper import Guard, bound, detach, limit
from factorize.api.processes.sibling import ASKING, STATUS_BYTES, closing, received
from factorize.api.processes.warming import Warmth

_REFUSED = 126 << 8  # a wait status: exit 126
_LIBRARIES = 160 << 20  # bytes of an order's limit that a Python of its own reserves before any work
_END_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ChildOrder:
    """What is asked of a family.

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

    @classmethod
    def read(cls, message: bytes) -> ChildOrder:
        """Return the order that a message holds."""
        return cls(**json.loads(message))

    @property
    def message(self) -> bytes:
        """The order as JSON."""
        return json.dumps(asdict(self)).encode()


class ChildFamily:
    """A family as the nursery sees it: one that has been forked and waits for its order.

    Args:
        warmth: what the nursery has loaded.
    """

    def __init__(self, warmth: Warmth) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.pid = os.fork()
            if self.pid == 0:
                _guard(theirs, warmth)
        try:
            self.handle: int | None = os.pidfd_open(self.pid)
        except ProcessLookupError:  # it is dead already; whoever watches it sees that
            self.handle = None

    @property
    def living(self) -> bool:
        """Whether the guard can be given an order."""
        return self.handle is not None and not select.select([self.handle], [], [], 0)[0]

    def order(self, message: bytes, descriptors: Sequence[int]) -> None:
        """Have it carry out an order; whether it does, its supervisor sees."""
        with contextlib.suppress(OSError):
            socket.send_fds(self._orders, [message], descriptors)

    def close(self) -> None:
        """Let go of it; one without an order ends."""
        self._orders.close()
        if self.handle is not None:
            os.close(self.handle)
            self.handle = None

    def end(self) -> None:
        """End one without an order, and see it end."""
        self._orders.close()
        if self.handle is not None:
            select.select([self.handle], [], [], _END_SECONDS)
        self.close()


def _guard(orders: socket.socket, warmth: Warmth) -> NoReturn:
    """Be the guard of one child."""
    try:
        os.setsid()
        detach()
        _close_all_but(orders.fileno())
        members = _Members(warmth)
        with orders:
            message, descriptors = received(orders, 4)
        if len(descriptors) != 4:
            os._exit(0)  # nobody can ask any more; the others die with this process
        *streams, watch = descriptors
        status = members.carry_out(ChildOrder.read(message), streams, watch)
        os.write(watch, status.to_bytes(STATUS_BYTES, "little"))
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


class _Members:
    """A guard's child, and the process that waits to check what the child writes."""

    def __init__(self, warmth: Warmth) -> None:
        self._warmth, self._me = warmth, os.getpid()
        self._guard = Guard()
        self._asking: socket.socket | None = _standing(self._guard.start, lambda: bound(self._me), warmth, child=True)
        self._beside: set[int] = set()
        self._waiting: dict[int, socket.socket] = {}
        self._order: ChildOrder | None = None
        self._fork_beside()

    def carry_out(self, order: ChildOrder, streams: Sequence[int], watch: int) -> int:
        """Give the child its order; returns its wait status once nothing of the family is left."""
        assert self._asking is not None
        self._order = order
        with closing(streams), contextlib.suppress(OSError):  # the child has died
            os.dup2(streams[2], 2)
            socket.send_fds(self._asking, [order.message], streams)
        return self._guard.wait(watch, self._descriptor, self._asked, self._ended)

    def _descriptor(self) -> int | None:
        return None if self._asking is None else self._asking.fileno()

    def _fork_beside(self) -> None:
        """Fork a process of the child's group that waits for an order."""
        forked: list[int] = []

        def fork(run: Callable[[], NoReturn]) -> None:
            forked.append(os.fork())
            if forked[0] == 0:
                run()

        told = _standing(fork, lambda: bound(self._me, self._guard.child), self._warmth, child=False)
        self._waiting[forked[0]] = told

    def _asked(self) -> None:
        """Have the proof's process do what the child asks for."""
        assert self._asking is not None and self._order is not None
        message, descriptors = received(self._asking, 3)
        with closing(descriptors):
            if not message:
                self._asking.close()
                self._asking = None
                return
            if message != PROVE.encode() or len(descriptors) != 3 or self._beside:
                self._say(_REFUSED)
                return
            if not self._waiting:
                self._fork_beside()
            beside, told = self._waiting.popitem()
            self._beside.add(beside)
            with told, contextlib.suppress(OSError):  # it has died, which is told when it is reaped
                socket.send_fds(told, [replace(self._order, module=PROVE).message], descriptors)

    def _ended(self, pid: int, status: int) -> None:
        if pid in self._waiting:
            self._waiting.pop(pid).close()
        elif pid in self._beside:
            self._beside.discard(pid)
            self._say(status)

    def _say(self, status: int) -> None:
        if self._asking is not None:
            with contextlib.suppress(OSError):  # the child has gone, and this guard soon
                self._asking.send(status.to_bytes(STATUS_BYTES, "little"))


def _standing(
    fork: Callable[[Callable[[], NoReturn]], object], bind: Callable[[], None], warmth: Warmth, *, child: bool
) -> socket.socket:
    """Fork a process that waits for an order; returns the socket on which it gets it."""
    told, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def run() -> NoReturn:
        status = 1
        try:
            bind()
            os.dup2(theirs.fileno(), ASKING, inheritable=False)
            _close_all_but(ASKING)
            warmth.make_ready(child=child)
            status = _carry_out(socket.socket(fileno=ASKING), warmth, child=child)
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

    with theirs:
        fork(run)
    return told


def _close_all_but(descriptor: int) -> None:
    """Close all descriptors but the three streams and this one."""
    os.closerange(3, descriptor)
    os.closerange(descriptor + 1, os.sysconf("SC_OPEN_MAX"))


def _carry_out(told: socket.socket, warmth: Warmth, *, child: bool) -> int:
    """Wait for the order and run its module in this process; a child can then ask its guard for more."""
    inherited = max(0, _reserved() - _LIBRARIES)
    message, streams = received(told, 3)
    if len(streams) != 3:
        return 0  # the guard has ended
    with closing(streams):
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
    if child:
        sibling.attach(told)
    else:
        told.close()
    order = ChildOrder.read(message)
    limit(order.data_bytes and order.data_bytes + inherited)
    os.environ.update(order.environment)
    tempfile.tempdir = order.environment.get("TMPDIR")  # the nursery has looked already, and Python keeps the answer
    sys.argv = [order.module]
    warmth.use_threads(order.threads)
    status: int = importlib.import_module(order.module).main()
    return status


def _reserved() -> int:
    """Bytes of private memory that this process has reserved; nearly all of it the nursery's, whose pages it shares.

    With compiled code from the cache that is 340 MB, and twice that in a nursery that has had to compile it. What a
    child may add must not depend on that.
    """
    with open("/proc/self/status") as file:
        return next((int(line.split()[1]) << 10 for line in file if line.startswith("VmData:")), 0)
