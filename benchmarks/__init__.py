"""Benchmarks and soaks, each a command of its own; they use the cases and servers of the tests (tests/support)."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
