"""Runs a job by its name with the words that follow the file, as `gateway job` does."""

from __future__ import annotations

import sys


def run(job: str) -> None:
    """Exits with the job's exit code."""
    from gateway.pipelines.commands import job_app

    job_app([job, *sys.argv[1:]], prog_name="gateway job")
