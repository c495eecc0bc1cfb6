"""The five papers' systems, their figures and the leaderboard, on factorize's public door; outside the wheel."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
