"""The checker's power: twelve ways to spoil a file, every digest made right again, and none is accepted."""

from __future__ import annotations

import itertools
import json
import os

import checker_mutations
import numpy as np
import pytest
from checker_files import parts, random_result, rejected, sealed
from checker_mutations import MUTATIONS

from factorize.checker.check import check_factor_file

EACH = int(os.environ.get("SPOILT_FILES", "60"))  # of each kind
TRIALS = 25


@pytest.mark.parametrize("name", MUTATIONS)
def test_what_is_truly_wrong_is_rejected(name: str) -> None:
    """Ground truth by brute force at n <= 12; `SPOILT_FILES=1000` goes through 1,000 of each kind."""
    for case in itertools.islice(checker_mutations.spoilt(name, 0), EACH):
        assert rejected(case.data), case.reason


def test_what_is_true_is_accepted() -> None:
    for data in itertools.islice(checker_mutations.valid(0), EACH):
        report = check_factor_file(data)
        assert report.supported, report.failed


def test_a_flipped_bit_of_the_header_is_found_or_changes_nothing() -> None:
    rng = np.random.default_rng(3)
    for _ in range(TRIALS):
        manifest, tensors = parts(random_result(rng, "dense"))
        data = sealed(manifest, tensors)
        header = 8 + int.from_bytes(data[:8], "little")
        broken = bytearray(data)
        broken[int(rng.integers(header))] ^= 1 << int(rng.integers(8))
        if not rejected(bytes(broken)):
            kept = json.loads(json.loads(broken[8:header])["__metadata__"]["manifest"])
            assert kept["certificate"] == manifest["certificate"] and kept["spec"] == manifest["spec"]
