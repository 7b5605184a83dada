"""The commands `gateway group ...`.

They ask gateways, except `history`, `restore` and `seek --undo` with `--zookeeper`: these read the
log of commits from ZooKeeper and the bookies. A command that moves offsets only shows the new ones
unless it has `--execute`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gateway.admin import group_shapes
from gateway.admin.confirm import confirm
from gateway.admin.requests import (
    ask,
    ask_storage,
    bootstrap_option,
    metadata_at,
    storage_option,
    tls_option,
    yes_option,
    zookeeper_option,
)
from ledger.command_line import units
from ledger.command_line.output import Output, note, output_option, usage
from ledger.command_line.program import CommandGroup, Deferred, Flags, Value, option

if TYPE_CHECKING:
    from gateway.admin.client import AdminClient
    from gateway.admin.group_history import Past
    from gateway.admin.group_seek import Scope, Step
    from gateway.admin.notation import SeekTarget
    from gateway.admin.topics import Row

_KAFKA_COLUMN_WIDTH = 15  # kafka-consumer-groups.sh makes no column narrower
_NEWEST = 100
_TIME = "a time such as 2026-05-01T12:00:00 (UTC unless it has a zone), or how long ago, such as 2h"

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

group = CommandGroup(
    "group",
    "List, describe, delete and move consumer groups.",
    {
        "lag": Deferred(
            "gateway.admin.group_lag_cli",
            "lag",
            "Show how far groups are behind, in records and in seconds.",
        ),
        "copy": Deferred(
            "gateway.admin.group_copy_cli",
            "copy",
            "Carry the committed offsets of a group over to a copy of its topics.",
        ),
    },
)

name_argument = click.argument("name", metavar="GROUP", help="Id of the group.")
topic_option = option(
    "--topic",
    "-t",
    "topics",
    metavar="TOPIC",
    multiple=True,
    help="Topic, or topic:0,3 for some of its partitions; repeat for several.",
)
_execute_option = option(
    "--execute", is_flag=True, help="Move the group; without it, only show the new offsets."
)
dry_run_option = option(
    "--dry-run", is_flag=True, help="Only show what would be done, and change nothing."
)


@group.command("list")
@bootstrap_option
@output_option(group_shapes.LISTED)
def _list(bootstrap: str, output: Output) -> None:
    """List consumer groups."""
    from gateway.admin.groups import list_groups

    output.show(ask(bootstrap, output, list_groups))


@group.command("describe")
@name_argument
@option("--members", is_flag=True, help="Show the members instead of the offsets.")
@option("--state", is_flag=True, help="Show the state instead of the offsets.")
@bootstrap_option
@output_option(group_shapes.OFFSETS, group_shapes.MEMBERS, group_shapes.STATE)
def _describe(name: str, members: bool, state: bool, bootstrap: str, output: Output) -> None:
    """Show the committed offsets and the lag of a group, or its members, or its state."""
    if members and state:
        usage("--members and --state: pass only one of them", output)
    shape = group_shapes.STATE if state else group_shapes.OFFSETS
    output = output.of(group_shapes.MEMBERS if members else shape)

    from gateway.admin import groups

    async def work(client: AdminClient) -> tuple[str | None, list[Row]]:
        found = await groups.find_group(client, name)
        remark = groups.remark(found)
        if members:
            return remark, groups.member_rows(found)
        if state:
            return remark, [await groups.state_row(client, found)]
        return remark, await groups.offset_rows(client, found)

    remark, rows = ask(bootstrap, output, work)
    if remark is not None:
        note(remark)
    if rows or not output.is_table:
        _show_as_kafka(rows, output)


@group.command("delete")
@name_argument
@yes_option
@dry_run_option
@bootstrap_option
@output_option(group_shapes.DELETED, group_shapes.WOULD_DELETE)
def _delete(name: str, yes: bool, dry_run: bool, bootstrap: str, output: Output) -> None:
    """Delete a group that has no members, and all its offsets."""
    if yes and dry_run:
        usage("--yes and --dry-run: pass only one of them", output)
    if dry_run:
        output = output.of(group_shapes.WOULD_DELETE)
    else:
        action = f"permanently deletes group {name} and all its offsets"
        fix = "add --yes to delete, or --dry-run to list the offsets"
        confirm(yes, action, name, output, fix)

    from gateway.admin import group_seek, groups

    async def work(client: AdminClient) -> list[Row]:
        if not await group_seek.require_idle(client, name):
            raise groups.no_such_group(name)
        steps = await group_seek.plan_restore(client, name, group_seek.Scope(), {})
        if not dry_run:
            await groups.delete_group(client, name)
        return group_seek.rows(name, steps)

    rows = ask(bootstrap, output, work)
    if dry_run:
        _show_as_kafka({"would_delete": name, "offsets": rows}, output)
        print_dry("--yes", output)
    else:
        output.done({"deleted": name, "offsets": rows}, f"Deleted group {name}.")


def _old_targets(function: F) -> F:
    """Add the hidden options that `--to` replaces."""
    names = ("--to-earliest", "--to-latest", "--to-current")
    for name in names:
        function = option(name, is_flag=True, hidden=True)(function)
    for name in ("--to-datetime", "--by-duration"):
        function = option(name, hidden=True)(function)
    for name in ("--to-offset", "--shift-by"):
        function = option(
            name, type=Value("offset", units.whole(-units.INT64_MAX, units.INT64_MAX)), hidden=True
        )(function)
    return function


@group.command("seek")
@name_argument
@topic_option
@option("--all-topics", is_flag=True, help="All topics for which the group has committed offsets.")
@option(
    "--to",
    metavar="WHERE",
    multiple=True,
    help="New position: earliest, latest or current; an offset, such as 42; offsets forward or "
    "back from the committed one, such as +10 or -10; the first record since a time, such as "
    "2026-05-01T12:00:00 (UTC unless it has a zone); or the first record since a duration ago, "
    "such as 1h, -1h or P1D.",
)
@option(
    "--from-file",
    metavar="FILE",
    help="Move to the offsets in this file, in lines topic,partition,offset; - reads stdin.",
)
@option("--undo", is_flag=True, help="Move back to the offsets before the last seek.")
@_old_targets
@_execute_option
@dry_run_option
@zookeeper_option(
    "With --undo: find the last seek in the history of the group, even if consumers have committed "
    "since. "
)
@tls_option
@bootstrap_option
@output_option(group_shapes.MOVED)
def _seek(name: str, output: Output, **values: Any) -> None:
    """Move a group that has no members to other offsets, or back with --undo.

    Pass one of --to, --from-file and --undo, and with --to also --topic or --all-topics.
    """
    flags = Flags(**values)
    targets = _targets(flags)
    if len(targets) + (flags.from_file is not None) + flags.undo != 1:
        usage("pass one of --to, --from-file and --undo, and only one position", output)
    if flags.execute and flags.dry_run:
        usage("--execute and --dry-run: pass only one of them", output)
    scope = _scope(flags.topics, output)
    if targets and bool(flags.topics) == flags.all_topics:
        usage("name the partitions by --topic or by --all-topics", output)
    move = _Move(name, scope, flags.execute, flags.bootstrap, output)
    if flags.undo:
        zookeeper, tls = flags.zookeeper, flags.tls
        move.undo(None if zookeeper is None else _past(name, zookeeper, tls, output))
    elif flags.from_file is not None:
        move.to_offsets(_file_offsets(flags.from_file, name, output))
    else:
        ((option_name, value),) = targets
        move.to_target(_target(option_name, value, output))


@group.command("history")
@name_argument
@topic_option
@option("--since", metavar="TIME", help=f"Show only later commits: {_TIME}.")
@option(
    "--newest",
    "-n",
    type=Value("count", units.whole(0, 2**31 - 1)),
    default=_NEWEST,
    help="Show the newest commits only, this many; 0: all.",
)
@storage_option
@tls_option
@output_option(group_shapes.HISTORY)
def _history(
    name: str,
    topics: Sequence[str],
    since: str | None,
    newest: int,
    zookeeper: str | None,
    bootstrap: str,
    tls: Path | None,
    output: Output,
) -> None:
    """Show the commits of a group with their times.

    The newest commit may appear up to a minute later.
    """
    scope = _scope(topics, output)
    since_ms = 0 if since is None else _moment("--since", since, output)
    past = _past(name, metadata_at(zookeeper, bootstrap, output), tls, output)

    from gateway.admin import group_history as history

    output.show(history.rows(past, scope, since_ms, newest))


@group.command("restore")
@name_argument
@option("--at", metavar="TIME", required=True, help=f"Time to go back to: {_TIME}.")
@topic_option
@_execute_option
@dry_run_option
@storage_option
@tls_option
@output_option(group_shapes.MOVED)
def _restore(name: str, output: Output, **values: Any) -> None:
    """Move a group that has no members to the offsets that it had at a time."""
    flags = Flags(**values)
    if flags.execute and flags.dry_run:
        usage("--execute and --dry-run: pass only one of them", output)
    scope = _scope(flags.topics, output)
    at_ms = _moment("--at", flags.at, output)
    place = metadata_at(flags.zookeeper, flags.bootstrap, output)
    past = _past(name, place, flags.tls, output)
    _Move(name, scope, flags.execute, flags.bootstrap, output).restore(past, at_ms)


class _Move:
    """One move of a group: planned, perhaps executed, and shown."""

    def __init__(
        self, group: str, scope: Scope, execute: bool, bootstrap: str, output: Output
    ) -> None:
        self._group = group
        self._scope = scope
        self._execute = execute  # if False, the plan is shown and nothing is changed
        self._bootstrap = bootstrap
        self._output = output

    def to_target(self, target: SeekTarget) -> None:
        from gateway.admin.group_seek import execute, plan

        async def work(client: AdminClient) -> list[Step]:
            steps = await plan(client, self._group, self._scope, target)
            if self._execute:
                await execute(client, self._group, steps, _now_ms())
            return steps

        self._show(ask(self._bootstrap, self._output, work))

    def to_offsets(self, offsets: dict[tuple[str, int], int]) -> None:
        from gateway.admin.group_seek import execute, plan_offsets, within

        wanted = {place: at for place, at in offsets.items() if within(self._scope, place)}

        async def work(client: AdminClient) -> list[Step]:
            steps = await plan_offsets(client, self._group, wanted)
            if self._execute:
                await execute(client, self._group, steps, _now_ms())
            return steps

        self._show(ask(self._bootstrap, self._output, work))

    def undo(self, past: Past | None) -> None:
        from gateway.admin.group_seek import plan_undo, undo

        seeks = None
        if past is not None:
            from gateway.admin.group_history import last_seeks

            seeks = last_seeks(past, self._scope)

        async def work(client: AdminClient) -> list[Step]:
            steps = await plan_undo(client, self._group, self._scope, seeks)
            if self._execute:
                await undo(client, self._group, steps)
            return steps

        self._show(ask(self._bootstrap, self._output, work))

    def restore(self, past: Past, at_ms: int) -> None:
        from gateway.admin.group_history import positions_then
        from gateway.admin.group_seek import execute, plan_restore

        async def work(client: AdminClient) -> list[Step]:
            then = positions_then(past, at_ms)
            steps = await plan_restore(client, self._group, self._scope, then)
            if self._execute:
                await execute(client, self._group, steps, _now_ms())
            return steps

        self._show(ask(self._bootstrap, self._output, work))

    def _show(self, steps: list[Step]) -> None:
        from gateway.admin.group_seek import rows

        shown = rows(self._group, steps)
        value = {"group": self._group, "executed": self._execute, "offsets": shown}
        _show_as_kafka(value, self._output)
        print_remarks(shown, self._output)
        if not self._execute:
            print_dry("--execute", self._output)


def _show_as_kafka(value: Any, output: Output) -> None:
    """Print the value; a table has the empty line and the wide columns of Kafka's tools."""
    output.show(value, width_min=_KAFKA_COLUMN_WIDTH, blank_first=True)


