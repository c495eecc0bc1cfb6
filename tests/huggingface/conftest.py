"""Tests against Hugging Face's transformers and peft; collected by `make test-huggingface` alone."""

from __future__ import annotations

import os
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "support"), str(TESTS / "factorize" / "client")]  # the cases of the other tests
os.environ["HF_HUB_OFFLINE"] = "1"
