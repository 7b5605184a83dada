"""The admin commands of consumer groups: `gateway group ...`.

They ask gateways, but for `history` and `restore`, which read the log of commits from ZooKeeper and
the bookies. Exit codes and failures are those of `cli`. What moves offsets shows what it would do,
and does it with `--execute`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from gateway.admin.cli import DEFAULT_BOOTSTRAP, Bootstrap, Output, Yes, ask, usage
from gateway.admin.output import Format, as_json, as_table, emit, headings
from gateway.admin.storage_cli import DEFAULT_ZOOKEEPER, TlsDirectory, ZooKeeper, ask_storage

if TYPE_CHECKING:
    from gateway.admin.client import AdminClient
    from gateway.admin.group_history import Past
    from gateway.admin.group_seek import Scope, Step, Target
    from gateway.admin.topics import Row

_KAFKA_COLUMN_WIDTH = 15  # kafka-consumer-groups.sh makes no column narrower
_NEWEST = 100

T = TypeVar("T")

group_app = typer.Typer(
    help="See how far consumer groups have read, and move them.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _flag(name: str, text: str) -> typer.models.OptionInfo:
    return typer.Option(name, help=text)


Group = Annotated[str, typer.Argument(help="The group's id.")]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", "-t", help="topic or topic:0,3; may be given more than once."),
]
AllTopics = Annotated[bool, _flag("--all-topics", "All topics that the group has committed.")]
ToEarliest = Annotated[bool, _flag("--to-earliest", "To the first record that is kept.")]
ToLatest = Annotated[bool, _flag("--to-latest", "To the end.")]
ToCurrent = Annotated[bool, _flag("--to-current", "To where the group is: with -o json, a copy.")]
ToOffset = Annotated[int | None, _flag("--to-offset", "To this offset.")]
ToDatetime = Annotated[
    str | None, _flag("--to-datetime", "To the first record since 2026-05-01T12:00:00 (UTC).")
]
ByDuration = Annotated[
    str | None, _flag("--by-duration", "To the first record since so long ago: PT2H, 90s, 7d.")
]
ShiftBy = Annotated[int | None, _flag("--shift-by", "By so many offsets; back if negative.")]
FromFile = Annotated[
    Path | None, _flag("--from-file", "To the offsets of lines topic,partition,offset; - is stdin.")
]
Undo = Annotated[bool, _flag("--undo", "To where the group was before the last seek.")]
Execute = Annotated[bool, _flag("--execute", "Do it; without it, only show what would be done.")]
DryRun = Annotated[bool, _flag("--dry-run", "Only show what would be done.")]
History = Annotated[
    str | None,
    typer.Option(
        "--zookeeper", "-z", help="With --undo: by the history, although consumers committed since."
    ),
]


@group_app.command("list")
def group_list(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: Output = Format.table) -> None:
    """List consumer groups."""
    from gateway.admin.groups import list_groups

    rows = ask(bootstrap, output, list_groups)
    if output is Format.json:
        emit(as_json(rows))
    else:
        emit(as_table(headings("group", "state", "type", "protocol"), rows))


@group_app.command("describe")
def group_describe(
    name: Group,
    members: Annotated[bool, typer.Option("--members", help="Who is in it.")] = False,
    state: Annotated[bool, typer.Option("--state", help="What it is doing.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Format.table,
) -> None:
    """Show how far a group has read, or its members, or its state."""
    if members and state:
        usage("--members and --state: take one of them", output)

    from gateway.admin import groups

    async def work(client: AdminClient) -> tuple[str | None, dict[str, str], list[Row]]:
        group = await groups.find_group(client, name)
        remark = groups.remark(group)
        if members:
            return remark, groups.MEMBER_COLUMNS, groups.member_rows(group)
        if state:
            return remark, groups.STATE_COLUMNS, [await groups.state_row(client, group)]
        return remark, groups.OFFSET_COLUMNS, await groups.offset_rows(client, group)

    remark, columns, rows = ask(bootstrap, output, work)
    if remark is not None:
        print(remark, file=sys.stderr)
    if output is Format.json:
        emit(as_json(rows))
    elif rows:
        emit("\n" + as_table(columns, rows, _KAFKA_COLUMN_WIDTH))


@group_app.command("delete")
def group_delete(
    name: Group,
    yes: Yes = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Format.table,
) -> None:
    """Delete a group that has no members, and all its offsets."""
    if yes == dry_run:
        words = "take one of them" if yes else "add --yes to do it, or --dry-run to see them"
        usage(f"this deletes group {name} and all its offsets for ever; {words}", output)

    from gateway.admin import group_seek, groups

    async def work(client: AdminClient) -> list[Row]:
        if not await group_seek.require_idle(client, name):
            raise groups.no_such_group(name)
        steps = await group_seek.plan_restore(client, name, group_seek.Scope(), {})
        if yes:
            await groups.delete_group(client, name)
        return group_seek.rows(name, steps)

    rows = ask(bootstrap, output, work)
    if output is Format.json:
        emit(as_json({"deleted" if yes else "would_delete": name, "offsets": rows}))
    elif yes:
        emit(f"Deleted group {name}.")
    else:
        emit("\n" + as_table(group_seek.COLUMNS, rows, _KAFKA_COLUMN_WIDTH))
        _say_dry("--yes")


@group_app.command("seek")
def group_seek(
    name: Group,
    topic: Topics = None,
    all_topics: AllTopics = False,
    to_earliest: ToEarliest = False,
    to_latest: ToLatest = False,
    to_current: ToCurrent = False,
    to_offset: ToOffset = None,
    to_datetime: ToDatetime = None,
    by_duration: ByDuration = None,
    shift_by: ShiftBy = None,
    from_file: FromFile = None,
    undo: Undo = False,
    execute: Execute = False,
    dry_run: DryRun = False,
    zookeeper: History = None,
    tls: TlsDirectory = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Format.table,
) -> None:
    """Move a group that has no members to other offsets, or back with --undo."""
    words: dict[str, object] = {
        "--to-earliest": to_earliest,
        "--to-latest": to_latest,
        "--to-current": to_current,
        "--to-offset": to_offset,
        "--to-datetime": to_datetime,
        "--by-duration": by_duration,
        "--shift-by": shift_by,
        "--from-file": from_file,
        "--undo": undo,
    }
    given = {word: value for word, value in words.items() if value not in (None, False)}
    if len(given) != 1:
        usage(f"say where to, by one of {', '.join(words)}", output)
    if execute and dry_run:
        usage("--execute and --dry-run: take one of them", output)
    scope = _scope(topic, output)
    ((word, value),) = given.items()
    if word not in ("--from-file", "--undo") and bool(topic) == all_topics:
        usage("say which partitions, by --topic or by --all-topics", output)
    move = _Move(name, scope, execute, bootstrap, output)
    if word == "--undo":
        past = None if zookeeper is None else _past(name, zookeeper, tls, output)
        move.undo(past)
    elif isinstance(value, Path):
        move.to_offsets(_file_offsets(value, name, output))
    else:
        move.to_target(_target(word, value, output))


@group_app.command("history")
def group_history(
    name: Group,
    topic: Topics = None,
    since: Annotated[
        str | None, _flag("--since", "A time, or how long ago: 2026-05-01T12:00:00, 2h.")
    ] = None,
    newest: Annotated[
        int, typer.Option("--newest", "-n", help="So many at most; 0: all.", min=0)
    ] = _NEWEST,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
    tls: TlsDirectory = None,
    output: Output = Format.table,
) -> None:
    """Show what a group committed, and when; the last commit may show a minute later."""
    scope = _scope(topic, output)
    since_ms = 0 if since is None else _moment("--since", since, output)
    past = _past(name, zookeeper, tls, output)

    from gateway.admin import group_history as history

    rows = history.rows(past, scope, since_ms, newest)
    if output is Format.json:
        emit(as_json(rows))
    else:
        emit(as_table(history.COLUMNS, rows))


@group_app.command("restore")
def group_restore(
    name: Group,
    at: Annotated[str, _flag("--at", "A time, or how long ago: 2026-05-01T12:00:00, 2h.")],
    topic: Topics = None,
    execute: Execute = False,
    dry_run: DryRun = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
    tls: TlsDirectory = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Format.table,
) -> None:
    """Move a group that has no members to where it was at a time."""
    if execute and dry_run:
        usage("--execute and --dry-run: take one of them", output)
    scope = _scope(topic, output)
    at_ms = _moment("--at", at, output)
    past = _past(name, zookeeper, tls, output)
    _Move(name, scope, execute, bootstrap, output).restore(past, at_ms)


class _Move:
    """One move of a group: planned, perhaps made, and shown."""

    def __init__(
        self, group: str, scope: Scope, execute: bool, bootstrap: str, output: Format
    ) -> None:
        self._group = group
        self._scope = scope
        self._execute = execute
        self._bootstrap = bootstrap
        self._output = output

    def to_target(self, target: Target) -> None:
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
        from gateway.admin.group_seek import COLUMNS, rows

        shown = rows(self._group, steps)
        if self._output is Format.json:
            emit(as_json({"group": self._group, "executed": self._execute, "offsets": shown}))
            return
        emit("\n" + as_table(COLUMNS, shown, _KAFKA_COLUMN_WIDTH))
        for row in shown:
            if row["remark"]:
                print(f"{row['topic']}-{row['partition']}: {row['remark']}", file=sys.stderr)
        if not self._execute:
            _say_dry("--execute")


def _say_dry(word: str) -> None:
    print(f"Nothing was changed; add {word} to do it.", file=sys.stderr)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _read(option: str, read: Callable[[], T], output: Format) -> T:
    """What the user wrote; a word that cannot be read ends the command."""
    try:
        return read()
    except ValueError as error:
        usage(f"{option}: {error}", output)


def _scope(topics: list[str] | None, output: Format) -> Scope:
    from gateway.admin.group_seek import Scope
    from gateway.admin.group_words import read_topics

    return Scope(_read("--topic", lambda: read_topics(topics or ()), output))


def _moment(option: str, word: str, output: Format) -> int:
    from gateway.admin.group_words import read_moment

    return _read(option, lambda: read_moment(word, _now_ms()), output)


def _target(word: str, value: object, output: Format) -> Target:
    from gateway.admin.group_seek import Target
    from gateway.admin.group_words import read_duration, read_time

    if word == "--to-datetime":
        return Target("time", _read(word, lambda: read_time(str(value)), output))
    if word == "--by-duration":
        ago_ms = _read(word, lambda: read_duration(str(value)), output)
        return Target("time", max(_now_ms() - ago_ms, 0))
    kind = {"--to-offset": "offset", "--shift-by": "shift"}.get(word)
    if kind is not None:
        assert isinstance(value, int)
        return Target(kind, value)
    return Target(word.removeprefix("--to-"))


def _file_offsets(path: Path, group: str, output: Format) -> dict[tuple[str, int], int]:
    from gateway.admin.group_words import read_offsets

    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        usage(f"--from-file {path}: {getattr(error, 'strerror', None) or error}", output)
    return _read(f"--from-file {path}", lambda: read_offsets(text, group), output)


def _past(group: str, zookeeper: str, tls: Path | None, output: Format) -> Past:
    from gateway.admin.group_history import read_past

    return ask_storage(zookeeper, tls, output, lambda storage: read_past(storage, group))
