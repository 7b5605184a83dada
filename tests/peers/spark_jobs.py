"""The commands of a site as processes of their own, and jobs that each start a Spark.

Spark writes event files and a log, in which a test looks for secrets.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.peers import spark

JOB_S_MAX = 240.0
_DRIVER_JAVA = "spark.driver.extraJavaOptions"


class JobSite:
    """A directory for jobs. `secrets` must be in no output of a command."""

    def __init__(
        self,
        directory: Path,
        secrets: Sequence[str],
        variables: Mapping[str, str] | None = None,
        java: str = "",
    ) -> None:
        """Create it. Commands get `variables`, and the JVM of jobs the options `java`."""
        self.directory, self.secrets = directory, secrets
        self.events = directory / "events"
        self.events.mkdir()
        self._environment = {**os.environ, **spark.environment(directory), **(variables or {})}
        self._java = java

    def run(self, *words: str, stdin: str = "", code: int = 0) -> str:
        """Run a command that ends with `code`. Returns stdout, or stderr if it is not 0."""
        done = subprocess.run(
            [sys.executable, "-m", "gateway", *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=JOB_S_MAX,
            env=self._environment,
        )
        assert done.returncode == code, f"{words[:3]}: {done.returncode}\n{done.stderr[-3000:]}"
        shown = done.stdout + done.stderr
        assert not [each for each in self.secrets if each in shown]
        return done.stdout if code == 0 else done.stderr

    def job(self, *words: str, code: int = 0) -> Any:
        """Run a job on a new Spark. Returns its result, or its error if `code` is not 0."""
        settings = spark.settings(self.directory)
        settings |= {
            _DRIVER_JAVA: f"{settings[_DRIVER_JAVA]} {self._java}".strip(),
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": f"file://{self.events}",
        }
        conf = [f"--conf={key}={value}" for key, value in settings.items()]
        told = self.run("job", *words, *conf, "--master", "local[2]", "-o", "json", code=code)
        return json.loads(told if code == 0 else told.strip().splitlines()[-1])

    def shown(self) -> str:
        """Return all that Spark wrote about its queries: event files and its log."""
        files = [each for each in self.events.rglob("*") if each.is_file()]
        assert files
        return "".join(
            each.read_text(errors="replace") for each in [*files, *self.directory.glob("*.log")]
        )