def print_remarks(shown: Sequence[Row], output: Output) -> None:
    """Print the remarks on partitions beneath a table; other forms have them in the rows."""
    for row in shown if output.is_table else ():
        if row["remark"]:
            note(f"{row['topic']}-{row['partition']}: {row['remark']}")


def print_dry(name: str, output: Output) -> None:
    """Print that this was a plan, unless the result has a key that reports it."""
    if not output.is_json:
        note(f"Nothing was changed; add {name} to do it.")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _read(name: str, read: Callable[[], T], output: Output) -> T:
    """Return the parsed value of an option; end the command if it cannot be parsed."""
    try:
        return read()
    except ValueError as error:
        usage(f"{name}: {error}", output)


def _scope(topics: Sequence[str], output: Output) -> Scope:
    from gateway.admin.group_seek import Scope
    from gateway.admin.notation import read_topics

    return Scope(_read("--topic", lambda: read_topics(topics), output))


def _moment(name: str, word: str, output: Output) -> int:
    from gateway.admin.notation import read_moment

    return _read(name, lambda: read_moment(word, _now_ms()), output)


def _targets(flags: Flags) -> list[tuple[str, Any]]:
    """Return each position that was given, with the option that it was given by."""
    old: dict[str, Any] = {
        "--to-earliest": flags.to_earliest,
        "--to-latest": flags.to_latest,
        "--to-current": flags.to_current,
        "--to-offset": flags.to_offset,
        "--to-datetime": flags.to_datetime,
        "--by-duration": flags.by_duration,
        "--shift-by": flags.shift_by,
    }
    # By identity: 0 is an offset and a shift, and equals False.
    absent = (None, False)
    given = [(name, value) for name, value in old.items() if not any(value is a for a in absent)]
    return [("--to", value) for value in flags.to] + given


def _target(name: str, value: Any, output: Output) -> SeekTarget:
    from gateway.admin.notation import SeekTarget, read_duration, read_target, read_time

    now_ms = _now_ms()
    if name == "--to":
        return _read(name, lambda: read_target(value, now_ms), output)
    if name == "--to-datetime":
        return SeekTarget("time", _read(name, lambda: read_time(value), output))
    if name == "--by-duration":
        ago_ms = _read(name, lambda: read_duration(value), output)
        return SeekTarget("time", max(now_ms - ago_ms, 0))
    if name in ("--to-offset", "--shift-by"):
        return SeekTarget("offset" if name == "--to-offset" else "shift", value)
    return SeekTarget(name.removeprefix("--to-"))


def _file_offsets(path: str, group: str, output: Output) -> dict[tuple[str, int], int]:
    from gateway.admin.notation import read_offsets

    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        usage(f"--from-file {path}: {getattr(error, 'strerror', None) or error}", output)
    return _read(f"--from-file {path}", lambda: read_offsets(text, group), output)


def _past(group: str, zookeeper: str, tls: Path | None, output: Output) -> Past:
    from gateway.admin.group_history import read_past

    return ask_storage(zookeeper, tls, output, lambda storage: read_past(storage, group))
