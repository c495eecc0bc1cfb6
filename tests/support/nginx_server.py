"""nginx before a service, as deploy/nginx.conf has it."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from patience import wait_for
from ports import free_ports

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "nginx.conf"


@contextmanager
def nginx(service: str, folder: Path, prefix: str = "") -> Iterator[str]:
    """Run nginx with the configuration that the repository ships, but in the clear.

    Args:
        service: its URL.
        folder: for what nginx writes.
        prefix: the path below which nginx shows the service.
    """
    (port,) = free_ports(1)
    server = CONFIGURATION.read_text()
    for old, new in (
        ("listen 443 ssl;", f"listen 127.0.0.1:{port};"),
        ("http://127.0.0.1:8000;", f"{service}/;"),
        ("location / {", f"location {prefix}/ {{"),
        ("$host", "localhost"),
    ):
        assert old in server
        server = server.replace(old, new)
    server = "\n".join(line for line in server.splitlines() if "ssl_certificate" not in line)
    kinds = "client_body proxy fastcgi uwsgi scgi".split()
    places = "\n".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    whole = (
        f"daemon off; pid {folder}/pid; error_log stderr; events {{}}\nhttp {{ access_log off; {places}\n{server} }}"
    )
    (folder / "nginx.conf").write_text(whole)
    with subprocess.Popen(["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")]) as process:
        try:
            wait_for(lambda: _answers(port))
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
