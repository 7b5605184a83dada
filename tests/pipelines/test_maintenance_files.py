"""Goal: the schedules in compose/ are well formed, and run commands that the jobs accept.

Method: the CronJob is parsed as YAML, the DAG by Python with stand-ins that record what a DAG
declares, since Airflow is no dependency of the tests. Each command then goes through the options of
the command that it names, without running it.
"""

from __future__ import annotations

import re
import shlex
import sys
import types
from itertools import pairwise
from typing import Any, ClassVar

import click
import pytest
from ruamel.yaml import YAML

from gateway.pipelines.commands import job
from ledger.command_line.exit_codes import EXIT_DIFFERS
from tests.gateway.test_kubernetes import kustomization, of_kind
from tests.house import ROOT
from tests.peers.compose import commands

COMPOSE = ROOT / "compose"


def parsed(words: list[str]) -> tuple[str, dict[str, Any]]:
    """Return the job that the words name, and its parameters. Fails on unknown options."""
    at = words.index("job")
    assert words[at - 3 : at] == ["python", "-m", "gateway"] or words[at - 2 : at] == [
        "-m",
        "gateway",
    ]
    name, *rest = words[at + 1 :]
    with click.Context(job) as group:
        command = job.get_command(group, name)
        assert command is not None, name
        with command.make_context(name, rest, parent=group) as context:
            return name, dict(context.params)


def test_the_cron_job_archives_and_compacts_before_it_audits() -> None:
    described = YAML(typ="safe").load(COMPOSE / "maintenance.yaml")
    assert (described["apiVersion"], described["kind"]) == ("batch/v1", "CronJob")
    spec = described["spec"]
    assert len(spec["schedule"].split()) == 5
    assert spec["concurrencyPolicy"] == "Forbid"
    run = spec["jobTemplate"]["spec"]
    assert run["backoffLimit"] == 0 and run["template"]["spec"]["restartPolicy"] == "Never"
    pod = run["template"]["spec"]
    first, last = pod["initContainers"][0], pod["containers"][0]
    archive, audit = parsed(first["command"]), parsed(last["command"])
    assert archive[0] == "archive" and archive[1]["compact"]
    assert audit[0] == "audit" and audit[1]["right"] == f"archive:{archive[1]['to']}#flights"
    for container in (first, last):
        assert container["resources"]["limits"]["memory"]
        assert {each["name"] for each in container["env"]} >= {"GATEWAY_BOOTSTRAP", "SPARK_MASTER"}


def test_the_cron_job_reaches_the_gateways_of_kubernetes() -> None:
    described = YAML(typ="safe").load(COMPOSE / "maintenance.yaml")
    template = described["spec"]["jobTemplate"]["spec"]["template"]
    (servers,) = {
        each["value"]
        for container in [*template["spec"]["initContainers"], *template["spec"]["containers"]]
        for each in container["env"]
        if each["name"] == "GATEWAY_BOOTSTRAP"
    }
    (port,) = of_kind("Service")["bootstrap"]["spec"]["ports"]
    assert servers == f"bootstrap.{kustomization()['namespace']}.svc:{port['port']}"
    clients = [
        peer["podSelector"]["matchLabels"]
        for rule in of_kind("NetworkPolicy")["gateway"]["spec"]["ingress"]
        for peer in rule.get("from", ())
        if "podSelector" in peer and "namespaceSelector" in peer
    ]
    assert clients == [template["metadata"]["labels"]]


def test_the_cron_job_names_the_exit_code_of_a_difference() -> None:
    text = (COMPOSE / "maintenance.yaml").read_text()
    assert re.findall(r"exit code (\d+)", text) == [str(EXIT_DIFFERS)]


class Dag:
    """Stands for Airflow's DAG: keeps its arguments."""

    made: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, **words: Any) -> None:
        self.made.append(words)

    def __enter__(self) -> Dag:
        return self

    def __exit__(self, *_: object) -> None: ...


class Task:
    """Stands for an operator: keeps its arguments and what follows it."""

    def __init__(self, **words: Any) -> None:
        self.words = words
        self.after: list[Task] = []

    def __rshift__(self, other: Task) -> Task:
        self.after.append(other)
        return other


def test_the_dag_gates_what_follows_by_the_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    sdk, bash = types.ModuleType("airflow.sdk"), types.ModuleType("bash")
    sdk.DAG, bash.BashOperator = Dag, Task  # type: ignore[attr-defined]
    for name in ("airflow", "airflow.providers", "airflow.providers.standard"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    operators = "airflow.providers.standard.operators"
    monkeypatch.setitem(sys.modules, operators, types.ModuleType(operators))
    monkeypatch.setitem(sys.modules, "airflow.sdk", sdk)
    monkeypatch.setitem(sys.modules, f"{operators}.bash", bash)
    file = COMPOSE / "maintenance_dag.py"
    names: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), names)
    (made,) = Dag.made
    assert made["catchup"] is False and made["max_active_runs"] == 1
    archive, audit = names["archive"], names["audit"]
    assert archive.after == [audit] and audit.words["retries"] == 0
    to_archive = parsed(shlex.split(archive.words["bash_command"]))
    to_audit = parsed(shlex.split(audit.words["bash_command"]))
    assert to_archive[0] == "archive" and to_archive[1]["compact"]
    assert to_audit[0] == "audit"
    assert to_audit[1]["right"] == f"archive:{to_archive[1]['to']}#flights"
    advertised = {
        word.partition("INSIDE=")[2]
        for words in commands().values()
        for flag, word in pairwise(words)
        if flag == "--advertise" and word.startswith("INSIDE=")
    }
    for _, given in (to_archive, to_audit):  # those outside are localhost for the client
        assert set(given["bootstrap"].split(",")) <= advertised
