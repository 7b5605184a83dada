"""Goal: the recipes of docs/spark.md work as written and print what the page shows.

Method: all blocks that need Spark run in order, as written except for ports and directories, in the
Spark of the tests, beside one gateway. A `text` block is the expected output of the block before
it.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.process.cli import program
from tests.documents import Block, code_blocks
from tests.gateway.test_readme import as_pattern, plain
from tests.house import ROOT, read_sources
from tests.peers.gateway import Gateway

pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("ignore")]

HERE = "tests/pipelines/test_recipes.py"
PYTHON = "python with Spark"
INSTALL_S_MAX = 240
COMMAND = re.compile(r"^\.venv(-spark)?/bin/python -m gateway ")


def steps() -> list[tuple[Block, str | None]]:
    """Return the blocks to run, each with its expected output."""
    (document,) = read_sources(["docs/spark.md"])
    blocks = code_blocks(document)
    return [
        (block, after.text if after.info == "text" else None)
        for block, after in pairwise([*blocks, Block("", 0, "", "")])
        if block.info == PYTHON or HERE in block.info
    ]


def run_commands(text: str) -> str:
    """Run the commands and return their output. Each must exit with 0."""
    printed = []
    for line in text.replace("\\\n", " ").strip().splitlines():
        if line.startswith("make "):
            install_jobs(line)
            continue
        assert COMMAND.match(line), f"no command of ours: {line}"
        done = CliRunner().invoke(program, shlex.split(COMMAND.sub("", line)))
        assert done.exit_code == 0, f"{line}\n{done.output}"
        printed.append(done.stdout)
    return "".join(printed)


def install_jobs(command: str) -> None:
    """Make the environment, and check that it can import the jobs and the source."""
    # A make that runs the tests must not give its flags to this one.
    quiet = {**os.environ, "MAKEFLAGS": "", "MAKELEVEL": "0"}
    subprocess.run(shlex.split(command), cwd=ROOT, env=quiet, check=True, timeout=INSTALL_S_MAX)
    needed = "import pyspark.sql, pandas, pyarrow, gateway.pipelines.direct.datasource"
    python = ROOT / ".venv-spark" / "bin" / "python"
    subprocess.run([python, "-c", needed], cwd=ROOT, check=True, timeout=INSTALL_S_MAX)


def run_python(text: str, names: dict[str, object]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(text, "docs/spark.md", "exec"), names)
    return printed.getvalue()


@pytest.mark.timeout(900)  # the one install of Spark's environment is in it
def test_the_recipes_work_as_documented(spark, tmp_path: Path):
    names: dict[str, object] = {}
    with Gateway(tmp_path / "gateway") as gateway:
        ports = {"9092": gateway.port, "3181": gateway.ledger_port}
        here = {there: str(port) for there, port in ports.items()} | {"data/": f"{tmp_path}/"}
        for block, shown in steps():
            text = block.text
            for there, replaced in here.items():
                text = text.replace(there, replaced)
            printed = run_python(text, names) if block.info == PYTHON else run_commands(text)
            if shown is not None:
                place = f"{block.path}:{block.line}"
                assert re.fullmatch(as_pattern(plain(shown)), plain(printed)), f"{place}\n{printed}"
