"""Pages of memory that a forked process is about to write to, copied ahead of its work.

A fork shares the pages of whoever forked it, and the kernel copies each when it is first written to. A small solve
writes to some 2,000 pages, nearly the same ones each time: in Python a count of references is a write. Which they are
is seen once, from a fork that does such work (`written`); every later fork has them copied while it waits for an order
(`copy_ahead`), in a few calls in place of 2,000 interruptions. Where the kernel does not tell, nothing is copied ahead.

Sources: proc_pid_pagemap(5), bits 56 and 63; madvise(2), MADV_POPULATE_WRITE (Linux 5.14).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn

import numpy as np

from factorize.api.processes.reaper import bound

Range = tuple[int, int]
"""Address of the first byte, and how many bytes: whole pages."""

_POPULATE_WRITE = 23
_PRESENT, _FILE, _EXCLUSIVE = (np.uint64(1 << bit) for bit in (63, 61, 56))


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
    with open("/proc/self/maps") as maps, open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        for line in maps:
            addresses, access = line.split()[:2]
            if access == "rw-p":
                start, end = (int(part, 16) for part in addresses.split("-"))
                pagemap.seek(start // mmap.PAGESIZE * 8)
                flags = np.frombuffer(pagemap.read((end - start) // mmap.PAGESIZE * 8), dtype=np.uint64)
                own = (flags & (_PRESENT | _FILE | _EXCLUSIVE)) == (_PRESENT | _EXCLUSIVE)
                edges = np.flatnonzero(np.diff(own, prepend=False, append=False)).reshape(-1, 2)
                found += [
                    (start + int(first) * mmap.PAGESIZE, int(last - first) * mmap.PAGESIZE) for first, last in edges
                ]
    return found


def copy_ahead(ranges: Sequence[Range]) -> None:
    """Have pages copied that this process, a fork, shares with others; what is in them does not change."""
    if not ranges:
        return
    advise = ctypes.CDLL(None, use_errno=True).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for address, size in ranges:
        if advise(address, size, _POPULATE_WRITE) and ctypes.get_errno() == errno.EINVAL:
            return  # an older kernel; any other error is of this range alone, which the work had asked for itself
