"""A sibling: a process beside a child, which shares nothing with it but the guard and the limits.

A child that the nursery has forked (nursery_process.py) asks its guard for one, and the guard forks it from what it
was before the child ran: imports are done and compiled code is loaded, and nothing that the child has done is in its
memory. Any other process starts a Python of its own. Both speak the child protocol (api/child_protocol.py).
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from factorize.api.isolated import child_command

ASKING = 3
"""Descriptor of a forked child on which it reaches its guard."""
MESSAGE_BYTES = 1 << 16
STATUS_BYTES = 4

_guard: socket.socket | None = None
_begun: dict[str, subprocess.Popen[str]] = {}


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that has ended.

    Attributes:
        returncode: exit status, or minus the number of the signal that killed it.
        stdout: what it has written there.
        stderr: likewise.
    """

    returncode: int
    stdout: str
    stderr: str


def attach(guard: socket.socket) -> None:
    """Take note that this process has been forked and has a guard that can be asked; called once, after the fork."""
    global _guard
    _guard = guard


def received(asking: socket.socket, most: int) -> tuple[bytes, list[int]]:
    """Wait for a message with so many descriptors at most; an empty one is the end."""
    message, descriptors, _, _ = socket.recv_fds(asking, MESSAGE_BYTES, most)
    return message, descriptors


@contextmanager
def closing(descriptors: Sequence[int]) -> Iterator[None]:
    """Close descriptors at the end of the block."""
    try:
        yield
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


@contextmanager
def begun(module: str) -> Iterator[None]:
    """Start a module's process ahead of its question, so that it imports while this process works on something else.

    It runs while the block does. Whoever asks for that module first within the block gets it.

    Args:
        module: see `child_command`.
    """
    if _guard is not None or module in _begun:  # a guard has everything imported
        yield
        return
    pipe = subprocess.PIPE
    with subprocess.Popen(child_command(module), stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        _begun[module] = process
        try:
            yield
        finally:
            _begun.pop(module, None)
            if process.poll() is None:
                process.kill()


def beside(module: str, line: str) -> Ended:
    """Run a module in a process of its own and wait for its end.

    Args:
        module: see `child_command`; a guard forks the proof only.
        line: what it reads from stdin.
    """
    if module in _begun:
        process = _begun.pop(module)
        out, err = process.communicate(line)
        return Ended(process.returncode, out, err)
    if _guard is None:
        done = subprocess.run(child_command(module), input=line, capture_output=True, text=True)
        return Ended(done.returncode, done.stdout, done.stderr)
    streams = [os.memfd_create(name) for name in ("stdin", "stdout", "stderr")]
    try:
        os.pwrite(streams[0], line.encode(), 0)
        socket.send_fds(_guard, [module.encode()], streams)
        status = int.from_bytes(_guard.recv(STATUS_BYTES), "little")
        out, err = (_read(stream) for stream in streams[1:])
        return Ended(os.waitstatus_to_exitcode(status), out, err)
    finally:
        for stream in streams:
            os.close(stream)


def _read(stream: int) -> str:
    return os.pread(stream, os.fstat(stream).st_size, 0).decode(errors="replace")
