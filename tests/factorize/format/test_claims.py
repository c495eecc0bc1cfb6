"""Factors are one noun: in memory and in a file they answer the same questions alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from golden.make import HERE

from factorize.client import HeldFactors, NoiseGenerator, load
from factorize.errors import CorruptObject, InvalidParameter, UnsupportedProblem
from factorize.factors import Factors
from factorize.factors.factor_file import load as load_whole
from factorize.format.claims import Sensitivity, differing
from factorize.format.manifest import Manifest, certified
from factorize.noise.source import source_of
from factorize.privacy import PrivacyTarget, calibrate, check_own

FILES = sorted(HERE.glob("*/*.safetensors"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_file_and_what_was_loaded_from_it_are_the_same_and_make_the_same_noise(path: Path) -> None:
    light, whole = load(path), load_whole(path)
    assert isinstance(light, Factors) and isinstance(whole, Factors)
    for name in ("digest", "steps", "structure"):
        assert getattr(light, name) == getattr(whole, name), name
    assert differing(light.sensitivity, whole.sensitivity) is None
    parts, stored = light.strategy_tensors(), whole.strategy_tensors()
    assert set(stored) <= set(parts)
    for suffix, array in stored.items():
        assert array.dtype == parts[suffix].dtype == np.float64 and np.array_equal(array, parts[suffix])
    assert whole.opened() is whole and light.opened().digest == whole.digest
    if whole.structure != "nu_toeplitz":
        assert noise_of(light) == noise_of(whole)
        return
    for endless in (light, whole):
        with pytest.raises(UnsupportedProblem, match="needs the noise of all earlier steps"):
            noise_of(endless)


def noise_of(factors: Factors) -> bytes:
    scale = calibrate(factors.sensitivity, PrivacyTarget(mu=1.0))
    check_own(scale, factors)
    source = source_of(factors)
    assert source_of(factors) is source  # made once
    noise = NoiseGenerator(source, scale, 5, seed=3 << 64)
    return b"".join(noise.next().tobytes() for _ in range(3))


def test_something_else_is_no_factorization() -> None:
    with pytest.raises(InvalidParameter, match="this dict is not a factorization; pass what load or solve returned"):
        certified({"digest": "0" * 64})


def test_factors_of_a_manifest_without_a_claim_are_refused() -> None:
    """Which claims are none stands in test_description.py."""
    manifest = load(FILES[0]).manifest
    stated = manifest["certificate"]["sensitivity"] | {"participation": {"kind": "min_sep", "min_sep": 2}}
    forged = Manifest(manifest, certificate=manifest.certificate | {"sensitivity": stated})
    for read in (Sensitivity.of, HeldFactors):
        with pytest.raises(CorruptObject, match="do not use it"):
            read(forged)
        with pytest.raises(CorruptObject, match="does not state a sensitivity"):
            read(Manifest(manifest, certificate={}))
