"""A sibling: a process beside a child, which shares nothing with it but the guard and the limits.

A child that the nursery has forked (nursery_process.py) asks its guard for one, and the guard forks it from what it
was before the child ran: imports are done and compiled code is loaded, and nothing that the child has done is in its
memory. Any other process starts a Python of its own. Both speak the child protocol (api/child_protocol.py), and are
over for whoever asks once they have said their last word: what they have mapped is given back beside its next step.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO

from factorize.api.child_protocol import last_word
from factorize.api.isolated import child_command

ASKING = 3
"""Descriptor of a forked child on which it reaches its guard."""
MESSAGE_BYTES = 1 << 16
STATUS_BYTES = 4

_guard: socket.socket | None = None
_owing = False
"""Whether the guard has still to tell the end of a process whose last word was enough."""
_begun: dict[str, tuple[subprocess.Popen[bytes], IO[bytes]]] = {}


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that has ended, or has said its last word and is about to.

    Attributes:
        returncode: exit status, or minus the number of the signal that killed it; of a last word, the status that the
            child protocol gives it.
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
    try:
        message, descriptors, _, _ = socket.recv_fds(asking, MESSAGE_BYTES, most)
    except ConnectionResetError:  # the other side has ended, and left something unread
        return b"", []
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
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(child_command(module), stdin=pipe, stdout=pipe, stderr=errors) as process,
    ):
        _begun[module] = process, errors
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
        return _answer(*_begun.pop(module), line)
    if _guard is None:
        done = subprocess.run(child_command(module), input=line, capture_output=True, text=True)
        return Ended(done.returncode, done.stdout, done.stderr)
    return _ask(_guard, module, line)


def _answer(process: subprocess.Popen[bytes], errors: IO[bytes], line: str) -> Ended:
    """Have a process that was started ahead answer."""
    assert process.stdin is not None and process.stdout is not None
    with suppress(BrokenPipeError), process.stdin as stdin:  # it has died
        stdin.write(line.encode())
    out, status = _words(process.stdout.fileno())
    return Ended(process.wait() if status is None else status, out, _read(errors.fileno()))


def _ask(guard: socket.socket, module: str, line: str) -> Ended:
    """Have the guard fork a process that answers."""
    global _owing
    if _owing:
        guard.recv(STATUS_BYTES)
        _owing = False
    asked, errors = (os.memfd_create(name) for name in ("stdin", "stderr"))
    reading, writing = os.pipe()
    with closing([asked, errors, reading]):
        os.pwrite(asked, line.encode(), 0)
        with closing([writing]):
            socket.send_fds(guard, [module.encode()], [asked, writing, errors])
        _owing = True
        out, status = _words(reading)
        if status is None:
            status = os.waitstatus_to_exitcode(int.from_bytes(guard.recv(STATUS_BYTES), "little"))
            _owing = False
        return Ended(status, out, _read(errors))


def _words(stream: int) -> tuple[str, int | None]:
    """Return what a process says until its last word, with the status of that, or until its end, with None."""
    said = b""
    while more := os.read(stream, MESSAGE_BYTES):
        said += more
        end = last_word(said.decode(errors="replace")) if said.endswith(b"\n") else None
        if end is not None:
            return said.decode(errors="replace"), int(end["event"] != "done")
    return said.decode(errors="replace"), None


def _read(stream: int) -> str:
    return os.pread(stream, os.fstat(stream).st_size, 0).decode(errors="replace")
