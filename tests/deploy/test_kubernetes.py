"""The manifests for Kubernetes: that they fit together, and that a broker would take what they give it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.kit import DEPLOY, accepted, check_settings
from tests.hooks.metrics.kit import fetch, measured

MANIFESTS = [
    document
    for file in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(file.read_text())
]
_VERSIONS = {
    "ConfigMap": "v1",
    "Service": "v1",
    "PodDisruptionBudget": "policy/v1",
    "StatefulSet": "apps/v1",
    "Deployment": "apps/v1",
}
WORKLOADS = [each for each in MANIFESTS if each["kind"] in ("StatefulSet", "Deployment")]
each_workload = pytest.mark.parametrize(
    "workload", WORKLOADS, ids=[each["metadata"]["name"] for each in WORKLOADS]
)


def _named(kind: str, name: str) -> dict[str, Any]:
    (found,) = [each for each in MANIFESTS if each["kind"] == kind and each["metadata"]["name"] == name]
    return dict(found)


def _container(workload: dict[str, Any]) -> dict[str, Any]:
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    return dict(container)


def test_names_are_unique_and_versions_are_those_of_the_kinds() -> None:
    """Each role has a workload, a service and a budget of disruptions."""
    names = [(each["kind"], each["metadata"]["name"]) for each in MANIFESTS]
    assert len(set(names)) == len(names)
    assert all(each["apiVersion"] == _VERSIONS[each["kind"]] for each in MANIFESTS)
    for role in ("namesrv", "broker", "proxy"):
        kinds = {kind for kind, name in names if name == f"rmqkit-{role}"}
        assert {"Service", "PodDisruptionBudget"} < kinds


@each_workload
def test_labels_join_what_belongs_together(workload: dict[str, Any]) -> None:
    """Service, budget and workload select the pods of the template; ports of the service are open."""
    labels = workload["spec"]["template"]["metadata"]["labels"]
    name = workload["metadata"]["name"]
    assert workload["spec"]["selector"]["matchLabels"] == labels
    budget = _named("PodDisruptionBudget", name)["spec"]
    assert budget["selector"]["matchLabels"] == labels
    assert budget["maxUnavailable"] < workload["spec"]["replicas"]
    service = _named("Service", name)["spec"]
    assert service["selector"] == labels
    opened = {port["name"]: port["containerPort"] for port in _container(workload)["ports"]}
    assert {port["targetPort"]: port["port"] for port in service["ports"]} == opened
    if workload["kind"] == "StatefulSet":
        assert workload["spec"]["serviceName"] == name
        assert service["clusterIP"] == "None"


@each_workload
def test_pods_have_no_privileges(workload: dict[str, Any]) -> None:
    """Not root, nothing to write but volumes, no token, and no variables for services, which would be taken
    for settings."""
    pod, container = workload["spec"]["template"]["spec"], _container(workload)
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] == 10001
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    known = {each["name"] for each in pod.get("volumes", [])}
    known |= {each["metadata"]["name"] for each in workload["spec"].get("volumeClaimTemplates", [])}
    assert {each["name"] for each in container["volumeMounts"]} == known


@each_workload
def test_the_command_is_accepted(workload: dict[str, Any]) -> None:
    """The parser takes the words of each container."""
    accepted(_container(workload)["args"])


def test_a_pods_name_is_its_brokers(tmp_path: Path) -> None:
    """The settings of the ConfigMap with the variables of a pod are without an error and a warning."""
    file = tmp_path / "broker.toml"
    file.write_text(_named("ConfigMap", "rmqkit-broker")["data"]["broker.toml"])
    broker = _named("StatefulSet", "rmqkit-broker")
    pod = {"metadata.name": "rmqkit-broker-2", "status.podIP": "10.1.2.3"}
    environ = {
        each["name"]: each.get("value") or pod[each["valueFrom"]["fieldRef"]["fieldPath"]]
        for each in _container(broker)["env"]
    }
    config = check_settings(file, environ)
    assert (config.broker_name, config.advertised_host) == ("rmqkit-broker-2", "10.1.2.3")
    namesrv = _named("StatefulSet", "rmqkit-namesrv")
    assert len(config.name_servers) == namesrv["spec"]["replicas"]
    ports = {each["name"]: each["containerPort"] for each in _container(broker)["ports"]}
    assert ports == {"remoting": config.listen_port, "fast": config.listen_port - 2, "metrics": 5557}
    mounted = [each["mountPath"] for each in _container(broker)["volumeMounts"]]
    assert any(config.store_path_root_dir.startswith(f"{path}/") for path in mounted)


async def test_probes_ask_for_pages_that_there_are(tmp_path: Path) -> None:
    """A broker answers each path of its probes with 200."""
    container = _container(_named("StatefulSet", "rmqkit-broker"))
    probes = {name: container[name]["httpGet"] for name in container if name.endswith("Probe")}
    assert {name: each["path"] for name, each in probes.items()} == {
        "startupProbe": "/healthz",
        "livenessProbe": "/healthz",
        "readinessProbe": "/readyz",
    }
    assert {each["port"] for each in probes.values()} == {"metrics"}
    async with measured(tmp_path) as running:
        for path in {each["path"] for each in probes.values()}:
            response, _ = await fetch(running, path)
            assert response.status_code == 200
