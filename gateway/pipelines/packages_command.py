"""`gateway job packages`: what spark-submit must load for the jobs."""

from __future__ import annotations

import click

from gateway.pipelines.shared.errors import JobError
from gateway.pipelines.shared.session import packages as named_packages
from ledger.command_line.exit_codes import EXIT_FAILED
from ledger.command_line.output import Output, emit, fail, output_option
from ledger.command_line.program import Command
from ledger.command_line.shape import Shape, text

PACKAGES = Shape((text("package", "A Maven package: group:artifact:version."),))


@click.command(cls=Command)
@output_option(PACKAGES)
def packages(output: Output) -> None:
    """Print the Maven packages that the jobs need, for `spark-submit --packages`.

    They fit the PySpark of this Python.
    """
    try:
        found = named_packages()
    except JobError as error:
        fail(EXIT_FAILED, str(error), error.code, output)
    if output.framed:
        emit(",".join(found))
    else:
        output.show([{"package": each} for each in found])
