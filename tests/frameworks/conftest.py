"""Tests of the adapters against the real libraries; collected by `make test-frameworks` alone."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the cases of the other tests
