"""The manifests of deploy/kubernetes, by Kubernetes' own schemas and by what the service asks of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from factorize import __version__
from factorize.api.settings import Settings, load_settings

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
VERSIONS = ("1.29", "1.35")


def documents() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(FOLDER.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            yield f"{path.name}:{document['kind']}/{document['metadata']['name']}", document


DOCUMENTS = dict(documents())
PODS = {name: document["spec"]["template"] for name, document in DOCUMENTS.items() if document["kind"] == "Deployment"}


def only(kind: str, name: str) -> dict[str, Any]:
    (found,) = [d for d in DOCUMENTS.values() if (d["kind"], d["metadata"]["name"]) == (kind, name)]
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", DOCUMENTS)
def test_it_is_what_kubernetes_takes(name: str, version: str) -> None:
    kubernetes_validate.validate(DOCUMENTS[name], version, strict=True)


@pytest.mark.parametrize("name", PODS)
def test_pods_run_with_as_little_as_they_need(name: str) -> None:
    pod = PODS[name]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True and pod["securityContext"]["runAsUser"] == 10001
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False, "a Service named factorize would set FACTORIZE_PORT"
    for container in pod["containers"]:
        allowed = container["securityContext"]
        assert allowed["readOnlyRootFilesystem"] and not allowed["allowPrivilegeEscalation"]
        assert allowed["capabilities"] == {"drop": ["ALL"]}
        assert container["image"] == f"registry.example/factorize:{__version__.partition('.dev')[0]}"
        assert "/tmp" in {mount["mountPath"] for mount in container["volumeMounts"]}
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        assert container["resources"]["limits"]["memory"]


def test_services_lead_to_ports_that_are_there() -> None:
    services = [document for document in DOCUMENTS.values() if document["kind"] == "Service"]
    assert len(services) == 2
    for service in services:
        wanted = service["spec"]["selector"].items()
        (pod,) = [pod for pod in PODS.values() if wanted <= pod["metadata"]["labels"].items()]
        names = {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
        assert all(port["targetPort"] in names for port in service["spec"]["ports"])
        assert set(names.values()) <= {int(word) for word in pod["spec"]["containers"][0]["args"] if word.isdigit()}
    for name, pod in PODS.items():
        chosen = DOCUMENTS[name]["spec"]["selector"]["matchLabels"].items()
        assert chosen <= pod["metadata"]["labels"].items()


def test_the_settings_are_this_services(monkeypatch: pytest.MonkeyPatch) -> None:
    api = PODS["factorize.yaml:Deployment/factorize-api"]["spec"]["containers"][0]
    given = only("ConfigMap", "factorize")["data"] | {entry["name"]: entry["value"] for entry in api["env"]}
    for name, value in given.items():
        if name.startswith("FACTORIZE_"):
            assert name.removeprefix("FACTORIZE_").lower() in Settings.model_fields
            monkeypatch.setenv(name, value)
    settings = load_settings(host="0.0.0.0", scheduler="tls://factorize-scheduler:8786")
    assert settings.asks_for_keys and "factorize" in settings.allowed_hosts and settings.log_format == "json"
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = api[probe]["httpGet"]
        assert asked["path"] in ("/healthz", "/readyz")
        assert {"name": "Host", "value": "factorize"} in asked["httpHeaders"], "the pod's address is no allowed host"


def test_workers_get_no_access_to_the_database() -> None:
    worker = PODS["cluster.yaml:Deployment/factorize-worker"]["spec"]["containers"][0]
    api = PODS["factorize.yaml:Deployment/factorize-api"]["spec"]["containers"][0]
    secrets = [
        {source["secretRef"]["name"] for source in one["envFrom"] if "secretRef" in source} for one in (worker, api)
    ]
    assert secrets == [{"factorize-bucket"}, {"factorize-bucket", "factorize-ledger"}]
    assert worker["args"][0] == "worker" and api["args"][0] == "serve"
    service = only("Service", "factorize-scheduler")
    address = f"tls://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"
    assert address in worker["args"] and address in api["args"]
    memory = int(worker["args"][worker["args"].index("--memory-mb") + 1])
    assert memory < 1024 * int(worker["resources"]["limits"]["memory"].removesuffix("Gi"))


def test_only_this_clusters_pods_reach_scheduler_and_workers() -> None:
    policy = only("NetworkPolicy", "factorize-cluster")["spec"]
    (expression,) = policy["podSelector"]["matchExpressions"]
    assert set(expression["values"]) == {"scheduler", "worker"} and policy["policyTypes"] == ["Ingress"]
    assert policy["ingress"] == [{"from": [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "factorize"}}}]}]
