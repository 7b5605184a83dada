"""Goal: dashboards, alerts and runbook name only metrics, labels and commands that exist.

Method: the files are compared with their source, and each name with the declarations of the code;
a name that does not exist is planted.
"""

from __future__ import annotations

import json
import re

import pytest
from ruamel.yaml import YAML

from gateway.process.cli import program
from ledger.exposition import Kind
from tests import dashboards, metrics_reference
from tests.command_output import walk
from tests.dashboards import DASHBOARDS, as_asked, place_of, queries, text_of
from tests.house import ROOT

RULES = ROOT / "compose/prometheus/rules.yml"
RUNBOOK = ROOT / "docs/runbook.md"
OTHERS = {"up"}
JOB = {
    "gateway_job_records_per_second",
    "gateway_job_lag",
    "gateway_job_last_commit_timestamp_seconds",
    "gateway_job_retries_total",
}
"""Those of `gateway job archive --metrics-port`."""

LABELS = {"instance", "job", "le", "code"}


def rules():
    (group,) = YAML(typ="safe").load(RULES)["groups"]
    return group["rules"]


def unknown_in(expr, declared):
    """Names of metrics and labels in a query that no process has."""
    names = set(re.findall(r"\b(?:kafka|gateway|bookie|process)_\w+|\bup\b", expr))
    found = set()
    for name in names:
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        plain = {each for each, about in declared.items() if about.kind is not Kind.HISTOGRAM}
        of_histogram = base != name and base in declared.keys() - plain
        if name not in plain | OTHERS | JOB and not of_histogram:
            found.add(name)
    known = {label for each in declared.values() for label in each.labels} | LABELS
    labels = re.findall(r"(\w+)\s*(?:=~|!=|=|!~)\s*\"", expr)
    for some in re.findall(r"\b(?:by|on|without)\s*\(([^)]*)\)", expr):
        labels += re.findall(r"\w+", some)
    return found | (set(labels) - known)


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda each: each.name)
def test_a_dashboard_is_written_from_its_source(dashboard):
    assert place_of(dashboard).read_text() == text_of(dashboard), "python -m tests.dashboards"


def test_there_is_no_other_dashboard():
    written = {each.name for each in dashboards.PLACE.iterdir()}
    assert written == {place_of(each).name for each in DASHBOARDS}


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda each: each.name)
def test_the_datasource_is_a_variable_and_nothing_is_an_input(dashboard):
    document = json.loads(text_of(dashboard))
    assert "__inputs" not in document
    first = document["templating"]["list"][0]
    assert (first["name"], first["type"]) == ("datasource", "datasource")
    sources = re.findall(r'"uid": "([^"]*)"', text_of(dashboard))
    assert set(sources) == {"${datasource}", document["uid"]}
    assert all(target["datasource"]["uid"] == "${datasource}" for target in targets(document))
    ids = [panel["id"] for panel in document["panels"]]
    assert len(ids) == len(set(ids))


def targets(document):
    return [target for panel in document["panels"] for target in panel["targets"]]


def test_each_query_names_metrics_and_labels_that_exist():
    declared = metrics_reference.declared()
    for place, query in queries():
        assert unknown_in(query.expr, declared) == set(), place
    for dashboard in DASHBOARDS:
        for each in dashboard.variables:
            assert each.metric in declared
            assert each.label in {*declared[each.metric].labels, "instance"}


def test_each_rule_names_metrics_and_labels_that_exist():
    declared = metrics_reference.declared()
    for rule in rules():
        assert unknown_in(rule["expr"], declared) == set(), rule["alert"]


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        ("rate(gateway_request_seconds[5m])", {"gateway_request_seconds"}),
        ("rate(gateway_requests[5m])", {"gateway_requests"}),
        ("sum by (topik) (gateway_topic_bytes_total)", {"topik"}),
        ('gateway_topic_bytes_total{directions="in"}', {"directions"}),
        ("bookie_sync_seconds_buckets", {"bookie_sync_seconds_buckets"}),
    ],
)
def test_a_name_that_does_not_exist_is_found(planted, found):
    assert unknown_in(planted, metrics_reference.declared()) == found


def test_variables_are_replaced_as_grafana_does():
    asked = as_asked('rate(x{instance=~"$instance",topic=~"$topic"}[$__rate_interval])')
    assert asked == 'rate(x{instance=~".*",topic=~".*"}[1m])'


def test_each_rule_has_its_section_in_the_runbook_and_no_section_is_left():
    sections = re.findall(r"^## (\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    assert sections == [rule["alert"] for rule in rules()]
    for rule in rules():
        assert rule["annotations"]["runbook"] == f"docs/runbook.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_the_runbook_calls_commands_and_flags_that_exist():
    known = {}
    for path, command in walk(program, ("gateway",)):
        known[path] = {
            name for each in command.params for name in (*each.opts, *each.secondary_opts)
        }
    calls = re.findall(r"`(gateway [^`]+)`", RUNBOOK.read_text().replace("\n", " "))
    assert len(calls) > 10
    for call in calls:
        words = call.split()
        path = tuple(words[: next((at for at, word in enumerate(words) if not_name(word)), None)])
        assert path in known, call
        flags = {word for word in words if word.startswith("-")}
        assert flags <= known[path], call


def not_name(word):
    return word.startswith("-") or word.isupper() or ":" in word


def test_the_reference_of_metrics_is_written_from_the_code():
    written = metrics_reference.DOCUMENT.read_text()
    assert written == metrics_reference.document(), "python -m tests.metrics_reference"
    assert all(
        each.text.endswith((".", "longer.")) for each in metrics_reference.declared().values()
    )
