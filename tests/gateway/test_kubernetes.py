"""Goal: the files of compose/kubernetes/ are valid, run commands that our programs accept, and let
pods do no more than they need.

Method: the schemas of three releases of Kubernetes; our own parsers for the commands, with the
variables of a pod; the rules of the profile "restricted"; each port against the network policies.
"""

from __future__ import annotations

import copy
import functools
import re
import shutil
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

from gateway.process import serve
from ledger.command_line.program import flags_of
from ledger.node import audit
from ledger.node import serve as bookie
from ledger.node.options import NodeSettings
from tests.peers.install import ROOT

DIRECTORY = ROOT / "compose" / "kubernetes"
RELEASES = ("1.35", "1.36", "1.37")
NAMES = ("gateway", "bookie", "auditor")
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
OUTSIDE_KINDS = ("Kustomization", "ServiceMonitor")  # of other schemas
PORTS_OF_A_BOOKIE = {"ledgers": "port", "grpc": "grpc-port", "http": "http-port"}
JOBS = {"gateway": "gateways", "bookie": "bookies", "auditor": "auditors"}
PARSER = YAML(typ="safe")


@functools.cache
def loaded(file):
    return list(PARSER.load_all(file))


def documents(*names):
    files = [DIRECTORY / name for name in names] or sorted(DIRECTORY.glob("*.yaml"))
    return [each for file in files for each in loaded(file)]


def of_kind(kind):
    return {each["metadata"]["name"]: each for each in documents() if each["kind"] == kind}


def kustomization():
    (found,) = documents("kustomization.yaml")
    return found


def pod(name):
    return of_kind("StatefulSet")[name]["spec"]["template"]["spec"]


def container(name):
    (found,) = pod(name)["containers"]
    return found


def variables(number):
    """The variables of the pod with this number, as Kubernetes sets them."""
    literals = dict(
        line.split("=", 1) for line in kustomization()["configMapGenerator"][0]["literals"]
    )
    fields = {
        "metadata.name": "{name}-{number}",
        "metadata.namespace": kustomization()["namespace"],
        "metadata.labels['topology.kubernetes.io/zone']": "zone-a",
        "metadata.labels['apps.kubernetes.io/pod-index']": "{number}",
    }

    def value_of(name, source):
        if "configMapKeyRef" in source:
            assert source["configMapKeyRef"]["name"] == "ledger-gateway"
            return literals[source["configMapKeyRef"]["key"]]
        return fields[source["fieldRef"]["fieldPath"]].format(name=name, number=number)

    return {
        name: {each["name"]: value_of(name, each["valueFrom"]) for each in container(name)["env"]}
        for name in NAMES
    }


def words(name, number=0):
    """The words of the container, with the variables in them."""
    found = variables(number)[name]
    program = container(name).get("command", ["gateway"])  # the ENTRYPOINT of the image
    expanded = [
        re.sub(r"\$\((\w+)\)", lambda match: found[match[1]], word)
        for word in container(name)["args"]
    ]
    assert not any("$" in word for word in expanded)
    return [*program, *expanded]


@pytest.mark.parametrize("release", RELEASES)
def test_every_document_is_valid(release):
    checked = [each for each in documents() if each["kind"] not in OUTSIDE_KINDS]
    assert len(checked) > 15
    for document in checked:
        kubernetes_validate.validate(document, release, strict=True)


