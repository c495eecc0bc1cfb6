"""The OpenAPI document that is kept: this writes it anew, for what was added to it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from factorize.api.http.app import create_app
from factorize.api.service import SolverService
from factorize.api.settings import Settings

KEPT = Path(__file__).parents[1] / "contract" / "openapi.json"


def keep(path: Path) -> None:
    """Write the document of the packages that this process has."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(store=folder)
        service = SolverService(settings)
        document = create_app(settings, service=service).openapi()
        service.ledger.close()
    path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    keep(KEPT)
