"""No row of noise twice: generators are not copied, one of each noise is alive, and a fork of the process has none."""

from __future__ import annotations

import copy
import os
import pickle
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from structure_cases import strategies

from factorize.accounting.amplification import AmplifiedCalibration
from factorize.client import NoiseGenerator, even_shard
from factorize.errors import InvalidParameter
from factorize.factors.sensitivity import Sensitivity
from factorize.noise.regions import Region
from factorize.noise.single_use import NoiseUse
from factorize.noise.source import noise_source
from factorize.privacy import PrivacyTarget, calibrate
from factorize.training.bins_audit import BinsAuditor
from factorize.training.orders import balls_in_bins
from factorize.training.sampling import CyclicPoisson

pytestmark = pytest.mark.single_use
N, SIZE, SEED = 20, 10, 2**100 + 3
UNIT = Sensitivity(1.0, "exact", "by hand", {"kind": "min_sep", "min_sep": 2})
KEY = bytes(range(7, 39))
COPIES: list[Callable[[Any], Any]] = [
    copy.copy,
    copy.deepcopy,
    pickle.dumps,
    lambda held: pickle.dumps({"all": [held]}),
]


def generator(name: str = "blt", shape: Any = SIZE, **options: Any) -> NoiseGenerator:
    strategy = strategies()[name]
    source = noise_source(strategy.structure, strategy.tensors(), N, name)
    return NoiseGenerator(source, calibrate(UNIT, PrivacyTarget(mu=1.0)), shape, **{"seed": SEED, **options})


def sampled() -> CyclicPoisson:
    law = {"sampling_probability": 0.1, "groups": 2, "dataset_size": 40, "batch_size": 2}
    made = object.__new__(AmplifiedCalibration)
    for name, value in {**law, "sensitivity": UNIT}.items():
        object.__setattr__(made, name, value)
    return CyclicPoisson(40, made, steps=N, seed=SEED)


@pytest.mark.parametrize("make_copy", COPIES)
@pytest.mark.parametrize(
    "make",
    [
        generator,
        lambda: generator("dense", generator="shake128"),
        lambda: generator()._normals,
        sampled,
        lambda: balls_in_bins(12, 3, 2, KEY),
        lambda: BinsAuditor.of(balls_in_bins(12, 3, 2, KEY)),
    ],
)
def test_what_holds_a_key_is_not_copied_and_does_not_show_it(make: Callable[[], Any], make_copy: Any) -> None:
    made = make()
    with pytest.raises(InvalidParameter, match=r"a \w+ cannot be copied, since the copy would show its key"):
        make_copy(made)
    assert str(SEED) not in repr(made) and KEY.hex() not in repr(made)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {}),
        ({}, {"shape": (SIZE // 2, 2)}),
        ({}, {"shape": 2 * SIZE}),  # the other half of a model
        ({}, {"shard": (3, 4)}),
        ({"shard": (0, 5)}, {"shard": (4, SIZE)}),
        ({"shard": Region.of([(0, 2), (6, 8)])}, {"shard": Region.of([(2, 6), (7, 9)])}),
    ],
)
def test_a_second_generator_of_one_noise_is_refused_while_the_first_is_alive(first: Any, second: Any) -> None:
    one = generator(**first)
    row = one.next()
    with pytest.raises(InvalidParameter, match=r"open in this process, at step 1.*close\(\).*another seed"):
        generator(**second)
    for other in ({"seed": SEED + 1}, {"generator": "shake128"}, {"name": "tree"}):
        generator(**{**second, **other})
    one.close()
    again = generator(**first)
    assert np.array_equal(again.next(), row)
    with pytest.raises(InvalidParameter, match="is open in this process"):
        one.next()
    del again
    assert not np.array_equal(one.next(), row)


def test_a_cell_that_runs_again_is_refused_and_its_names_are_kept() -> None:
    cell = "noise = generator()\nnoise.skip(2)"
    names: dict[str, Any] = {"generator": generator}
    exec(cell, names)
    with pytest.raises(InvalidParameter, match="open in this process"):
        exec(cell, names)
    assert names["noise"].step == 2
    del names["noise"]
    exec(cell, names)


def test_shards_of_one_layout_are_used_side_by_side_and_restarts_go_on() -> None:
    whole = generator()
    rows = np.array(list(whole))
    whole.close()
    shards = [generator(shard=even_shard(SIZE, rank, 3)) for rank in range(3)]
    begun = [[shard.next() for _ in range(4)] for shard in shards]
    states = [shard.state_dict() for shard in shards]
    for shard in shards:
        shard.next()  # of a step that nobody saw
        shard.close()
    resumed = [generator(shard=even_shard(SIZE, rank, 3)) for rank in range(3)]
    for shard, state in zip(resumed, states, strict=True):
        shard.load_state_dict(state)
    parts = [np.array([*rows, *shard]) for rows, shard in zip(begun, resumed, strict=True)]
    assert np.array_equal(np.concatenate(parts, axis=1), rows)


def test_rows_stay_used_when_their_generator_is_gone() -> None:
    """As in the trials of a search that calls one function with one seed; another seed, or a later state, goes on."""

    def trial(steps: int, **options: Any) -> Any:
        noise = generator(**options)
        for _ in range(steps):
            noise.next()
        return noise.state_dict()

    trial(0)
    early, late = trial(2, shard=(0, 5)), trial(2, shard=(5, SIZE))
    for shard in (None, (0, 5), (4, 6)):
        with pytest.raises(InvalidParameter, match=r"steps up to 1 was used before.*its own seed.*close\(\)"):
            trial(1, shard=shard)
    trial(1, seed=SEED + 1)
    resumed = generator(shard=(5, SIZE))
    resumed.load_state_dict(late)
    resumed.next()
    del resumed
    again = generator(shard=(5, SIZE))
    with pytest.raises(InvalidParameter, match="steps 2 to 2 have used their noise"):
        again.load_state_dict(late)
    again.close()  # nobody has seen step 2
    again.load_state_dict(late)
    again.next()
    fresh = generator(shard=(0, 5))
    with pytest.raises(InvalidParameter, match="used before"):
        fresh.next()
    fresh.load_state_dict(early)
    fresh.next()


def test_one_of_two_threads_gets_a_row() -> None:
    """As of a server that answers two requests at once: each would release another sum with one row."""
    use, both, found = NoiseUse("of two threads"), threading.Barrier(2), []

    class Meeting(dict[int, int]):
        def get(self, *given: Any) -> Any:
            known = super().get(*given)
            with suppress(threading.BrokenBarrierError):
                both.wait(0.3)
            return known

    def take() -> None:
        try:
            use.take(0)
            found.append("a row")
        except InvalidParameter as reason:
            found.append(str(reason)[:40])

    use._next = Meeting()
    threads = [threading.Thread(target=take) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == ["a row", "the noise of steps up to 0 was used befo"]


@pytest.mark.parametrize("threads", [1, 3])
def test_a_fork_makes_no_noise(threads: int) -> None:
    """Neither the generator that it inherits, nor another one of the same noise."""
    made = generator(shape=200_000, threads=threads)
    made.next()
    child = os.fork()
    if not child:
        refused = 0
        for call in (made.next, lambda: generator(shape=200_000)):
            try:
                call()
            except InvalidParameter as reason:
                refused += "fork of it" in str(reason) or "open in this process" in str(reason)
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert made.next().shape == (200_000,)
