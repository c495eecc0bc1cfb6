"""docker-compose.yml by the settings that read it: who reaches the service, and whether keys are asked for."""

from __future__ import annotations

import ipaddress
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from factorize.api.commands.application import command_of
from factorize.api.http.access import trusts
from factorize.api.settings import Settings, load_settings

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return document


def settings_of(service: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The settings that a service reads from its environment, of which it knows each."""
    for name, value in service["environment"].items():
        if name.startswith("FACTORIZE_"):
            assert name.removeprefix("FACTORIZE_").lower() in Settings.model_fields, name
            monkeypatch.setenv(name, value)
    return load_settings()


@pytest.mark.parametrize(
    ("name", "trusted", "called"), [("api", "gateway", set()), ("api-1", "subnet", {"api-1", "api-2"})]
)
def test_services_ask_for_keys_and_trust_the_gateway_alone_or_their_network(
    compose: dict[str, Any], monkeypatch: pytest.MonkeyPatch, name: str, trusted: str, called: set[str]
) -> None:
    settings = settings_of(compose["services"][name], monkeypatch)
    assert settings.asks_for_keys and set(settings.allowed_hosts) == called
    (network,) = compose["networks"]["default"]["ipam"]["config"]
    hosts = set(ipaddress.ip_network(network["subnet"]).hosts())
    among = {host for host in hosts if trusts(settings, str(host))}
    assert among == hosts & set(ipaddress.ip_network(network[trusted])) != set()
    assert trusts(settings, "127.0.0.1"), "the health check's"
    assert not any(trusts(settings, other) for other in ("172.31.251.1", "10.0.0.1", "192.168.0.1"))


def test_the_composed_services_run_with_as_little_as_they_need(compose: dict[str, Any]) -> None:
    for name in ("api", "api-1", "api-2", "worker"):
        service = compose["services"][name]
        assert service["read_only"] and service["cap_drop"] == ["ALL"], name
    service = compose["services"]["api"]
    assert "no-new-privileges:true" in service["security_opt"]
    mounted = {volume.partition(":")[2] for volume in service["volumes"]}
    assert any(Path(service["environment"]["FACTORIZE_STORE"]).is_relative_to(folder) for folder in mounted)
    assert service["command"][0] == "serve"


CLUSTER = ("api-1", "api-2", "scheduler", "worker", "database", "bucket", "make-bucket", "prometheus")


def test_the_profile_has_the_whole_topology(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert {name for name, service in services.items() if service.get("profiles") == ["cluster"]} == set(CLUSTER)
    assert services["worker"]["deploy"]["replicas"] == 2
    for name, service in services.items():
        assert set(service.get("depends_on", ())) <= set(services), name
        assert ("image" in service) != ("build" in service), name
        assert not service.get("image", "").endswith(":latest") and ":" in service.get("image", ":"), name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
        named = {volume.partition(":")[0] for volume in service.get("volumes", ())}
        assert all(volume in compose["volumes"] or (ROOT / volume).is_file() for volume in named), name
        assert set(service.get("secrets", ())) <= set(compose["secrets"]), name
    (job,) = yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text())["scrape_configs"]
    assert {target.partition(":")[0] for target in job["static_configs"][0]["targets"]} == {"api-1", "api-2"}
    assert job["authorization"]["credentials_file"] == "/run/secrets/metrics_key"


def test_the_user_of_the_containers_reads_the_certificates(compose: dict[str, Any], tmp_path: Path) -> None:
    subprocess.run(["sh", str(ROOT / "deploy" / "certificates.sh"), "tls"], check=True, cwd=tmp_path)
    files = [tmp_path / one["file"] for one in compose["secrets"].values() if "file" in one]
    assert len(files) == 7 and all(path.stat().st_mode & 0o777 == 0o644 for path in files)
    assert (tmp_path / "tls" / "ca.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["api-1", "api-2", "worker"])
def test_commands_and_settings_of_the_profile_are_this_releases(
    compose: dict[str, Any], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    service = compose["services"][name]
    command, *options = service["command"]
    known = command_of(command)
    assert {option for option in options if option.startswith("--")} <= {
        text for parameter in known.params for text in parameter.opts
    }
    settings_of(service, monkeypatch)
    scheduler = compose["services"]["scheduler"]["command"]
    assert "tls://scheduler:8786" in options
    assert scheduler[:5] == "--port 8786 --no-dashboard --protocol tls".split()
    said = [*options, *service["environment"].values()]
    assert {f"/run/secrets/{secret}" for secret in service["secrets"]} <= set(said)
    assert ("FACTORIZE_DATABASE" in service["environment"]) == (command == "serve"), (
        "workers have no access to the ledger"
    )