def test_an_unknown_field_is_found():
    first = copy.deepcopy(of_kind("StatefulSet")["gateway"])
    first["spec"]["replica"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(first, RELEASES[-1], strict=True)


def test_the_kustomization_names_every_file_but_that_of_another_operator():
    files = {file.name for file in DIRECTORY.glob("*.yaml")} - {"kustomization.yaml"}
    assert files - set(kustomization()["resources"]) == {"service-monitor.yaml"}
    kinds = {each["kind"] for each in documents(*kustomization()["resources"])}
    assert kinds == {
        *("Namespace", "Service", "StatefulSet", "PodDisruptionBudget", "NetworkPolicy")
    }
    if kubectl := shutil.which("kubectl"):  # the judge where it is there
        argv = [kubectl, "kustomize", str(DIRECTORY)]
        built = list(PARSER.load_all(subprocess.check_output(argv, text=True)))
        namespaced = [each for each in built if each["kind"] != "Namespace"]
        assert {each["metadata"]["namespace"] for each in namespaced} == {"ledger-gateway"}
        assert len(built) == len(documents(*kustomization()["resources"])) + 1  # the ConfigMap


def test_each_gateway_has_a_node_id_a_rack_and_addresses_of_its_own():
    found = []
    for number in range(3):
        program, command, *options = words("gateway", number)
        assert (program, command) == ("gateway", "serve")
        settings = serve.settings_of(flags_of(serve.serve, options))
        assert serve.faults_of(settings) == []
        found.append(serve.config_of(settings))
    assert [each.node_id for each in found] == [0, 1, 2]
    assert {each.rack for each in found} == {"zone-a"}
    assert {each.inter_broker_listener for each in found} == {"INSIDE"}
    advertised = [
        [(x.advertised_host, x.advertised_port) for x in each.listeners] for each in found
    ]
    assert advertised == [
        [
            (f"gateway-{number}.gateway.ledger-gateway.svc", 29092),
            (f"gateway-{number}.kafka.example.com", 9092),
        ]
        for number in range(3)
    ]
    ports = {each["name"]: each["containerPort"] for each in container("gateway")["ports"]}
    inside, outside = found[0].listeners
    assert ports == {"inside": inside.port, "outside": outside.port, "http": found[0].metrics_port}
    assert (inside.name, outside.name) == ("INSIDE", "OUTSIDE")


def test_a_gateway_is_reached_at_the_addresses_that_it_advertises():
    services = of_kind("Service")
    replicas = of_kind("StatefulSet")["gateway"]["spec"]["replicas"]
    for number in range(replicas):
        spec = services[f"gateway-{number}-outside"]["spec"]
        assert spec["selector"] == {"statefulset.kubernetes.io/pod-name": f"gateway-{number}"}
        assert [each["port"] for each in spec["ports"]] == [9092]
    headless = services["gateway"]["spec"]
    assert headless["clusterIP"] == "None"
    assert headless["publishNotReadyAddresses"]
    assert of_kind("StatefulSet")["gateway"]["spec"]["serviceName"] == "gateway"


def test_each_bookie_has_a_name_a_rack_and_an_address_of_its_own():
    for number in (0, 3):
        program, command, *options = words("bookie", number)
        assert (program, command) == ("bookie", "serve")
        settings = NodeSettings(flags_of(bookie.serve, options))
        assert settings.faults == []
        assert (settings["name"], settings["rack"]) == (f"bookie-{number}", "/zone-a")
        host = f"bookie-{number}.bookie.ledger-gateway.svc"
        assert settings["advertised-host"] == host
        assert str(settings["data"]) == "/data"
    ports = {each["name"]: each["containerPort"] for each in container("bookie")["ports"]}
    assert ports == {name: settings[port] for name, port in PORTS_OF_A_BOOKIE.items()}
    (claim,) = of_kind("StatefulSet")["bookie"]["spec"]["volumeClaimTemplates"]
    assert {"name": claim["metadata"]["name"], "mountPath": "/data"} in (
        container("bookie")["volumeMounts"]
    )


def test_the_auditor_runs_a_command_of_ours():
    program, command, *options = words("auditor")
    assert (program, command) == ("bookie", "audit")
    settings = audit.settings_of(flags_of(audit.audit, options))
    assert audit.faults_of(settings) == []
    (port,) = container("auditor")["ports"]
    assert port == {"name": "http", "containerPort": settings["http-port"]}
    assert settings["http-host"] == "0.0.0.0"


def test_probes_ask_for_health_on_a_port_that_is_open():
    found = {probe: container("gateway")[probe]["httpGet"] for probe in PROBES}
    assert {probe: each["path"] for probe, each in found.items()} == {
        "startupProbe": "/health/live",
        "livenessProbe": "/health/live",
        "readinessProbe": "/health/ready",
    }
    assert {each["port"] for each in found.values()} == {"http"}
    names = {each["name"] for each in container("bookie")["ports"]}
    assert {container("bookie")[probe]["tcpSocket"]["port"] for probe in PROBES} <= names


@pytest.mark.parametrize("name", NAMES)
def test_a_pod_is_restricted(name):
    spec, only = pod(name), container(name)
    security = spec["securityContext"]
    assert security["runAsNonRoot"]
    assert security["runAsUser"] == security["runAsGroup"] == security["fsGroup"] == 10001
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert only["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False  # else a Service `gateway` sets GATEWAY_PORT
    assert spec["terminationGracePeriodSeconds"] == 60
    assert {"hostNetwork", "hostPID", "hostIPC"}.isdisjoint(spec)
    assert only["resources"]["limits"]["memory"]
    labels = of_kind("Namespace")["ledger-gateway"]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


@pytest.mark.parametrize("name", NAMES)
def test_only_one_pod_of_a_kind_may_be_evicted_at_a_time(name):
    budget = of_kind("PodDisruptionBudget")[name]["spec"]
    assert budget["maxUnavailable"] == 1
    selected = of_kind("StatefulSet")[name]["spec"]["selector"]
    assert budget["selector"] == selected
    zones = [each["topologyKey"] for each in pod(name)["topologySpreadConstraints"]]
    assert zones == ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]


def allowed(name, direction):
    """The peers and ports that the policies of a pod allow, as pairs; None is any peer."""
    found = set()
    peer_key = "from" if direction == "ingress" else "to"
    for policy in of_kind("NetworkPolicy").values():
        selected = policy["spec"]["podSelector"]["matchLabels"]
        if selected not in (
            {"app.kubernetes.io/name": name},
            {"app.kubernetes.io/part-of": "ledger-gateway"},
        ):
            continue
        for rule in policy["spec"].get(direction, ()):
            peers = rule.get(peer_key, [None])
            for peer in peers:
                labels = peer and peer.get("podSelector", {}).get("matchLabels", {})
                who = labels and labels.get("app.kubernetes.io/name", "client")
                who = "monitoring" if labels == {} else who
                found |= {(who, port["port"]) for port in rule["ports"]}
    return found


def test_pods_connect_only_to_what_they_need():
    everywhere = {(None, 2181), (None, 53)}
    storage = {("bookie", 3181), ("bookie", 3281)}
    assert {name: allowed(name, "egress") for name in NAMES} == {
        "gateway": {*everywhere, *storage, ("gateway", 29092)},
        "bookie": everywhere,
        "auditor": {*everywhere, *storage},
    }
    of_bookies = {(who, port) for who in ("gateway", "auditor") for port in (3181, 3281)}
    assert {name: allowed(name, "ingress") for name in NAMES} == {
        "gateway": {
            *{("gateway", 29092), ("client", 29092)},
            *{(None, 9092), ("monitoring", 9308)},
        },
        "bookie": {*of_bookies, ("monitoring", 9309)},
        "auditor": {("monitoring", 9310)},
    }


@pytest.mark.parametrize("name", NAMES)
def test_prometheus_finds_the_port_of_the_metrics(name):
    monitors = {each["metadata"]["name"]: each for each in documents("service-monitor.yaml")}
    assert monitors.keys() == set(NAMES)
    service = of_kind("Service")[name]
    selected = monitors[name]["spec"]["selector"]["matchLabels"]
    assert service["metadata"]["labels"] == selected
    (endpoint,) = monitors[name]["spec"]["endpoints"]
    ports = {each["name"]: each["port"] for each in service["spec"]["ports"]}
    assert ("monitoring", ports[endpoint["port"]]) in allowed(name, "ingress")
    assert endpoint["path"] == "/metrics"
    assert Path(DIRECTORY / "service-monitor.yaml").name not in kustomization()["resources"]


@pytest.mark.parametrize("name", NAMES)
def test_a_monitor_names_the_job_for_which_the_rules_ask(name):
    """Without its relabeling a job has the name of its Service, and no rule finds it."""
    (monitor,) = [
        each for each in documents("service-monitor.yaml") if each["metadata"]["name"] == name
    ]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["relabelings"] == [{"targetLabel": "job", "replacement": JOBS[name]}]
    scraped = PARSER.load((ROOT / "compose/prometheus/prometheus.yml").read_text())
    assert JOBS[name] in {each["job_name"] for each in scraped["scrape_configs"]}
