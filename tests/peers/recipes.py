"""The Maven packages that single recipes of docs/spark.md need, and those recipes as processes."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.documents import code_blocks
from tests.house import ROOT, read_sources
from tests.peers import install
from tests.peers.processes import Process
from tests.peers.spark import LOGGING, QUICK_JVM

KINDS = ("python with Delta", "python with Avro")
"""The recipes that need packages of their own: what follows the opening fence of their program."""
SUMS = Path(__file__).with_name("recipes.sums")
_PACKAGE = re.compile(r"\"([\w.]+:[\w.-]+:[\d.]+)\"")
RUN_S_MAX = 900.0


def documented(kind: str) -> str:
    """Return the one program of this kind."""
    (document,) = read_sources(["docs/spark.md"])
    (text,) = (block.text for block in code_blocks(document) if block.info == kind)
    return text


def shown(kind: str) -> str:
    """Return the output that the page shows below the program of this kind."""
    (document,) = read_sources(["docs/spark.md"])
    blocks = code_blocks(document)
    (text,) = (after.text for before, after in pairwise(blocks) if before.info == kind)
    return text


def recipe_jars() -> list[Path]:
    """Return the jars of the packages that the programs name, and of the jobs' connectors."""
    named = [each for kind in KINDS for each in _PACKAGE.findall(documented(kind))]
    return install.spark_jars_with("recipes", named, install.read_sums(SUMS))


class RecipeRun(Process):
    """Programs in one process, one after the other, each to its end or to its first error.

    `stop` names the step at which a program stands still until the process is killed: see
    tests/pipelines/recipe_process.py.
    """

    def __init__(
        self, work: Path, programs: Mapping[str, str], stop: Mapping[str, Any] | None = None
    ) -> None:
        work.mkdir(parents=True)
        self._results = work / "results.json"
        self.stopped = work / "stopped"
        order = {
            "programs": dict(programs),
            "stop": dict(stop or {}),
            "stopped": str(self.stopped),
            "results": str(self._results),
        }
        (work / "order.json").write_text(json.dumps(order))
        argv = [sys.executable, "-m", "tests.pipelines.recipe_process", str(work / "order.json")]
        super().__init__(argv, work / "log", _environment(work))

    def results(self) -> dict[str, dict[str, Any]]:
        """Wait for the end. Return for each program what it printed, its error, and its cache."""
        assert self.wait_exit(RUN_S_MAX, pause_s=0.1) == 0, self.output()[-4000:]
        return json.loads(self._results.read_text())

    def wait_stopped(self) -> None:
        self.wait_for(self.stopped.exists, "the program to stand still", RUN_S_MAX)


def _environment(work: Path) -> dict[str, str]:
    """Set where Spark keeps files and what it fetched, so that a second run fetches nothing."""
    conf = {
        "spark.jars.ivy": recipe_jars()[0].parents[1],
        "spark.driver.defaultJavaOptions": f"{QUICK_JVM} -Djava.io.tmpdir={work}",
        "spark.local.dir": work / "local",
        "spark.sql.warehouse.dir": work / "warehouse",
        "spark.sql.shuffle.partitions": 2,
        "spark.databricks.delta.snapshotPartitions": 2,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    rows = "".join(f"{key} {value}\n" for key, value in conf.items())
    (work / "spark-defaults.conf").write_text(rows)
    (work / "log4j2.properties").write_text(LOGGING.format(file=work / "spark.log"))
    return {
        **os.environ,
        "SPARK_CONF_DIR": str(work),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": f"-Duser.home={work}",  # Ivy also looks into the home
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
    }
