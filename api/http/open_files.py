"""The limit of open files of this process: raised where a service may have more connections than it is born with."""

from __future__ import annotations

import logging
import resource

SPARE = 512
"""Files, database connections and pipes to children, beside the connections of clients."""
_log = logging.getLogger(__name__)


def allow_connections(count: int) -> int:
    """Raise the limit so that so many connections fit, as far as the system lets this process; never lower it.

    Returns:
        The limit, in open files. Where it holds fewer connections, the log says so.
    """
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + SPARE
    if now != resource.RLIM_INFINITY and now < wanted:
        now = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (now, most))
        except (ValueError, OSError):  # macOS has a smaller limit than it says
            now = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if now != resource.RLIM_INFINITY and now < wanted:
        _log.warning(
            "this process may have %d files open, too few for %d connections; raise `ulimit -n`",
            now,
            count,
        )
    return now
