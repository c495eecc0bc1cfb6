"""HTTPS by the service itself: a certificate that clients check, keys that cross it, and files that cannot be used."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from certificates import certificate
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from patience import wait_for
from servers import SLOW_SOLVER, LiveService, serving

from factorize.api.access.key_register import KeyRequest
from factorize.api.http.server import server
from factorize.api.settings import Settings
from factorize.client.service import Service
from factorize.errors import InvalidParameter, ServiceError, ServiceUnreachable


def certified(folder: Path) -> tuple[Path, Path]:
    """Write a certificate of this machine, signed by its own key, and that key."""
    certificate(folder, "service")
    return folder / "service.crt", folder / "service.key"


def https(certificate: Path, key: Path) -> dict[str, str]:
    """The settings that name them."""
    return {"https_certificate": str(certificate), "https_key": str(key)}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certified(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, files: tuple[Path, Path]) -> Iterator[LiveService]:
    store, options = tmp_path_factory.mktemp("secured") / "store", https(*files)
    with serving(store, solver=SLOW_SOLVER, require_keys=True, **options) as live:
        yield live


def url_of(live: LiveService) -> str:
    return f"https://{live.host}"


def test_a_client_asks_over_https_with_its_key(
    secured: LiveService, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(files[0]))
    monkeypatch.setenv(
        "FACTORIZE_KEY", secured.service.register.create(KeyRequest(name="k", scopes=["read", "submit"]))[1].text
    )
    job = Service(url_of(secured)).post({"workload": {"kind": "prefix", "n": 5}})
    assert job["state"] in ("queued", "running")
    assert Service(url_of(secured)).cancel(job["spec_digest"])["state"] == "cancelled"
    monkeypatch.delenv("FACTORIZE_KEY")
    with pytest.raises(ServiceError) as refused:
        Service(url_of(secured)).status(job["spec_digest"])
    assert refused.value.status == 401


def test_a_certificate_that_nobody_vouches_for_is_not_taken(secured: LiveService) -> None:
    with pytest.raises(ServiceUnreachable, match="(?i)certificate"):
        Service(url_of(secured), timeout=600).post({"workload": {"kind": "prefix", "n": 5}})


def test_nothing_is_said_in_the_clear(secured: LiveService) -> None:
    with suppress(ConnectionResetError):
        assert b"HTTP" not in secured.raw(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")


def test_old_versions_of_tls_are_refused(secured: LiveService, files: tuple[Path, Path]) -> None:
    def version(most: ssl.TLSVersion) -> str | None:
        context = ssl.create_default_context(cafile=str(files[0]))
        context.minimum_version, context.maximum_version = ssl.TLSVersion.MINIMUM_SUPPORTED, most
        with (
            secured.connected() as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
        ):
            return connection.version()

    assert version(ssl.TLSVersion.TLSv1_3) == "TLSv1.3" and version(ssl.TLSVersion.TLSv1_2) == "TLSv1.2"
    with pytest.warns(DeprecationWarning), pytest.raises(ssl.SSLError):
        version(ssl.TLSVersion.TLSv1_1)


def test_a_renewed_certificate_is_used_without_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("factorize.api.http.server.CERTIFICATE_TICKS", 1)
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir(), second.mkdir()
    (shown_first, private), (other, other_private) = certified(first), certified(second)
    with serving(tmp_path / "store", solver=SLOW_SOLVER, **https(shown_first, private)) as live:
        host, port = live.host.rsplit(":", 1)

        def shown() -> str:
            return ssl.get_server_certificate((host, int(port)), timeout=600)

        before = shown()
        os.replace(other, shown_first)  # without its key: nothing that can be used
        time.sleep(0.5)
        assert shown() == before
        renewed = shown_first.read_text()
        os.replace(other_private, private)
        wait_for(lambda: shown() != before)
        assert shown() == renewed


def test_files_that_cannot_be_used_are_named(files: tuple[Path, Path], tmp_path: Path) -> None:
    own, private = files
    locked = tmp_path / "locked.key"
    key = load_pem_private_key(private.read_bytes(), None)
    locked.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))
    for wrong in (certified(tmp_path)[1], locked, own):
        with pytest.raises(InvalidParameter, match="https_certificate and https_key cannot be used"):
            server(Settings(store=str(tmp_path / "store"), **https(own, wrong)))
