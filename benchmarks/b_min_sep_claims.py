"""Claims about b-min-sep sampling beside a second accountant: how many are too small, and how far above it they are.

For random banded C, probabilities and privacies a claim is made, and the accountant of tests/support, which shares no
code with the product, estimates delta at the claimed sigma and at a sigma 2 % smaller. Run as

    PYTHONPATH=tests/support python benchmarks/b_min_sep_claims.py [CLAIMS]
"""

from __future__ import annotations

import sys
import time

import numpy as np
from min_sep_accountant import deltas
from specs import claimed, spec_of

from factorize.accounting import calibrate_sampling
from factorize.privacy import PrivacyTarget
from factorize.structures.banded import BandedMatrix

DRAWS = 60_000
SIGMA_RATIO = 1.02


def main(claims: int) -> None:
    """Print a line for each claim, and the numbers of those that are too small, or more than 2 % too large."""
    rng = np.random.default_rng(1)
    small = large = 0
    for number in range(claims):
        n, bands = int(rng.integers(16, 49)), int(rng.integers(2, 7))
        rows = np.zeros((bands, n))
        for d in range(bands):
            rows[d, : n - d] = rng.normal(size=n - d) * 0.6**d if d else 1 + rng.random(n)
        spec = spec_of(n, {"kind": "banded", "bands": bands}, {"kind": "min_sep", "min_sep": bands})
        made = claimed(spec, BandedMatrix(rows))
        epsilon, delta = float(rng.uniform(1, 6)), float(10 ** rng.uniform(-5, -3))
        size, batch = 1000, int(rng.integers(20, 1000 // bands // 2))
        target, started = PrivacyTarget(epsilon=epsilon, delta=delta), time.process_time()
        held = calibrate_sampling(made, target, sampling="b_min_sep", dataset_size=size, batch_size=batch)
        seconds, chance = time.process_time() - started, held.sampling_probability
        both = deltas(np.asarray(made.C), bands, chance, held.sigma_of_sums, epsilon, DRAWS, number)
        less = deltas(np.asarray(made.C), bands, chance, held.sigma_of_sums / SIGMA_RATIO, epsilon, DRAWS, number)[0]
        worst = max(both, key=lambda found: found.delta)
        small += worst.delta - 4 * worst.error > delta
        large += less.delta + 4 * less.error < delta
        print(
            f"{number}: n={n} bands={bands} p={chance:.3f} ({epsilon:.2f}, {delta:.1e}) {held.method}: "
            f"{worst.delta / delta:.3f} +- {worst.error / delta:.3f} of delta, {less.delta / delta:.3f} at 2 % less, "
            f"{seconds:.1f} s",
            flush=True,
        )
    print(f"{claims} claims: {small} too small, {large} more than 2 % of sigma too large")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
