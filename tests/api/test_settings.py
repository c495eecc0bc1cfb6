"""Settings: where they come from, which wins, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from command_line import environment

from factorize.api.settings import OTHER_VARIABLES, default_store, load_settings
from factorize.client.cache import default_folder
from factorize.client.connection import is_loopback
from factorize.errors import InvalidParameter

ISSUER = {"issuer": "https://i", "audience": "a", "jwks_url": "https://i/jwks", "scopes": {"x": ["read"]}}


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable and no file but those of the test."""
    import os

    for name in list(os.environ):
        if name.startswith("FACTORIZE_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_defaults_are_private_and_bounded() -> None:
    settings = load_settings()
    assert (settings.host, settings.allowed_hosts) == ("127.0.0.1", ())
    assert settings.max_upload_bytes == 64 << 20


def test_the_store_is_in_the_users_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert default_store() == load_settings().store == str(tmp_path / "data" / "factorize")
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_store() == str(tmp_path / ".local/share/factorize")


def test_a_relative_data_folder_counts_as_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", "data")
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert default_store() == str(tmp_path / ".local/share/factorize")
    assert tmp_path in default_folder().parents


def test_an_empty_variable_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STORE", "PORT", "PROCESSORS", "ALLOWED_HOSTS", "REQUIRE_KEYS"):
        monkeypatch.setenv(f"FACTORIZE_{name}", "")
    assert (load_settings().store, load_settings().port) == (default_store(), 8000)


def test_later_sources_win(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "factorize.toml").write_text('port = 1111\nstore = "from-file"\nallowed_hosts = ["A.example"]\n')
    assert load_settings().port == 1111
    monkeypatch.setenv("FACTORIZE_PORT", "2222")
    assert load_settings().port == 2222
    settings = load_settings(port=3333, store=None)
    assert (settings.port, settings.store, settings.allowed_hosts) == (3333, "from-file", ("a.example",))


def test_a_variable_names_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text("processors = 3")
    monkeypatch.setenv("FACTORIZE_CONFIG", str(other))
    assert load_settings().processors == 3
    other.unlink()
    with pytest.raises(InvalidParameter, match="not a file"):
        load_settings()


@pytest.mark.parametrize("name", ["FACTORIZE_REQUIRE_KEY", "FACTORIZE_SERVICE_HOST", "factorize_require_key"])
def test_a_misspelt_variable_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "true")
    with pytest.raises(InvalidParameter, match=f"there is no setting {name.upper()}; .*did you mean FACTORIZE_"):
        load_settings()


def test_variables_of_clients_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OTHER_VARIABLES - {"FACTORIZE_CONFIG"}:
        monkeypatch.setenv(name, "any")
    assert load_settings().require_keys is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_an_open_address_needs_https_or_a_proxy_and_keys(host: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="other machines.*--tls-certificate.*trusted_proxies"):
        load_settings(host=host)
    behind = load_settings(host=host, trusted_proxies=["192.0.2.7"])
    assert behind.host == host and behind.asks_for_keys
    file = tmp_path / "a.pem"
    file.touch()
    assert load_settings(host=host, https_certificate=str(file), https_key=str(file)).asks_for_keys
    for way in ({"trusted_proxies": ["192.0.2.7"]}, {"https_certificate": str(file), "https_key": str(file)}):
        with pytest.raises(InvalidParameter, match="which need keys"):
            load_settings(host=host, require_keys=False, **way)


def test_keys_are_asked_for_where_others_reach_the_service() -> None:
    assert not load_settings().asks_for_keys
    assert load_settings(require_keys=True).asks_for_keys
    assert load_settings(trusted_proxies=["127.0.0.0/8"]).asks_for_keys
    assert load_settings(issuers=[ISSUER]).asks_for_keys


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"https_certificate": "a.pem"}, "come together"),
        ({"https_certificate": "a.pem", "https_key": "b.pem"}, "there is no file a.pem"),
        ({"trusted_proxies": ["proxy.example"]}, "trusted_proxies"),
        ({"issuers": [ISSUER | {"jwks_url": "http://keys.example/jwks"}]}, "must be https://"),
        ({"issuers": [ISSUER | {"jwks_url": "https:///jwks"}]}, "without a user"),
        ({"issuers": [ISSUER | {"jwks_url": "https://a:b@i/jwks"}]}, "without a user"),
        ({"issuers": [ISSUER | {"algorithms": ["HS256"]}]}, "algorithms"),
        ({"issuers": [ISSUER | {"algorithms": ["none"]}]}, "algorithms"),
        ({"issuers": [ISSUER | {"algorithms": []}]}, "algorithms"),
        ({"issuers": [ISSUER | {"scopes": {"a": ["write"]}}]}, "scopes"),
        ({"issuers": [ISSUER, ISSUER]}, "contains an issuer twice"),
        ({"port": 65536}, "port"),
        ({"port": -1}, "port: .*; got '-1'"),
        ({"processors": 0}, "processors"),
        ({"max_solve_seconds": 0}, "max_solve_seconds"),
        ({"max_solve_seconds": float("inf")}, "max_solve_seconds"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_settings_that_would_protect_nothing_or_are_none_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        load_settings(**given)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "LOCALHOST."])
def test_loopback_needs_no_permission(host: str) -> None:
    assert is_loopback(host)
    assert load_settings(host=host).host == host


def test_a_file_with_an_unknown_field_or_no_toml(tmp_path: Path) -> None:
    (tmp_path / "factorize.toml").write_text("require_key = true")
    with pytest.raises(
        InvalidParameter, match=r"no setting require_key; remove it from .*toml \(did you mean require_"
    ):
        load_settings()
    (tmp_path / "factorize.toml").write_text("colour = 'red'")
    with pytest.raises(InvalidParameter, match="colour"):
        load_settings()
    for other in (b"port 1", "port = 1  # Größe".encode("latin-1")):
        (tmp_path / "factorize.toml").write_bytes(other)
        with pytest.raises(InvalidParameter, match="not TOML"):
            load_settings()


def test_a_service_without_a_home_folder_has_the_store_that_is_named(tmp_path: Path) -> None:
    """Nothing asks for the user's folder while modules are imported."""
    named = environment(tmp_path) | {"HOME": "", "FACTORIZE_STORE": str(tmp_path / "store")}
    code = "import factorize.api.http.server; print(factorize.api.http.server.Settings().store)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=named, check=True)
    assert done.stdout.strip() == named["FACTORIZE_STORE"]
