"""Ask a service that has the toys, in its own process, for its mechanisms; prints the answer."""

from __future__ import annotations

import sys
from pathlib import Path

from fastapi.testclient import TestClient

from factorize.api.http.app import create_app
from factorize.api.settings import Settings

if __name__ == "__main__":
    service = create_app(Settings(store=str(Path(sys.argv[1]) / "store")))
    with TestClient(service, base_url="http://127.0.0.1") as client:
        print(client.get("/v1/mechanisms").raise_for_status().text)
