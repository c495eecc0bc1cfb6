"""Clients that other projects' generators make of the OpenAPI document; collected by `make test-clients` alone."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
