"""Tests of the adapters against the real libraries; collected by `make test-frameworks` alone."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "support"), str(TESTS / "factorize" / "client")]  # the cases of the other tests
