"""Notebooks of examples/, run cell by cell as they stand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "examples/notebooks"
OF_HUGGING_FACE = "private_lora"
"""The notebook that needs transformers and peft, and runs in tests/huggingface."""


def run_cells(path: Path) -> dict[str, Any]:
    """Run the cells of a notebook, and return the names that they leave."""
    names: dict[str, Any] = {}
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None, (
                "without outputs, which depend on the machine"
            )
            exec(compile("".join(cell["source"]), f"{path.name} {cell['id']}", "exec"), names)
    return names
