"""Owners of jobs: the names by which engines know each other.

A job of another engine is taken up when its lease in the ledger has run out, or at once where the engine's process was
one of this machine and is gone.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from contextlib import suppress
from pathlib import Path

from factorize.encoding import sha256

_CLOCK_SECONDS = 5.0
"""That a machine's clock may have been set by since an engine was named."""


def new_owner() -> str:
    """Return a name for an engine of this process: machine, boot, namespace; its number and start; and chance."""
    return " ".join([*_here(), str(os.getpid()), f"{time.time():.0f}", secrets.token_hex(4)])


def has_ended(owner: str) -> bool:
    """Say whether an engine's process was one of this machine and is gone; another may have its number now."""
    import psutil

    parts = owner.split()
    if parts[:3] != _here():
        return False
    try:
        process = psutil.Process(int(parts[3]))
        return process.status() == psutil.STATUS_ZOMBIE or process.create_time() >= float(parts[4]) + _CLOCK_SECONDS
    except psutil.NoSuchProcess:
        return True


def has_fallen(owner: str) -> bool:
    """Say whether an engine's machine was this one, before it was started anew."""
    parts, here = owner.split(), _here()
    return parts[:1] == here[:1] and parts[1:2] != here[1:2]


def _here() -> list[str]:
    """Return in short what processes share whose numbers mean the same: machine, boot, namespace."""
    parts = [socket.gethostname(), "", ""]
    with suppress(OSError):  # Linux only
        parts[1:] = Path("/proc/sys/kernel/random/boot_id").read_text(), os.readlink("/proc/self/ns/pid")
    return [sha256(part.encode())[:8] for part in parts]
