"""Pairs of blocks on two cores: products of matrices in numpy let go of the interpreter's lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

import numpy as np

Block = TypeVar("Block")
Found = TypeVar("Found")

LONGEST_IN_PAIRS = 4096


def in_pairs(step: Callable[[Block], Found], blocks: Iterable[Block], n: int) -> Iterator[tuple[Block, Found]]:
    """Yield blocks with what a step makes of each, in order; two at a time, each in a thread of its own.

    Each block goes the same way as alone, so that nothing of what is rounded changes. Products let go of the
    interpreter's lock, and take one thread each where BLAS has one. Blocks of longer rows go alone: BLAS has both cores
    there, and memory a limit.

    Args:
        step: what is made of a block.
        blocks: in order.
        n: length of the rows.
    """
    waiting = iter(blocks)

    def made(block: Block) -> Found:
        with np.errstate(all="ignore"):  # which threads do not take over
            return step(block)

    with ThreadPoolExecutor(2, "block") as pool:
        while some := list(islice(waiting, 2 if n <= LONGEST_IN_PAIRS else 1)):
            yield from zip(some, pool.map(made, some) if len(some) > 1 else map(made, some), strict=True)
