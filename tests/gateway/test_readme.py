"""Goal: whoever copies a command from the documents sees what the documents say.

Method: every `sh` and `python` block of a document runs in order, as written but for the port,
against a real gateway process; a `text` block that follows is what it must print, where `...`
stands for anything. The commands of `make` that fit into a test are run as well.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import click
import pytest

from gateway.process.dev import dev
from tests.documents import Block, code_blocks, documents
from tests.gateway.admin_commands import invoke
from tests.house import ROOT
from tests.peers import install
from tests.peers.gateway import Gateway
from tests.peers.processes import Process, answers_metadata, free_port, wait_until

BLOCK_S_MAX = 60.0
SHOWN_PORT = "9092"
RUNNABLE = {"sh", "python"}


def steps(blocks: list[Block]) -> list[tuple[Block, str | None]]:
    """The blocks to run, each with what it must print."""
    following = {id(block): after for block, after in pairwise(blocks) if after.info == "text"}
    return [
        (block, following[id(block)].text if id(block) in following else None)
        for block in blocks
        if block.info in RUNNABLE
    ]


ELSEWHERE = {"docs/testing-applications.md"}  # run by test_package and test_testing
TUTORIALS = "docs/tutorials/"  # run by test_tutorials, all at one gateway
DOCUMENTS = [
    document
    for document in documents()
    if document.path not in ELSEWHERE
    and not document.path.startswith(TUTORIALS)
    and steps(code_blocks(document))
]


def as_pattern(shown: str) -> str:
    """`...` and the spaces beside it stand for anything; as a line of its own, for any lines.

    The spaces too, because they fill a column: what stands there may be wider than in the document.
    """
    lines = [
        re.sub(r"(?:\\ )*\\\.\\\.\\\.(?:\\ )*", ".*", re.escape(line))
        for line in shown.strip().splitlines()
    ]
    pattern = "\n".join(lines).replace("\n.*\n", r"\n(?:.*\n)*")
    return re.sub(r"\n\.\*\Z", r"(?:\\n.*)*", pattern)


def plain(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def run_text(
    text: str,
    block: Block,
    work: Path,
    environment: Mapping[str, str],
    timeout_s: float = BLOCK_S_MAX,
) -> str:
    """Run the text of a block with these variables besides. Returns what it prints.

    `gateway`, `bookie` and `python` are on the path, as after an installation.
    """
    if block.language == "python":
        script = work / "session.py"
        script.write_text(text)
        argv = [install.gateway_python(), str(script)]
    else:
        argv = ["bash", "-euo", "pipefail", "-c", text]
    around = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    around |= {"PYTHONPATH": str(ROOT), **environment}
    around["PATH"] = f"{programs(work)}{os.pathsep}{around['PATH']}"
    done = subprocess.run(
        argv, cwd=ROOT, env=around, capture_output=True, text=True, timeout=timeout_s
    )
    place = f"{block.path}:{block.line}"
    assert done.returncode == 0, f"{place} ended with {done.returncode}\n{done.stderr}"
    return done.stdout


def programs(work: Path) -> Path:
    """Return a directory with the programs of an installation, which run this tree."""
    place = work / "programs"
    if not place.exists():
        place.mkdir()
        run = install.gateway_python()
        commands = {
            "gateway": f'"{run}" -m gateway',
            "bookie": f'"{run}" -m ledger',
            "python": f'"{sys.executable}"',
        }
        for name, command in commands.items():
            (place / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            (place / name).chmod(0o755)
    return place


def check_printed(printed: str, shown: str | None, block: Block) -> None:
    """Check that a block printed what the document shows, if it shows anything."""
    if shown is not None:
        place = f"{block.path}:{block.line}"
        assert re.fullmatch(as_pattern(plain(shown)), plain(printed)), f"{place}\n{printed}"


def run_block(block: Block, gateway: Gateway, work: Path) -> str:
    text = block.text.replace(SHOWN_PORT, str(gateway.port))
    printed = run_text(text, block, work, {"GATEWAY_BOOTSTRAP": gateway.bootstrap})
    if block.language == "python":
        what = f"the transactions of {block.path}:{block.line} to be complete"
        wait_until(lambda: all_complete(gateway), what, BLOCK_S_MAX, pause_s=0.2)
    return printed


def all_complete(gateway: Gateway) -> bool:
    """Return True if no commit or abort lacks a marker: both return before their markers."""
    listed = ("transaction", "list", "-o", "json")
    code, out, errors = invoke(*listed, bootstrap=gateway.bootstrap)
    assert code == 0, errors
    return not any(row["state"].startswith("Prepare") for row in json.loads(out))


@pytest.mark.compat
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.path)
def test_the_blocks_of_a_document_do_what_it_says(document, tmp_path):
    install.kcat()
    with Gateway(tmp_path / "data") as gateway:
        for block, shown in steps(code_blocks(document)):
            check_printed(run_block(block, gateway, tmp_path), shown, block)


@pytest.mark.compat
def test_make_run_starts_a_gateway_and_ends_well(tmp_path):
    port = free_port()
    # A make that runs the tests must not give its flags to this one.
    quiet = {"MAKEFLAGS": "", "MAKELEVEL": "0"}
    place = [f"PORT={port}", f"DATA={tmp_path / 'data'}"]
    make = Process(["make", "-C", str(ROOT), "run", *place], tmp_path / "log", quiet)
    try:
        make.wait_for(lambda: answers_metadata(port), "make run to serve", BLOCK_S_MAX)
        said = f"bootstrap.servers=127.0.0.1:{port}"
        make.wait_output(said, BLOCK_S_MAX)
    finally:
        make.kill()


def test_the_page_of_make_has_each_target_with_its_variables():
    listed = subprocess.run(
        ["make", "-C", str(ROOT), "--no-print-directory"],
        env={**os.environ, "MAKEFLAGS": ""},
        capture_output=True,
        text=True,
        timeout=BLOCK_S_MAX,
        check=True,
    ).stdout
    helps = dict(line.split(maxsplit=1) for line in listed.splitlines() if line.strip())
    rows = dict(
        re.findall(
            r"^\| `make ([\w-]+)` \| (.*) \|$",
            (ROOT / "docs/make-targets.md").read_text(),
            re.MULTILINE,
        )
    )
    assert rows.keys() == helps.keys() - {"help"}
    missing = [
        f"{target}: {variable}="
        for target, row in rows.items()
        for variable in re.findall(r"([A-Z]+)=", helps[target])
        if f"`{variable}=" not in row
    ]
    assert missing == []


README_LINES_MAX = 120


def test_the_readme_is_short_and_names_what_a_commit_must_pass():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= README_LINES_MAX
    assert "make check\nmake test\n" in text


def test_the_page_of_commands_has_each_flag_of_gateway_dev():
    text = (ROOT / "docs/command-line.md").read_text()
    table = text.partition("## Flags of gateway dev\n")[2].partition("\n## ")[0]
    options = [each for each in dev.params if isinstance(each, click.Option) and not each.hidden]
    flags = {flag for each in options for flag in each.opts if flag.startswith("--")}
    flags -= {"--version", "--auto-create"}  # on every command; listed as --no-auto-create
    assert {flag for flag in flags if f"`{flag}`" not in table} == set()


def test_dots_stand_for_anything_and_nothing_else_does():
    pattern = as_pattern("a ... c\n...\nend")
    assert re.fullmatch(pattern, "a b c\nmore\nand more\nend")
    assert re.fullmatch(pattern, "a b c\nend")
    assert not re.fullmatch(pattern, "a b d\nmore\nend")
