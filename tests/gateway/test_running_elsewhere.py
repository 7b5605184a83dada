"""Goal: the commands and files that docs/running-elsewhere.md shows start our servers.

Method: the blocks are not run, since they need a container engine, systemd or Kubernetes. Their
commands go through our own programs with the variables beside them, up to what a start refuses.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from itertools import pairwise

import pytest
from ruamel.yaml import YAML

from gateway.process import dev, serve
from ledger.command_line.program import flags_of
from ledger.node import audit
from ledger.node import serve as bookie
from ledger.node.checks import offline_faults
from ledger.node.options import NodeSettings
from tests.documents import Block, code_blocks, documents
from tests.gateway.test_image import dockerfile_words
from tests.gateway.test_systemd import UNITS, command_of
from tests.house import ROOT

PAGE = "docs/running-elsewhere.md"
IMAGE = "ledger-gateway"


def blocks() -> list[Block]:
    (page,) = [each for each in documents() if each.path == PAGE]
    return code_blocks(page)


def containers() -> list[tuple[dict[str, str], list[str]]]:
    """Return the variables and the command of each container that the page starts for good."""
    lines = [
        line
        for block in blocks()
        for line in block.text.replace("\\\n", " ").splitlines()
        if line.startswith("docker run -d ")
    ]
    found = []
    for words in map(shlex.split, lines):
        at = words.index(IMAGE)
        given = dict(value.split("=", 1) for flag, value in pairwise(words[:at]) if flag == "-e")
        found.append((given, words[at + 1 :] or dockerfile_words()[1]))
    return found


@pytest.mark.parametrize("number", range(3))
def test_a_container_is_not_refused(number, tmp_path, monkeypatch):
    given, (command, *options) = containers()[number]
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert command == "dev"
    options = [str(tmp_path) if word == "/data" else word for word in options]
    assert dev.faults_of(dev.settings_of(flags_of(dev.dev, options))) == []


def test_each_container_of_the_page_is_tried():
    assert len(containers()) == 3


def test_a_container_that_other_machines_reach_in_plain_text_is_refused(tmp_path):
    _, (_, *options) = containers()[0]
    options = [str(tmp_path) if word == "/data" else word for word in options]
    options.remove("--allow-insecure")
    faults = dev.faults_of(dev.settings_of(flags_of(dev.dev, options)))
    assert len([each for each in faults if "other machines can reach it" in each]) == 2


# systemd


def units_and_files() -> tuple[set[str], dict[str, str]]:
    """Return the units that the page enables, and the files of settings that it writes."""
    (block,) = [each for each in blocks() if "systemctl enable" in each.text]
    enabled = re.findall(r"systemctl enable --now (.+)", block.text)[0].split()
    written = re.findall(r"^cat > (\S+) <<'END'\n(.*?)^END$", block.text, re.MULTILINE | re.DOTALL)
    return {re.sub("@.*", "@", each) for each in enabled}, dict(written)


def faults_of(words: list[str]) -> list[str]:
    """Return what a start with this command of a unit refuses."""
    command, *options = words
    if command == "audit":
        return audit.faults_of(audit.settings_of(flags_of(audit.audit, options)))
    if "--name" in options:
        return offline_faults(NodeSettings(flags_of(bookie.serve, options)))
    return serve.faults_of(serve.settings_of(flags_of(serve.serve, options)))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_an_enabled_unit_finds_its_settings(unit, tmp_path):
    enabled, written = units_and_files()
    assert unit.stem in enabled
    for name, text in written.items():
        (tmp_path / name.rpartition("/")[2]).write_text(text)
    _, words = command_of(unit, tmp_path)
    words = [word.replace("/var/lib/ledger-bookie", str(tmp_path)) for word in words]
    assert faults_of(words) == []


# Kubernetes


def test_the_alerts_become_an_object_with_all_rules():
    (block,) = [each for each in blocks() if "PrometheusRule" in each.text]
    made = block.text[block.text.index("{ echo") : block.text.index(" | kubectl")]
    directory = ROOT / "compose" / "kubernetes"
    printed = subprocess.check_output(["sh", "-c", made], cwd=directory, text=True)
    found = YAML(typ="safe").load(printed)
    assert (found["kind"], found["apiVersion"]) == ("PrometheusRule", "monitoring.coreos.com/v1")
    rules = YAML(typ="safe").load(ROOT / "compose" / "prometheus" / "rules.yml")
    assert found["spec"] == rules
    monitors = YAML(typ="safe").load_all(directory / "service-monitor.yaml")
    labels = [each["metadata"]["labels"] for each in [*monitors, found]]
    assert labels == [{"release": "prometheus"}] * len(labels)
