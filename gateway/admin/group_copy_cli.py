"""The command `gateway group copy`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from gateway.admin.client_settings import ClientSettings
from gateway.admin.confirm import confirm_protected, yes_on_option
from gateway.admin.group_cli import (
    dry_run_option,
    name_argument,
    print_dry,
    print_remarks,
    topic_option,
)
from gateway.admin.requests import ask, bootstrap_option
from ledger.command_line.output import Output, output_option, usage
from ledger.command_line.program import Command, option
from ledger.command_line.shape import Shape, text, truth, whole

if TYPE_CHECKING:
    from gateway.admin.client import AdminClient, Place
    from gateway.admin.group_copy import Carried, Unread
    from gateway.admin.group_seek import Scope

COPIED: Final = Shape(
    fields=(
        text("group", "Id of the group."),
        truth("executed", "Whether the offsets were committed; else they are only a plan."),
    ),
    rows="offsets",
    columns=(
        text("group", "Id of the group."),
        text("topic", "Name of the topic."),
        whole("partition", "Number of the partition."),
        whole("source_offset", "Committed offset at the source."),
        whole("unread", "Committed records from there to the end of the source."),
        whole(
            "current_offset",
            "Committed offset at the copy before; null if there is none.",
            nullable=True,
        ),
        whole("new_offset", "Offset behind which the copy has the same unread records."),
        text(
            "remark",
            "Which records the source does not have any more; null if it has all.",
            nullable=True,
            wide=True,
        ),
    ),
)
_FIX: Final = "name the servers that the group comes from with --from host:port"


@click.command("copy", cls=Command)
@name_argument
@option(
    "--from",
    "source",
    metavar="SERVERS",
    required=True,
    help="Servers that the group comes from: host:port,host:port.",
)
@topic_option
@option("--execute", is_flag=True, help="Commit the offsets; without it, only show them.")
@dry_run_option
@yes_on_option
@bootstrap_option
@output_option(COPIED)
def copy(
    name: str,
    source: str,
    topics: Sequence[str],
    execute: bool,
    dry_run: bool,
    bootstrap: str,
    output: Output,
) -> None:
    """Carry the committed offsets of a group over to a copy of its topics.

    The group has no members, here and at --from. Each topic was copied with all its records, to
    the same partitions. The unread records of both sides are read and compared: if they differ,
    nothing is committed.
    """
    if execute and dry_run:
        usage("--execute and --dry-run: pass only one of them", output)
    scope = _scope(topics, source, output)
    if execute:
        confirm_protected(f"replaces offsets of group {name}", output)

    from gateway.admin import group_copy

    cluster = ask(bootstrap, output, lambda client: group_copy.look_at_copy(client, name))

    async def read(client: AdminClient) -> dict[Place, Unread]:
        return await group_copy.read_source(client, name, scope, cluster)

    unread = ask(source, output, read, _FIX)

    async def work(client: AdminClient) -> list[Carried]:
        carried = await group_copy.plan_copy(client, name, unread)
        if execute:
            await group_copy.execute_copy(client, name, carried)
        return carried

    rows = group_copy.rows(name, ask(bootstrap, output, work))
    output.show({"group": name, "executed": execute, "offsets": rows})
    print_remarks(rows, output)
    if not execute:
        print_dry("--execute", output)


def _scope(topics: Sequence[str], source: str, output: Output) -> Scope:
    """Return the partitions to copy. Ends the command if they or `--from` cannot be parsed."""
    from gateway.admin.group_seek import Scope
    from gateway.admin.notation import read_topics

    try:
        ClientSettings(source).servers  # noqa: B018 (read for its errors)
    except ValueError as error:
        usage(f"--from: {error}", output)
    try:
        return Scope(read_topics(topics))
    except ValueError as error:
        usage(f"--topic: {error}", output)
