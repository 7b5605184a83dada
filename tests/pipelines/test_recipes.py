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

import pyarrow.dataset
import pytest
from click.testing import CliRunner

from gateway.process.cli import program
from tests.documents import RUN, Block, code_blocks
from tests.gateway.test_readme import as_pattern, check_printed, plain, run_text
from tests.gateway.test_readme import steps as shell_steps
from tests.house import ROOT, read_sources
from tests.peers.gateway import Gateway
from tests.peers.install import spark_jars
from tests.peers.recipes import KINDS

pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("ignore")]

HERE = "tests/pipelines/test_recipes.py"
PYTHON = "python with Spark"
"""The programs that run here; test_recipe_delta and test_recipe_avro run those of other kinds."""
INSTALL_S_MAX = 240
SUBMIT_S_MAX = 240
RECORDS = 1100
"""The records of the topic at the end: a recipe adds some."""
COMMAND = re.compile(r"^(\.venv(-spark)?/bin/python -m )?gateway ")


def steps(path: str = "docs/spark.md") -> list[tuple[Block, str | None]]:
    """Return the blocks to run, each with its expected output."""
    (document,) = read_sources([path])
    blocks = code_blocks(document)
    return [
        (block, after.text if after.info == "text" else None)
        for block, after in pairwise([*blocks, Block("", 0, "", "")])
        if block.info == PYTHON or HERE in block.info
    ]


def run_commands(text: str, work: Path) -> str:
    """Run the commands and return their output. Each must exit with 0."""
    if "spark-submit" in text:
        return run_submit(text, work)
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


def run_submit(text: str, work: Path) -> str:
    """Run spark-submit as written, with a Spark that has no connectors of its own.

    Only where Spark keeps what it fetched is set, so that a second run fetches nothing.
    """
    conf = work / "submit-conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text(f"spark.jars.ivy {spark_jars()[0].parents[1]}\n")
    around = {**os.environ, "SPARK_CONF_DIR": str(conf), "SPARK_LOCAL_IP": "127.0.0.1"}
    around["SPARK_SUBMIT_OPTS"] = f"-Duser.home={conf}"  # Ivy also looks into the home
    done = subprocess.run(
        ["bash", "-euc", text],
        cwd=ROOT,
        env=around,
        capture_output=True,
        text=True,
        timeout=SUBMIT_S_MAX,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


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


def test_each_program_of_the_page_is_run_by_a_test():
    (document,) = read_sources(["docs/spark.md"])
    kinds = {block.info for block in code_blocks(document) if block.language == "python"}
    run = {kind for kind in kinds if not kind.startswith("python not run: ")}
    assert run == {PYTHON, *KINDS}


@pytest.mark.timeout(900)  # the one install of Spark's environment is in it
@pytest.mark.proof
def test_the_recipes_work_as_documented(spark, tmp_path: Path):
    names: dict[str, object] = {}
    with Gateway(tmp_path / "gateway") as gateway:
        ports = {"9092": gateway.port, "3181": gateway.ledger_port}
        here = {there: str(port) for there, port in ports.items()} | {"data/": f"{tmp_path}/"}
        for block, shown in steps():
            text = block.text
            for there, replaced in here.items():
                text = text.replace(there, replaced)
            printed = (
                run_python(text, names) if block.info == PYTHON else run_commands(text, tmp_path)
            )
            if shown is not None:
                place = f"{block.path}:{block.line}"
                assert re.fullmatch(as_pattern(plain(shown)), plain(printed)), f"{place}\n{printed}"
    assert archived(tmp_path / "submitted") == archived(tmp_path / "archive") == RECORDS


@pytest.mark.proof
def test_the_tutorial_works_as_documented(spark, tmp_path: Path):
    """The blocks that need no Spark are run here too: they write what Spark reads."""
    page = "docs/tutorials/spark.md"
    (document,) = read_sources([page])
    plain_steps = shell_steps(code_blocks(document))
    names: dict[str, object] = {}
    with Gateway(tmp_path / "gateway") as gateway:
        for block, shown in sorted([*plain_steps, *steps(page)], key=lambda each: each[0].line):
            text = block.text.replace("9092", str(gateway.port)).replace("data/", f"{tmp_path}/")
            if block.info == PYTHON:
                printed = run_python(text, names)
            elif block.info == RUN:
                around = {"GATEWAY_BOOTSTRAP": gateway.bootstrap}
                printed = run_text(text, block, tmp_path, around)
            else:
                printed = run_commands(text, tmp_path)
            check_printed(printed, shown, block)
    assert archived(tmp_path / "archive") == 1000


def archived(archive: Path) -> int:
    """Return the rows of the archive's files, counted without Spark."""
    found = pyarrow.dataset.dataset(archive, partitioning="hive", exclude_invalid_files=True)
    return found.count_rows()
