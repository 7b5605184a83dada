"""Goal: a job that Spark's Java does not start ends with one line that names the fix.

Method: the job as a process, with a search path and a JAVA_HOME of its own. Programs that print a
version stand for other releases of Java; Spark's launcher fails with them as it does with those.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from py4j.protocol import Py4JError

from gateway.pipelines.shared.java import why_not_started

TOOLS = ("bash", "dirname", "env", "sh", "cat", "ls", "uname")  # of Spark's scripts
JOB = ("-m", "gateway", "job", "audit", "archive:/nowhere", "-o", "json")


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A directory with what Spark's scripts need, but without Java."""
    place = tmp_path / "tools"
    place.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        assert found is not None, name
        (place / name).symlink_to(found)
    return place


def with_java(place: Path, version: str) -> Path:
    """Return a JAVA_HOME whose Java prints this version, and refuses everything else."""
    program = place / f"java-{version}" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\nexit 1\n")
    program.chmod(0o755)
    return program.parents[1]


def failure(tools: Path, **around: str) -> str:
    """Run a job with these variables, and return the text of its error."""
    kept = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"}
    done = subprocess.run(
        [sys.executable, *JOB],
        env={**kept, "PATH": str(tools), **around},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" not in done.stderr
    said = json.loads(done.stderr.splitlines()[-1])
    assert said["code"] == "NO_SPARK"
    return str(said["error"])


def test_a_missing_java_is_named_with_the_fix(tools: Path) -> None:
    assert failure(tools) == (
        "Spark did not start: Java is missing; install Java 17 or 21 (Debian: apt-get install"
        " default-jre-headless), or set JAVA_HOME"
    )


def test_a_wrong_java_home_is_named(tools: Path) -> None:
    said = failure(tools, JAVA_HOME="/nowhere/java")
    assert said.startswith("Spark did not start: JAVA_HOME=/nowhere/java has no bin/java; install")


@pytest.mark.parametrize(("version", "shown"), [("11.0.2", "11"), ("1.8.0_292", "8"), ("25", "25")])
def test_a_java_on_which_spark_does_not_run_is_named(
    tools: Path, tmp_path: Path, version: str, shown: str
) -> None:
    home = with_java(tmp_path, version)
    said = failure(tools, JAVA_HOME=str(home))
    assert f"{home}/bin/java is Java {shown}; install Java 17 or 21" in said
    assert said.endswith("set JAVA_HOME")


def test_with_a_fitting_java_the_reason_is_that_of_spark(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = with_java(tmp_path, "17.0.1")
    said = failure(tools, JAVA_HOME=str(home))
    assert said.endswith("sending its port number; the lines above have the reason")
    monkeypatch.setenv("JAVA_HOME", str(home))
    within = Py4JError("An error occurred while calling x.\n: java.lang.Unfit: no\n\tat y.z(Y:1)")
    assert why_not_started(within) == "java.lang.Unfit: no"
