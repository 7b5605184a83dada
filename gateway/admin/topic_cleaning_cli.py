"""The command `gateway topic cleaning`."""

from __future__ import annotations

import click

from gateway.admin import topic_cleaning_shapes
from gateway.admin.requests import ask, bootstrap_option, fail_incomplete
from gateway.admin.topic_loss_cli import topic
from ledger.command_line.output import Output, emit, output_option

__all__ = ["topic"]

_NONE_CLEANS = (
    "No gateway reports on this topic yet. Gateways find a new topic after log.cleaner.backoff.ms "
    "(15 s)."
)


@topic.command("cleaning")
@click.argument("name", metavar="TOPIC", help="Name of the topic.")
@bootstrap_option
@output_option(topic_cleaning_shapes.LISTED)
def _cleaning(name: str, bootstrap: str, output: Output) -> None:
    """Show how far the log compaction of a topic is, and its last error."""
    from gateway.admin.cleaning import topic_cleaning

    found = ask(bootstrap, output, lambda client: topic_cleaning(client, name))
    if found.rows or not output.framed:
        output.show(found.rows)
    elif not found.compacted:
        emit(f"The cleanup.policy of topic {name} is not compact.")
    elif not found.missing:
        emit(_NONE_CLEANS)
    fail_incomplete("some partitions are not shown", found.missing, output)
