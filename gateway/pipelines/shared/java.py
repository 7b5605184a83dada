"""The Java with which Spark starts, for the error of a Spark that did not start."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import Final

VERSIONS: Final = (17, 21)
"""The releases of Java on which Spark 4 runs."""

_INSTALL: Final = "install Java 17 or 21 (Debian: apt-get install default-jre-headless)"
_VERSION_S_MAX: Final = 30.0


def why_not_started(error: Exception) -> str:
    """Return in one line why Spark did not start, and what to do: Java is missing, or does not fit.

    Spark's own error is that of a launcher that ended, or of a call inside its JVM.
    """
    home = os.environ.get("JAVA_HOME", "")
    program = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if program is None:
        what = f"JAVA_HOME={home} has no bin/java" if home else "Java is missing"
        return f"{what}; {_INSTALL}, or set JAVA_HOME"
    version, cause = _version_of(program), _cause_of(error)
    said_by_launcher = "JAVA_GATEWAY_EXITED" in cause
    if version and version not in VERSIONS:
        fix = f"{program} is Java {version}; {_INSTALL}, and set JAVA_HOME"
        return fix if said_by_launcher else f"{cause}; {fix}"
    return f"{cause}; the lines above have the reason" if said_by_launcher else cause


def _version_of(program: str) -> int:
    """Return the major version that `java -version` prints; 0 if it prints none."""
    try:
        done = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=_VERSION_S_MAX
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(found[1]) if found else 0


def _cause_of(error: Exception) -> str:
    """Return the first line of the error; of a call inside the JVM, that of its exception."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [repr(error)]
    causes = [line.removeprefix(": ") for line in lines if line.startswith(": ")]
    return (causes or lines)[0].rstrip(".")
