"""Regions: runs of a flattened vector beside the indices that numpy gives, and noise on them beside the whole noise."""

from __future__ import annotations

import numpy as np
import pytest
from structure_cases import strategies

from factorize.errors import InvalidParameter
from factorize.factors.sensitivity import Sensitivity
from factorize.noise.generator import NoiseGenerator
from factorize.noise.normals import BLOCK
from factorize.noise.regions import Region
from factorize.noise.source import noise_source
from factorize.privacy import PrivacyTarget, calibrate

CALIBRATION = calibrate(Sensitivity(1.0, "exact", "by hand", {"kind": "single"}), PrivacyTarget(mu=1.0))
SHAPE = (7, 300, 90)
CASES = {
    "rows": (range(2, 5), range(300), range(90)),
    "columns": (range(7), range(300), range(30, 61)),
    "the middle": (range(7), range(3, 9), range(90)),
    "one of each": (range(1, 2), range(2, 3), range(3, 4)),
    "every second row": (range(0, 7, 2), range(300), range(90)),
    "two sides": (range(3, 7), range(100, 250), range(0, 45)),
    "nothing": (range(0), range(300), range(90)),
}


def positions(region: Region) -> np.ndarray:
    """Every entry's place in the flattened vector."""
    runs = [np.arange(start, stop) for start, stop in zip(region.starts, region.stops, strict=True)]
    return np.concatenate([*runs, np.empty(0, dtype=np.int64)])


def kept(name: str) -> list[np.ndarray]:
    return [np.array(each, dtype=np.int64) for each in CASES[name]]


@pytest.mark.parametrize("name", CASES)
class TestSlices:
    def test_are_numpys(self, name):
        every = np.arange(int(np.prod(SHAPE))).reshape(SHAPE)[np.ix_(*kept(name))].reshape(-1)
        region = Region.of_slices(11, SHAPE, kept(name))
        assert np.array_equal(positions(region), every + 11)
        assert np.array_equal(positions(Region.of_slices(11, SHAPE, CASES[name])), every + 11)
        assert region.size == len(every)

    def test_parts_of_blocks_hold_every_entry_once(self, name):
        region = Region.of_slices(11, SHAPE, kept(name))
        found = np.full(region.size, -1)
        for part in region.parts(1000):
            inside = np.arange(1000)[part.inside]
            assert part.width == len(inside) and part.last == inside[-1] + 1
            found[part.at] = part.block * 1000 + inside
        assert np.array_equal(found, positions(region))


@pytest.mark.parametrize("name", ["buffered", "redrawn", "dense", "tree"])
@pytest.mark.parametrize("generator", ["sfc64", "shake128"])
def test_noise_of_a_region_has_the_bits_of_the_whole(name, generator):
    strategy = strategies(6)[name]
    size = BLOCK + 5000
    columns = Region.of_slices(100, (2, 9), [np.arange(2), np.arange(3, 7)])
    region = Region.together([columns, Region.of([(BLOCK - 100, BLOCK + 50), (BLOCK + 60, BLOCK + 61)])])
    source = noise_source(strategy.structure, strategy.tensors(), 6, "digest")
    whole = NoiseGenerator(source, CALIBRATION, size, seed=5 << 64, generator=generator)
    part = NoiseGenerator(source, CALIBRATION, size, seed=5 << 64, generator=generator, shard=region, memory_bytes=1)
    again = NoiseGenerator(source, CALIBRATION, size, seed=5 << 64, generator=generator, shard=region, threads=2)
    for step in range(6):
        expected = whole.next()[positions(region)]
        assert np.array_equal(part.next(), expected)
        if step == 3:
            again.load_state_dict(part.state_dict())
        if step > 3:
            assert np.array_equal(again.next(), expected)


def test_a_worker_may_hold_nothing():
    strategy = strategies(6)["blt"]
    source = noise_source(strategy.structure, strategy.tensors(), 6, "digest")
    noise = NoiseGenerator(source, CALIBRATION, 5, seed=5 << 64, shard=Region.of([(2, 2)]), threads=3)
    assert noise.next().shape == (0,)


def test_refuses_runs_that_overlap_and_entries_that_are_not_there():
    for runs in ([(0, 5), (4, 6)], [(5, 6), (0, 2)], [(-1, 3)], [(3, 2)]):
        with pytest.raises(InvalidParameter, match="sort"):
            Region.of(runs)
    strategy = strategies(6)["blt"]
    source = noise_source(strategy.structure, strategy.tensors(), 6, "digest")
    with pytest.raises(InvalidParameter, match="entry 5, and the noise has entries 0 to 4"):
        NoiseGenerator(source, CALIBRATION, 5, seed=5 << 64, shard=Region.of([(2, 6)]))


def test_what_a_checkpoint_knows_it_by():
    assert Region.of([(2, 4), (4, 9)]).document() == [2, 9]
    one, other = (Region.of([(0, 4), (last, 12)]).document() for last in (6, 7))
    assert one != other and one["runs"] == 2
