"""docker-compose.yml by the settings that read it: who reaches the service, and whether keys are asked for."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any

import pytest
import yaml

from factorize.api.http.gateway.access_guard import trusts
from factorize.api.settings import Settings, load_settings

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return document


def test_the_composed_service_trusts_the_gateway_alone_and_asks_for_keys(
    compose: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = compose["services"]["api"]
    for name, value in service["environment"].items():
        assert name.removeprefix("FACTORIZE_").lower() in Settings.model_fields
        monkeypatch.setenv(name, value)
    settings = load_settings()
    assert settings.asks_for_keys
    (network,) = compose["networks"]["default"]["ipam"]["config"]
    assert ipaddress.ip_address(network["gateway"]) in ipaddress.ip_network(network["subnet"])
    assert trusts(settings, network["gateway"]) and trusts(settings, "127.0.0.1")  # the second is the health check's
    others = set(ipaddress.ip_network(network["subnet"]).hosts()) - {ipaddress.ip_address(network["gateway"])}
    assert not any(trusts(settings, str(other)) for other in [*others, "172.31.251.1", "10.0.0.1", "192.168.0.1"])
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_the_composed_service_runs_with_as_little_as_it_needs(compose: dict[str, Any]) -> None:
    service = compose["services"]["api"]
    assert (
        service["read_only"] and service["cap_drop"] == ["ALL"] and "no-new-privileges:true" in service["security_opt"]
    )
    mounted = {volume.partition(":")[2] for volume in service["volumes"]}
    assert any(Path(service["environment"]["FACTORIZE_STORE"]).is_relative_to(folder) for folder in mounted)
    assert service["command"][0] == "serve"
