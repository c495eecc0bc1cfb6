"""Pages of memory that forked processes share: in large ones, and copied ahead of the work that writes to them.

A fork gets a table of all pages of whoever forked it, and gives it back at its end; with 140 MB in pages of 4 KiB, that
is as much work as a fifth of a small solve. `gather` puts them into pages of 2 MiB, each of which is one entry.

What a fork writes to is still copied in pages of 4 KiB, each when it is first written to. A small solve
writes to some 2,000 pages, nearly the same ones each time: in Python a count of references is a write. Which they are
is seen once, from a fork that does such work (`written`); every later fork has them copied while it waits for an order
(`copy_ahead`), in a few calls in place of 2,000 interruptions. Where the kernel does not tell, nothing is copied ahead.

Sources: proc_pid_pagemap(5), bits 56 and 63; madvise(2), MADV_POPULATE_WRITE (Linux 5.14), MADV_COLLAPSE (Linux 6.1).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NoReturn

import numpy as np

from factorize.api.processes.reaper import bound

Range = tuple[int, int]
"""Address of the first byte, and how many bytes: whole pages."""

_POPULATE_WRITE, _COLLAPSE = 23, 25
_LARGE = 2 << 20
_PRESENT, _FILE, _EXCLUSIVE = (np.uint64(1 << bit) for bit in (63, 61, 56))


def gather() -> None:
    """Have what this process has written put into large pages, where the kernel has them; what is in them stays."""
    advise = _advice()
    for start, end in list(_own_ranges()):
        for address in range(-(-start // _LARGE) * _LARGE, end - _LARGE + 1, _LARGE):
            advise(address, _LARGE, _COLLAPSE)  # refused for one that is empty; where it is refused, nothing is lost


def written(work: Callable[[], object]) -> list[Range]:
    """Return the pages that a fork of this process has written to once it has done some work; none where that fails."""
    reading, writing = os.pipe()
    me = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _tell(writing, me, work)
    os.close(writing)
    with open(reading, "rb") as stream:
        told = np.frombuffer(stream.read(), dtype=np.int64)
    with suppress(ChildProcessError):  # the kernel reaps the children of a nursery
        os.waitpid(pid, 0)
    return [(int(address), int(size)) for address, size in told[: len(told) // 2 * 2].reshape(-1, 2)]


def _tell(writing: int, parent: int, work: Callable[[], object]) -> NoReturn:
    try:
        bound(parent)
        work()
        with open(writing, "wb") as stream:
            stream.write(np.array(_own_pages(), dtype=np.int64).tobytes())
    finally:
        os._exit(0)


def _own_pages() -> list[Range]:
    """Return the written pages that this process shares with nobody."""
    found: list[Range] = []
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        for start, end in _own_ranges():
            pagemap.seek(start // mmap.PAGESIZE * 8)
            flags = np.frombuffer(pagemap.read((end - start) // mmap.PAGESIZE * 8), dtype=np.uint64)
            own = (flags & (_PRESENT | _FILE | _EXCLUSIVE)) == (_PRESENT | _EXCLUSIVE)
            edges = np.flatnonzero(np.diff(own, prepend=False, append=False)).reshape(-1, 2)
            found += [(start + int(first) * mmap.PAGESIZE, int(last - first) * mmap.PAGESIZE) for first, last in edges]
    return found


def _own_ranges() -> Iterator[Range]:
    """Give the first address of each range that this process may write to and shares with no file, and its end."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            addresses, access = line.split()[:2]
            if access == "rw-p":
                start, end = addresses.split("-")
                yield int(start, 16), int(end, 16)


def copy_ahead(ranges: Sequence[Range]) -> None:
    """Have pages copied that this process, a fork, shares with others; what is in them does not change."""
    if not ranges:
        return
    advise = _advice()
    for address, size in ranges:
        if advise(address, size, _POPULATE_WRITE) and ctypes.get_errno() == errno.EINVAL:
            return  # an older kernel; any other error is of this range alone, which the work had asked for itself


def _advice() -> Callable[[int, int, int], int]:
    """Return madvise(2), which says 0 where the kernel has done it."""
    advise = ctypes.CDLL(None, use_errno=True).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return advise
