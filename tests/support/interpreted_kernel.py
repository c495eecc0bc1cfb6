"""The one-pass kernel in Triton's interpreter, which needs no GPU and has to be asked for before Triton is imported.

Prints, for each strategy, how far C x is from the normals in float64 that numpy draws: max |C x - z|.
"""

from __future__ import annotations

import json
import os

if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
from structure_cases import strategies

from factorize.adapters.fused.counted_normals import counted_key, counted_normals
from factorize.adapters.fused.fused_engine import FusedStreaming
from factorize.client.noise_source import Streamable, noise_source
from factorize.client.regions import Region
from factorize.structures.banded import BandedMatrix
from factorize.structures.base import Matrix

SIZE = 1500
REGION = Region.of([(100, 1030), (1040, SIZE)])


def dozen(n: int) -> BandedMatrix:
    """More states than a kernel keeps at once."""
    width = min(12, n)
    bands = np.abs(np.random.default_rng(1).standard_normal((width, n))) * 0.05
    bands[0] = 1.0
    for d in range(1, width):
        bands[d, n - d :] = 0
    return BandedMatrix(bands)


def distance(strategy: Matrix) -> float | None:
    """Return max |C x - z|, None where there is no recurrence."""
    source = noise_source(strategy.structure, strategy.tensors(), strategy.n, "x")
    if not isinstance(source, Streamable):
        return None
    key = counted_key(7, "x")
    engine = FusedStreaming(source.recurrence(), key, 1.0, REGION, torch.device("cpu"))
    rows = []
    for step in range(strategy.n):
        out = torch.full((REGION.size,), torch.nan)
        engine.step(step, out)
        rows.append(out.double().numpy())
    z = np.array([np.concatenate([counted_normals(key, t, s) for s in range(2)]) for t in range(strategy.n)])
    return float(np.abs(strategy.dense() @ np.array(rows) - z[:, REGION.positions()]).max())


if __name__ == "__main__":
    made = {name: distance(strategy) for name, strategy in {**strategies(5), "a dozen diagonals": dozen(14)}.items()}
    print(json.dumps(made))
