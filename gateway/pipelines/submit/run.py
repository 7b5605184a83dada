"""Runs a job with the words that follow its file, as `gateway job` does."""

from __future__ import annotations

import sys


def run(name: str) -> None:
    """Run the job of this name. Exits with its exit code."""
    from gateway.pipelines.commands import job

    job(args=[name, *sys.argv[1:]], prog_name="gateway job")
