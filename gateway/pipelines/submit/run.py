"""The start of a job by spark-submit: the arguments after the file are those of `gateway job`."""

from __future__ import annotations

import sys


def run(name: str) -> None:
    """Run the job of this name and exit with its exit code."""
    from gateway.pipelines.commands import job

    job(args=[name, *sys.argv[1:]], prog_name="gateway job")
