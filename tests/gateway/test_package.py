"""Goal: what is built from the tree is complete, contains nothing else, and runs where it is alone.

Method: a copy of the tree with stray files is built; the wheel is installed into an empty
environment, and run by uvx and pipx. A record is written and read there with aiokafka.
"""

from __future__ import annotations

import re
import tomllib
import zipfile
from pathlib import Path

import pytest

from ledger.command_line.version import __version__, commit_of
from tests.gateway import package
from tests.gateway.package import run
from tests.peers.install import ROOT

pytestmark = pytest.mark.process

STRAY = ("data/metadata.sqlite", "gateway/data/log-1", "ledger/.env", "tests/test_x.py", ".env")
SEMVER = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?")
RELEASED = re.compile(r"^## (\d+)\.(\d+)\.(\d+)", re.MULTILINE)
SESSION = """
import asyncio, sys
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from gateway.testing import Gateway

async def main(server):
    async with AIOKafkaProducer(bootstrap_servers=server) as producer:
        await producer.send_and_wait("orders", b"3 apples", key=b"ann")
    consumer = AIOKafkaConsumer("orders", bootstrap_servers=server, auto_offset_reset="earliest")
    async with consumer:
        record = await consumer.getone()
        print(record.offset, record.key.decode(), record.value.decode())

with Gateway() as gateway:
    asyncio.run(main(gateway.bootstrap))
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """A copy of the tree, committed, with files beside it that belong to nobody."""
    copy = package.copy_tree(tmp_path_factory.mktemp("tree"))
    for name in STRAY:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text("a secret")
    return copy


@pytest.fixture(scope="module")
def wheel(tree, tmp_path_factory) -> Path:
    return package.build("wheel", tree, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def pins(tmp_path_factory) -> Path:
    """The pinned versions alone: hashes would have to cover the wheel too."""
    listed = (ROOT / "compose" / "requirements-run.txt").read_text()
    lines = [line.rstrip(" \\") for line in listed.splitlines() if "==" in line]
    assert len(lines) > 10
    file = tmp_path_factory.mktemp("pins") / "pins.txt"
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.fixture(scope="module")
def programs(wheel, tmp_path_factory) -> Path:
    return package.environment(tmp_path_factory.mktemp("empty") / "venv", wheel)


def sources() -> set[str]:
    """The modules, types and message definitions of the product that are in the repository."""
    listed = run("git", "ls-files", "--", *package.PACKAGES, cwd=ROOT).splitlines()
    page = ("gateway/http/templates/", "gateway/http/static/")
    found = {
        name for name in listed if name.endswith((".py", ".pyi", ".proto")) or name.startswith(page)
    }
    assert len(found) > 400
    return found


def test_a_wheel_has_every_source_and_nothing_else(wheel):
    names = {name for name in package.names_in(wheel) if ".dist-info/" not in name}
    moved = {"gateway/testing/plugin.py"}
    assert moved < sources()
    assert names == sources() - moved | {"ledger/command_line/COMMIT", "ledger_gateway_pytest.py"}


def test_a_source_that_is_not_in_the_repository_is_refused(tree, tmp_path):
    stray = tree / "gateway" / "core" / "stray.py"
    stray.touch()
    try:
        with pytest.raises(AssertionError, match=r"not in the repository: gateway/core/stray\.py"):
            package.build("wheel", tree, tmp_path)
    finally:
        stray.unlink()


def test_an_sdist_has_no_stray_file_and_builds_the_same_wheel(tree, wheel, tmp_path):
    sdist = package.build("sdist", tree, tmp_path / "sdist")
    unpacked = package.unpack(sdist, tmp_path / "unpacked")
    names = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    beside = {"pyproject.toml", "README.md", "CHANGELOG.md", "compose/build_hook.py", "PKG-INFO"}
    assert names - {".gitignore"} == sources() | beside | {"ledger/command_line/COMMIT"}
    again = package.build("wheel", unpacked, tmp_path / "again")
    assert package.names_in(again) == package.names_in(wheel)


def test_the_installed_programs_say_what_they_are(programs, tree, tmp_path):
    commit = run("git", "rev-parse", "--short=12", "HEAD", cwd=tree).strip()
    said = run(programs / "gateway", "--version", cwd=tmp_path)
    python = run(programs / "python", "-c", "import platform; print(platform.python_version())")
    assert said == f"gateway {__version__} (commit {commit}, Python {python.strip()})\n"
    assert run(programs / "bookie", "--version", cwd=tmp_path) == said.replace("gateway", "bookie")


@pytest.mark.proof
def test_the_steps_of_the_page_install_it_with_pip(tree, tmp_path):
    programs = package.installed(tree, tmp_path)
    assert run(programs / "python", "-c", SESSION, cwd=tmp_path) == "0 ann 3 apples\n"


def test_a_record_is_written_and_read_in_an_empty_environment(programs, tmp_path):
    assert run(programs / "python", "-c", SESSION, cwd=tmp_path) == "0 ann 3 apples\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words", [("uvx", "--from"), ("pipx", "run", "--spec")], ids=["uvx", "pipx"]
)
def test_it_runs_without_being_installed(words, wheel, pins, tmp_path):
    homes = {"PIPX_HOME": str(tmp_path / "pipx"), "UV_TOOL_DIR": str(tmp_path / "uv")}
    pinned = {"UV_CONSTRAINT": str(pins), "PIP_CONSTRAINT": str(pins)}
    said = run(*words, wheel, "gateway", "--version", cwd=tmp_path, **homes, **pinned)
    assert said.startswith(f"gateway {__version__} (commit ")


def test_a_changed_tree_makes_a_wheel_that_says_so(tree, tmp_path):
    readme = tree / "README.md"
    before = readme.read_text()
    readme.write_text("changed")
    try:
        wheel = package.build("wheel", tree, tmp_path)
    finally:
        readme.write_text(before)
    with zipfile.ZipFile(wheel) as packed:
        note = packed.read("ledger/command_line/COMMIT").decode()
    assert re.fullmatch(r"[0-9a-f]{12}-dirty\n", note)


def test_a_source_tree_says_its_commit_however_git_keeps_it(tree, tmp_path):
    """As a branch of its own file, packed, detached, and in a linked working tree."""
    git = ("git", "-C", tree)
    commit = run(*git, "rev-parse", "--short=12", "HEAD").strip()
    assert commit_of(tree) == commit
    run(*git, "pack-refs", "--all")
    assert not [each for each in (tree / ".git/refs/heads").iterdir() if each.is_file()]
    assert commit_of(tree) == commit
    for number, words in enumerate((["-b", "other"], ["--detach"])):
        linked = tmp_path / f"linked-{number}"
        run(*git, "worktree", "add", "-q", *words, linked)
        assert commit_of(linked) == commit
        run(*git, "worktree", "remove", "--force", linked)
    assert commit_of(tmp_path) is None


def test_the_version_is_semantic_and_the_changelog_agrees():
    text = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## (.+)", text, re.MULTILINE)
    released = [tuple(map(int, found)) for found in RELEASED.findall(text)]
    assert SEMVER.fullmatch(__version__)
    assert released == sorted(released, reverse=True)
    assert released[0] == tuple(map(int, __version__.partition("-")[0].split(".")))
    assert headings[0] == "Unreleased" or headings[0].startswith(__version__)


def test_pytest_finds_the_fixtures_beside_a_package_of_the_same_name(programs, tmp_path):
    """The application has a package `gateway`; its tests still start, and ours are there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert not [each for each in project["dependencies"] if each.startswith("pytest")]
    own = tmp_path / "gateway"
    own.mkdir()
    (own / "__init__.py").write_text("OWN = True\n")
    (tmp_path / "test_own.py").write_text("def test_own():\n    from gateway import OWN\n")
    run("uv", "pip", "install", "-q", "--python", programs / "python", "pytest")
    said = run(programs / "python", "-m", "pytest", "-q", "--fixtures", cwd=tmp_path)
    assert "ledger_gateway [session scope]" in said and "ledger_topic" in said
    assert "1 passed" in run(programs / "python", "-m", "pytest", "-q", cwd=tmp_path)
