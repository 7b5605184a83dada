"""`gateway job NAME ...`: the jobs on Spark. Loads without Spark; a job that runs needs it."""

from __future__ import annotations

import typer

from gateway.pipelines.archive_command import archive
from gateway.pipelines.audit_command import audit
from gateway.pipelines.replay_command import replay

job_app = typer.Typer(
    help="Jobs on Spark: archive, replay and audit topics.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for _job in (archive, replay, audit):
    job_app.command()(_job)
