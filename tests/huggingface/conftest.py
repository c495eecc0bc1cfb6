"""Tests against Hugging Face's transformers and peft; collected by `make test-huggingface` alone."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"
