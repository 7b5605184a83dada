"""Goal: Spark's workers run the Python that has this package, wherever nobody chose another one.

Method: sessions as jobs and as readers of docs/spark.md start them, in processes whose `python3`
on PATH ends with an error, as one without the packages does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house import ROOT
from tests.peers import install
from tests.peers.spark import environment, settings

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SHOW = "print(spark.sparkContext.range(1).map(lambda _: __import__('sys').executable).first())"
OF_A_JOB = "from gateway.pipelines.shared.session import new_session; spark = new_session('x')"
OF_A_READER = """
from pyspark.sql import SparkSession
from gateway.pipelines.direct import register
spark = SparkSession.builder.master('local[1]').getOrCreate()
register(spark)
"""


def worker(place: Path, start: str, **chosen: str) -> str:
    """Return the program of a worker of the session that `start` makes."""
    conf = {**settings(place), "spark.jars": ""}
    rows = "".join(f"{key} {value}\n" for key, value in conf.items() if value)
    (place / "spark-defaults.conf").write_text(rows)
    tools = place / "tools"
    tools.mkdir()
    (tools / "python3").write_text("#!/bin/sh\necho this Python lacks the packages >&2\nexit 1\n")
    (tools / "python3").chmod(0o755)
    around = {key: value for key, value in environment(place).items() if key != "PYSPARK_PYTHON"}
    java = Path(install.java()).resolve().parents[1]
    around |= {"JAVA_HOME": str(java), "PATH": f"{tools}:{os.environ['PATH']}", **chosen}
    done = subprocess.run(
        [sys.executable, "-c", f"{start}\n{SHOW}"],
        cwd=ROOT,
        env={**os.environ, **around},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


@pytest.mark.parametrize(
    "start", [OF_A_JOB.replace("'x'", "'x', conf={'spark.jars': ''}"), OF_A_READER]
)
def test_without_a_choice_a_worker_runs_the_interpreter_of_its_driver(
    tmp_path: Path, start: str
) -> None:
    assert worker(tmp_path, start) == sys.executable


def test_a_chosen_python_is_kept(tmp_path: Path) -> None:
    other = tmp_path / "another"
    other.symlink_to(sys.executable)
    start = OF_A_READER
    assert worker(
        tmp_path, start, PYSPARK_PYTHON=str(other), PYTHONPATH=os.pathsep.join(sys.path)
    ) == str(other)
