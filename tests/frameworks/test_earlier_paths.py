"""Modules of the adapters by their earlier paths; tests/house/test_architecture.py tests those that need no framework."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

from factorize.moved_modules import NEW_PATHS


@pytest.mark.parametrize(
    ("earlier", "new"), [(earlier, new) for earlier, new in NEW_PATHS.items() if new.startswith("factorize.adapters")]
)
def test_the_earlier_path_of_an_adapter_names_the_same_module(earlier: str, new: str) -> None:
    sys.modules.pop(earlier, None)
    with pytest.warns(DeprecationWarning, match=f"{earlier} has moved to {new}"):
        assert import_module(earlier) is import_module(new)
