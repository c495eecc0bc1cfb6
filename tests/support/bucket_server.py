"""A real S3 server in a process of its own (moto's), and buckets on it."""

from __future__ import annotations

import itertools
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.error import URLError

from patience import wait_for
from ports import free_ports

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class BucketServer:
    """A running server.

    Args:
        url: its address.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._numbers = itertools.count()

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that a process needs to reach it."""
        return ENVIRONMENT | {"AWS_ENDPOINT_URL": self.url}

    def bucket(self) -> str:
        """Make a bucket, and return its URL."""
        name = f"bucket-{next(self._numbers)}"
        signature = "AWS4-HMAC-SHA256 Credential=test/20200101/us-east-1/s3/aws4_request"
        request = urllib.request.Request(f"{self.url}/{name}", method="PUT", headers={"Authorization": signature})
        with urllib.request.urlopen(request, timeout=600):
            return f"s3://{name}"


@contextmanager
def running() -> Iterator[BucketServer]:
    """Start a server and end it."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_for(lambda: _answers(url))
            yield BucketServer(url)
        finally:
            process.kill()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/moto-api/", timeout=10):
            return True
    except (URLError, OSError):
        return False
