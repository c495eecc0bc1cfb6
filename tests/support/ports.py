"""Ports for servers that are told where to listen: below those that kernels give to connections (32768 on Linux, 49152
on macOS), one of which may take a port 0 that was closed again before the server has it.
"""

from __future__ import annotations

import itertools
import random
import socket

_LOWEST, _COUNT = 12_000, 20_000
_CANDIDATES = itertools.count(random.SystemRandom().randrange(_COUNT))  # other processes begin elsewhere


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on now; this process is not given one again."""
    return list(itertools.islice(filter(_is_free, (_LOWEST + one % _COUNT for one in _CANDIDATES)), count))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
