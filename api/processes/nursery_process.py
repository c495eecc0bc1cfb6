"""The nursery's process: everything imported, compiled code loaded, one thread, so that forking it is sound.

`nursery.py` starts it with a socket as its stdin and asks it for children, one message each: the order as JSON, with
the descriptors of stdin, stdout, stderr and the supervisor's socket. A family (family.py) carries it out, which keeps
no descriptor of the nursery's. Between two messages the nursery loads compiled code (warming.py). Whoever asks early
waits for what every child needs, a second, or else for one piece. Once everything is loaded, the nursery has the next
family forked before it is asked for, and a byte on its stdout says so.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress

from factorize.api.isolated import SELDOM
from factorize.api.processes.family import ChildFamily
from factorize.api.processes.sibling import closing, received
from factorize.api.processes.warming import Warmth, one_thread


def main() -> int:
    """Have children forked on request until nobody can ask any more."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps guards; supervisors learn of their end elsewhere
    gc.set_threshold(*SELDOM)
    with socket.socket(fileno=os.dup(0)) as asking:
        os.set_inheritable(0, False)
        warmth, told = Warmth(), False
        ready: ChildFamily | None = None
        while True:
            while (not (asked := bool(select.select([asking], [], [], 0)[0])) or warmth.needed) and warmth.next():
                pass
            if not asked and not told:
                told = True
                with suppress(OSError):  # nobody listens any more
                    os.write(1, b"\n")
            if not asked and ready is None and one_thread():
                ready = ChildFamily(warmth)
            message, descriptors = received(asking, 4)
            if not message:
                if ready is not None:
                    ready.end()
                return 0
            with closing(descriptors):
                _answer(asking, message, descriptors, warmth, ready)
            ready = None


def _answer(
    asking: socket.socket, message: bytes, descriptors: list[int], warmth: Warmth, ready: ChildFamily | None
) -> None:
    """Give a family its order, and send its guard's number with a descriptor of it; the reason where there is none."""
    if ready is not None and not ready.living:
        ready.close()
        ready = None
    if ready is None and not one_thread():
        asking.sendall(json.dumps({"refused": "a library has started threads"}).encode())
        return
    family = ready or ChildFamily(warmth)
    family.order(message, descriptors)
    answer = json.dumps({"pid": family.pid}).encode()
    if family.handle is None:
        asking.sendall(answer)
    else:
        socket.send_fds(asking, [answer], [family.handle])
    family.close()


if __name__ == "__main__":
    sys.exit(main())
