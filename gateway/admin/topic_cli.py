"""The commands `gateway topic ...`. Their modules are imported when a command runs."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from gateway.admin import topic_shapes
from gateway.admin.confirm import confirm
from gateway.admin.requests import (
    ask,
    bootstrap_option,
    fail_incomplete,
    fail_request,
    yes_option,
)
from ledger.command_line import units
from ledger.command_line.exit_codes import EXIT_FAILED
from ledger.command_line.output import Output, fail, note, output_option, usage
from ledger.command_line.program import CommandGroup, Deferred, Value, option

if TYPE_CHECKING:
    from gateway.admin.topic_create import Creation

_SORTED_BY = ("name", "size", "rate")
_INT16_MAX = 2**15 - 1
_DEFAULT = -1  # stands for the server's default on the wire, but not on the command line
_OFFSET = re.compile(r"\d+", re.ASCII)


def _count(last: int) -> Value[int]:
    """Return the type of a count up to `last` that has a default at the server."""
    parse = units.whole(1, last)

    def parse_count(value: object) -> int:
        try:
            return parse(value)
        except ValueError as fault:
            raise ValueError(f"{fault}; leave the option out for the server's default") from None

    return Value("count", parse_count)


topic = CommandGroup(
    "topic",
    "Create, change and delete topics; write and read records; list and accept losses; show "
    "compaction.",
    {
        "config": Deferred(
            "gateway.admin.topic_config_cli",
            "config",
            "Show, set, unset and explain the settings of a topic.",
        ),
    },
)

_name_argument = click.argument("name", metavar="TOPIC", help="Name of the topic.")
_config_option = option(
    "--config",
    "-c",
    metavar="KEY=VALUE",
    multiple=True,
    help="Setting of the topic, such as retention.ms=3600000; repeat for several.",
)


@topic.command("create")
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True, help="Names of the topics.")
@option(
    "--partitions",
    "-p",
    type=_count(units.INT32_MAX),
    default=_DEFAULT,
    shown="the server's default",
    help="Number of partitions.",
)
@option(
    "--replication-factor",
    "-r",
    type=_count(_INT16_MAX),
    default=_DEFAULT,
    shown="the server's default",
    help="Copies of each record.",
)
@_config_option
@option("--if-not-exists", is_flag=True, help="Leave a topic that exists as it is, and succeed.")
@bootstrap_option
@output_option(topic_shapes.CREATED, topic_shapes.CREATED_SEVERAL)
def _create(
    names: Sequence[str],
    partitions: int,
    replication_factor: int,
    config: Sequence[str],
    if_not_exists: bool,
    bootstrap: str,
    output: Output,
) -> None:
    """Create topics.

    Several topics are created in one request, each independent of the others. The result is then a
    row for each topic.
    """
    configs = _pairs(config, output)
    names = list(dict.fromkeys(names))
    several = len(names) > 1
    output = output.of(topic_shapes.CREATED_SEVERAL if several else topic_shapes.CREATED)

    from gateway.admin.topic_create import create

    done = ask(
        bootstrap,
        output,
        lambda client: create(
            client, names, partitions, replication_factor, configs, if_not_exists=if_not_exists
        ),
    )
    for remark in done.remarks:
        _print_remark(remark)
    if not several:
        _show_created(done, output)
        return
    output.show(done.rows)
    failed = f"{len(done.failures)} of {len(names)} topics were not created"
    fail_incomplete(failed, done.failures, output)


def _show_created(done: Creation, output: Output) -> None:
    """Show the outcome of one topic: its description, or one line with the error."""
    from gateway.admin.topic_create import EXISTED

    for failure in done.failures:
        fail_request(failure, output)
    (row,) = done.rows
    found = {each.key: row[each.key] for each in topic_shapes.CREATED.fields}
    was = "exists already" if row["outcome"] == EXISTED else ""
    name = row["name"]
    output.done(found, f"Topic {name} {was}." if was else f"Created topic {name}.")


def _print_remark(remark: str | None) -> None:
    """Print what the server has to say about settings that it accepted."""
    if remark:
        note(f"warning: {remark}")


def _pairs(config: Sequence[str], output: Output) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for pair in config:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            usage(f"--config {pair!r} is not key=value, for example retention.ms=3600000", output)
        pairs[key] = value
    return pairs


@topic.command("list")
@click.argument(
    "globs",
    metavar="[GLOB]...",
    nargs=-1,
    help="Names of topics; *, ? and [a-z] stand for characters, as in a shell.",
)
@option("--internal", is_flag=True, help="Also list Kafka's own topics.")
@option(
    "--sort",
    type=Value("key", units.one_of(*_SORTED_BY)),
    default="name",
    help="Order of the rows: name, size or rate; the largest first. size and rate add columns.",
)
@option("--long", "-l", is_flag=True, help="Add size, records and rate, whatever the order.")
@bootstrap_option
@output_option(topic_shapes.LISTED, topic_shapes.MEASURED)
def _list(
    globs: Sequence[str], internal: bool, sort: str, long: bool, bootstrap: str, output: Output
) -> None:
    """List topics.

    The size counts all copies on disk. The rate counts records whose timestamps are of the last
    minute.
    """
    from gateway.admin.topic_list import list_matching, list_measured

    if not long and sort == "name" and not _chooses_figures(output):
        output.show(ask(bootstrap, output, lambda client: list_matching(client, globs, internal)))
        return
    now_ms = _now_ms()
    rows = ask(
        bootstrap, output, lambda client: list_measured(client, globs, internal, sort, now_ms)
    )
    output.show(rows, shape=topic_shapes.MEASURED)


def _chooses_figures(output: Output) -> bool:
    """Return whether `--columns` names a column that only measured topics have."""
    return not {each.key for each in topic_shapes.LISTED.columns}.issuperset(output.chosen)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@topic.command("describe")
@_name_argument
@bootstrap_option
@output_option(topic_shapes.DESCRIBED)
def _describe(name: str, bootstrap: str, output: Output) -> None:
    """Show the partitions, offsets, sizes, rates, segments and settings of a topic."""
    from gateway.admin.topic_list import describe_measured

    now_ms = _now_ms()
    found = ask(bootstrap, output, lambda client: describe_measured(client, name, now_ms))
    configs = ",".join(f"{key}={value}" for key, value in found["configs"].items())
    missing = any(row["log_end_offset"] is None for row in found["partitions"])
    hint = f"Where offsets are missing: `gateway topic gaps {name}` shows lost records, if any."
    output.show(
        found,
        before=f"Topic: {name}  Id: {found['topic_id'] or '-'}  "
        f"{topic_shapes.totals_text(found)}  Configs: {configs or '-'}\n",
        after=f"\n{hint}" if missing else "",
    )


@topic.command("add-partitions")
@_name_argument
@click.argument(
    "count",
    metavar="COUNT",
    type=Value("count", units.whole(1, units.INT32_MAX)),
    help="Number of partitions to add to those that it has; a topic never loses partitions.",
)
@bootstrap_option
@output_option(topic_shapes.GROWN)
def _add_partitions(name: str, count: int, bootstrap: str, output: Output) -> None:
    """Add COUNT partitions to a topic, and print how many it has then.

    `topic alter --partitions TOTAL` sets the number of all partitions instead. Records with a key
    may go to another partition from then on.
    """
    from gateway.admin.topic_create import grow

    done = ask(bootstrap, output, lambda client: grow(client, name, count))
    unit = "partition" if count == 1 else "partitions"
    output.done(done, f"Added {count} {unit} to topic {name}: it has {done['partitions']} now.")


@topic.command("alter")
@_name_argument
@_config_option
@option(
    "--default",
    "-d",
    "defaults",
    metavar="KEY",
    multiple=True,
    help="Setting to reset to its default; repeat for several.",
)
@option(
    "--partitions",
    "-p",
    type=Value("count", units.whole(1, units.INT32_MAX)),
    help="New number of partitions; a topic never loses partitions.",
)
@bootstrap_option
@output_option(topic_shapes.ALTERED)
def _alter(
    name: str,
    config: Sequence[str],
    defaults: Sequence[str],
    partitions: int | None,
    bootstrap: str,
    output: Output,
) -> None:
    """Change some settings of a topic, or add partitions; the rest stays."""
    configs = _pairs(config, output)
    changes_configs = bool(configs or defaults)
    if not changes_configs and partitions is None:
        usage("nothing to change: pass -c retention.ms=3600000 or --partitions 6", output)
    if changes_configs and partitions is not None:
        usage("settings and --partitions: pass only one of them, one may fail alone", output)

    from gateway.admin.topics import add_partitions, alter_topic

    if partitions is not None:
        ask(bootstrap, output, lambda client: add_partitions(client, name, partitions))
    else:
        _print_remark(
            ask(bootstrap, output, lambda client: alter_topic(client, name, configs, defaults))
        )
    output.done({"altered": name}, f"Altered topic {name}.")


@topic.command("truncate")
@_name_argument
@option(
    "--to",
    metavar="OFFSET",
    required=True,
    help="First offset to keep; end deletes all records.",
)
@option(
    "--partition",
    "-p",
    "partitions",
    type=Value("partition", units.whole(0, units.INT32_MAX)),
    multiple=True,
    help="Truncate only this partition; repeat for several.",
)
@yes_option
@bootstrap_option
@output_option(topic_shapes.TRUNCATED)
def _truncate(
    name: str, to: str, partitions: Sequence[int], yes: bool, bootstrap: str, output: Output
) -> None:
    """Delete the records of a topic below an offset.

    All partitions are checked first: if one cannot be truncated, none is.
    """
    from gateway.admin.topics import LATEST, truncate_topic

    if to != "end" and not (_OFFSET.fullmatch(to) and int(to) <= units.INT64_MAX):
        usage(f"--to {to!r}: must be an offset, or end", output)
    confirm(yes, f"permanently deletes records of topic {name}", name, output)
    offset = LATEST if to == "end" else int(to)
    rows: list[dict[str, Any]] = ask(
        bootstrap, output, lambda client: truncate_topic(client, name, partitions, offset)
    )
    failed = [row for row in rows if row["error"] is not None]
    output.show(rows)
    if failed:
        codes = ", ".join(sorted({row["error"] for row in failed}))
        message = f"{len(failed)} of {len(rows)} partitions were not truncated: {codes}; remove "
        message += "the cause, then run the command again"
        fail(EXIT_FAILED, message, "NOT_TRUNCATED", output)


@topic.command("delete")
@_name_argument
@yes_option
@bootstrap_option
@output_option(topic_shapes.DELETED)
def _delete(name: str, yes: bool, bootstrap: str, output: Output) -> None:
    """Delete a topic and all its data."""
    confirm(yes, f"permanently deletes topic {name} and all its data", name, output)

    from gateway.admin.topics import delete_topic

    ask(bootstrap, output, lambda client: delete_topic(client, name))
    output.done({"deleted": name}, f"Deleted topic {name}.")
