"""`gateway job packages`: what spark-submit must load for the jobs."""

from __future__ import annotations

import click

from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.session import packages as named_packages
from ledger.command_line.exit_codes import EXIT_FAILED
from ledger.command_line.output import Format, emit, fail
from ledger.command_line.program import Command


@click.command(cls=Command)
def packages() -> None:
    """Print the Maven packages that the jobs need, for `spark-submit --packages`.

    They fit the PySpark of this Python.
    """
    try:
        emit(",".join(named_packages()))
    except JobError as error:
        fail(EXIT_FAILED, str(error), error.code, Format.table)
