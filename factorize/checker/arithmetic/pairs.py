"""Pairs of blocks on two cores: products of matrices in numpy let go of the interpreter's lock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np

Block = TypeVar("Block")
Found = TypeVar("Found")

SHORTEST_IN_PAIRS, LONGEST_IN_PAIRS = 257, 4096
_COMING = 3


def in_pairs(step: Callable[[Block], Found], blocks: Iterable[Block], n: int) -> Iterator[tuple[Block, Found]]:
    """Yield blocks with what a step makes of each, in order; two at a time, each in a thread of its own.

    Each block goes the same way as alone, so that nothing of what is rounded changes. Products let go of the
    interpreter's lock, and take one thread each where BLAS has one. One block more waits for a thread, while what came
    of another is looked at. Blocks of longer rows go alone: BLAS has both cores there, and memory a limit. Those of
    shorter ones are made sooner than a thread starts.

    Args:
        step: what is made of a block.
        blocks: in order.
        n: length of the rows.
    """

    def made(block: Block) -> Found:
        with np.errstate(all="ignore"):  # which threads do not take over
            return step(block)

    if not SHORTEST_IN_PAIRS <= n <= LONGEST_IN_PAIRS:
        yield from ((block, made(block)) for block in blocks)
        return
    with ThreadPoolExecutor(2, "block") as pool:
        coming: deque[tuple[Block, Future[Found]]] = deque()
        for block in blocks:
            coming.append((block, pool.submit(made, block)))
            if len(coming) == _COMING:
                first, found = coming.popleft()
                yield first, found.result()
        for first, found in coming:
            yield first, found.result()
