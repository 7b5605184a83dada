"""Goal: a reader of docs/tutorials/ sees what they say, and types no command that does not exist.

Method: the blocks run in order, as written but for ports and directories, at one gateway for all
tutorials. Commands that need more machines, Kubernetes or a cluster are parsed by our own programs,
and what they name is looked up in the files of compose/. Three more files run blocks of tutorials
in `make proof`: tests/cluster/test_tutorials.py a cluster with a killed bookie,
tests/pipelines/test_recipes.py Spark, tests/gateway/test_moving_from_kafka.py Apache Kafka.
"""

from __future__ import annotations

import re
import shlex

import click
import pytest
from ruamel.yaml import YAML

from gateway.process import serve
from gateway.process.cli import program as gateway_program
from ledger.__main__ import program as bookie_program
from ledger.command_line.program import flags_of
from ledger.node import serve as bookie
from ledger.node.options import NodeSettings
from tests.documents import NOT_RUN, code_blocks, documents
from tests.gateway.test_kubernetes import DIRECTORY, container, kustomization, of_kind
from tests.gateway.test_readme import SHOWN_PORT, TUTORIALS, check_printed, run_text, steps
from tests.house import ROOT
from tests.peers.gateway import Gateway
from tests.peers.processes import free_port

PROGRAMS = {"gateway": gateway_program, "bookie": bookie_program}
PAGES = [page for page in documents() if page.path.startswith(TUTORIALS)]
LINES_MIN, LINES_MAX = 40, 120
# Its blocks are run in `make proof`, because a commit has seconds for all tutorials.
LONG = {"docs/tutorials/test-with-it.md"}
SHOWN_HTTP_PORT = "9080"


def path_of(page):
    return page.path.removeprefix(TUTORIALS)


RUN = [
    pytest.param(page, id=path_of(page), marks=[pytest.mark.proof] if page.path in LONG else [])
    for page in PAGES
    if steps(code_blocks(page))
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One gateway for all tutorials, with its page."""
    http_port = str(free_port())
    options = ["--http-port", http_port, "--group-initial-rebalance-delay", "0ms"]
    with Gateway(tmp_path_factory.mktemp("tutorials") / "data", options) as gateway:
        yield gateway, {SHOWN_PORT: str(gateway.port), SHOWN_HTTP_PORT: http_port}


@pytest.mark.compat
@pytest.mark.parametrize("page", RUN)
def test_the_blocks_of_a_tutorial_do_what_it_says(page, server, tmp_path):
    gateway, replaced = server
    around = {
        "GATEWAY_BOOTSTRAP": gateway.bootstrap,
        "PYTEST_PLUGINS": "gateway.testing.plugin",  # an installation registers it
        "PYTEST_ADDOPTS": "-p no:randomly -p no:cacheprovider",
    }
    for block, shown in steps(code_blocks(page)):
        text = block.text.replace("/tmp/", f"{tmp_path}/")
        for old, new in replaced.items():
            text = text.replace(old, new)
        check_printed(run_text(text, block, tmp_path, around), shown, block)


# --- commands that are not run ------------------------------------------------------------------


def commands_of(text):
    """Yield the commands of ours in a block, each as words."""
    for line in text.replace("\\\n", " ").splitlines():
        for part in re.split(r"\s[|&]+\s|\s--\s|<|>|;|\$\(", line):
            try:
                words = shlex.split(part.strip().rstrip("&)"), comments=True)
            except ValueError:
                continue
            if words and words[0] in PROGRAMS:
                yield words


def parse(words):
    """Parse a command as our programs do, without running it. Raises click's errors."""
    command, rest, context = PROGRAMS[words[0]], words[1:], None
    while isinstance(command, click.Group):
        context = click.Context(command, parent=context, info_name=command.name)
        _, command, rest = command.resolve_command(context, list(rest))
    assert command is not None
    command.make_context(command.name, list(rest), parent=context)
    if words[:2] == ["gateway", "serve"]:
        assert serve.faults_of(serve.settings_of(flags_of(serve.serve, words[2:]))) == []
    if words[:2] == ["bookie", "serve"]:
        assert NodeSettings(flags_of(bookie.serve, words[2:])).faults == []


COMMANDS = [
    pytest.param(words, id=f"{path_of(page)}-{block.line}-{number}")
    for page in PAGES
    for block in code_blocks(page)
    if block.info.startswith(NOT_RUN)
    for number, words in enumerate(commands_of(block.text))
]


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_that_is_not_run_is_one_of_ours(words):
    assert parse(words) is None


def test_a_command_with_a_mistake_is_found():
    for words in ("gateway topic creat x", "gateway serve --node 1", "bookie serve --rack r1"):
        with pytest.raises((click.ClickException, click.exceptions.Exit, AssertionError)):
            parse(shlex.split(words))


def test_three_machines_have_commands_that_are_checked():
    checked = {" ".join(words[:2]) for each in COMMANDS for words in each.values}
    assert checked >= {"bookie serve", "gateway serve", "gateway doctor", "gateway cluster"}


def text_of(name):
    (page,) = [page for page in PAGES if path_of(page) == name]
    return page.text


def test_what_the_tutorial_of_kubernetes_names_is_in_its_files():
    text = text_of("kubernetes.md")
    assert set(re.findall(r"statefulset/(\w+)", text)) <= set(of_kind("StatefulSet"))
    assert "bootstrap" in of_kind("Service")
    assert kustomization()["namespace"] == "ledger-gateway"
    files = re.findall(r"-f ([\w-]+\.yaml)", text)
    assert files
    assert all((DIRECTORY / name).exists() for name in files)
    ports = {str(each["containerPort"]) for each in container("gateway")["ports"]}
    assert set(re.findall(r"(?:localhost|svc):(\d+)", text)) <= ports
    assert set(re.findall(r" (\d+):\d+\n", text)) <= ports


def test_the_configuration_of_prometheus_names_the_page_of_the_first_minute():
    (block,) = [each for each in code_blocks_of("watch.md") if "prometheus.yml <<" in each.text]
    written = block.text.split("<<'END'\n")[1].split("END\n")[0]
    (job,) = YAML(typ="safe").load(written)["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"127.0.0.1:{SHOWN_HTTP_PORT}"]}]
    for name in re.findall(r"^\| `([\w-]+\.json)` \|", text_of("watch.md"), re.MULTILINE):
        assert (ROOT / "compose" / "grafana" / name).exists()


def code_blocks_of(name):
    (page,) = [page for page in PAGES if path_of(page) == name]
    return code_blocks(page)


def test_each_tutorial_is_short_and_in_the_list():
    listed = re.findall(r"\]\(([\w./-]+\.md)\) \|", text_of("index.md"))
    assert sorted(listed) == sorted(
        ["../moving-from-kafka.md", *(path_of(p) for p in PAGES if path_of(p) != "index.md")]
    )
    lengths = {path_of(page): len(page.lines) for page in PAGES if path_of(page) != "index.md"}
    assert not {name: size for name, size in lengths.items() if not LINES_MIN <= size <= LINES_MAX}
