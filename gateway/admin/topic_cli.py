"""The commands `gateway topic ...`. Their modules are imported when a command runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import click

from gateway.admin.confirm import confirm
from gateway.admin.requests import ask, bootstrap_option, yes_option
from ledger.command_line import units
from ledger.command_line.exit_codes import EXIT_FAILED
from ledger.command_line.output import (
    Format,
    as_json,
    as_table,
    emit,
    fail,
    headings,
    note,
    output_option,
    usage,
)
from ledger.command_line.program import CommandGroup, Value, option

_INT16_MAX = 2**15 - 1
_DEFAULT = -1  # a count of -1 on the wire stands for the server's default
_OFFSET = re.compile(r"\d+", re.ASCII)

topic = CommandGroup(
    "topic",
    "Create, change and delete topics; write and read records; list and accept losses; show "
    "compaction.",
)

_name_argument = click.argument("name", metavar="NAME", help="Name of the topic.")
_config_option = option(
    "--config",
    "-c",
    metavar="KEY=VALUE",
    multiple=True,
    help="Setting of the topic, such as retention.ms=3600000; repeat for several.",
)


@topic.command("create")
@_name_argument
@option(
    "--partitions",
    "-p",
    type=Value("count", units.integer),
    default=_DEFAULT,
    shown="the server's default",
    help="Number of partitions.",
)
@option(
    "--replication-factor",
    "-r",
    type=Value("count", units.integer),
    default=_DEFAULT,
    shown="the server's default",
    help="Copies of each record.",
)
@_config_option
@bootstrap_option
@output_option
def _create(
    name: str,
    partitions: int,
    replication_factor: int,
    config: Sequence[str],
    bootstrap: str,
    output: Format,
) -> None:
    """Create a topic."""
    configs = _pairs(config, output)
    _check_count("--partitions", partitions, units.INT32_MAX, output)
    _check_count("--replication-factor", replication_factor, _INT16_MAX, output)

    from gateway.admin.topics import create_topic

    made = ask(
        bootstrap,
        output,
        lambda client: create_topic(client, name, partitions, replication_factor, configs),
    )
    _print_remark(made.pop("remark"))
    emit(as_json(made) if output is Format.json else f"Created topic {name}.")


def _print_remark(remark: str | None) -> None:
    """Print what the server has to say about settings that it accepted."""
    if remark:
        note(f"warning: {remark}")


def _pairs(config: Sequence[str], output: Format) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for pair in config:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            usage(f"--config {pair!r} is not key=value, for example retention.ms=3600000", output)
        pairs[key] = value
    return pairs


def _check_count(name: str, value: int, value_max: int, output: Format) -> None:
    if not (value == _DEFAULT or 0 < value <= value_max):
        usage(f"{name} {value}: must be between 1 and {value_max}", output)


@topic.command("list")
@option("--internal", is_flag=True, help="Also list Kafka's own topics.")
@bootstrap_option
@output_option
def _list(internal: bool, bootstrap: str, output: Format) -> None:
    """List topics."""
    from gateway.admin.topics import list_topics

    rows = ask(bootstrap, output, lambda client: list_topics(client, internal=internal))
    if output is Format.json:
        emit(as_json(rows))
    else:
        emit(as_table(headings("name", "partitions", "internal"), rows))


@topic.command("describe")
@_name_argument
@bootstrap_option
@output_option
def _describe(name: str, bootstrap: str, output: Format) -> None:
    """Show the partitions, offsets and settings of a topic."""
    from gateway.admin.topics import describe_topic

    found = ask(bootstrap, output, lambda client: describe_topic(client, name))
    if output is Format.json:
        emit(as_json(found))
        return
    configs = ",".join(f"{key}={value}" for key, value in found["configs"].items())
    emit(f"Topic: {name}  Id: {found['topic_id'] or '-'}  Configs: {configs or '-'}\n")
    columns = headings("partition", "leader", "leader_epoch", "log_start_offset", "log_end_offset")
    emit(as_table(columns, found["partitions"]))
    if any(row["log_end_offset"] is None for row in found["partitions"]):
        emit(
            f"\nWhere offsets are missing: `gateway topic gaps {name}` shows lost records, if any."
        )


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
    type=Value("count", units.integer),
    help="New number of partitions; a topic never loses partitions.",
)
@bootstrap_option
@output_option
def _alter(
    name: str,
    config: Sequence[str],
    defaults: Sequence[str],
    partitions: int | None,
    bootstrap: str,
    output: Format,
) -> None:
    """Change some settings of a topic, or add partitions; the rest stays."""
    configs = _pairs(config, output)
    changes_configs = bool(configs or defaults)
    if not changes_configs and partitions is None:
        usage("nothing to change: pass -c retention.ms=3600000 or --partitions 6", output)
    if changes_configs and partitions is not None:
        usage("settings and --partitions: pass only one of them, one may fail alone", output)
    if partitions is not None and not 0 < partitions <= units.INT32_MAX:
        usage(f"--partitions {partitions}: must be between 1 and {units.INT32_MAX}", output)

    from gateway.admin.topics import add_partitions, alter_topic

    if partitions is not None:
        ask(bootstrap, output, lambda client: add_partitions(client, name, partitions))
    else:
        _print_remark(
            ask(bootstrap, output, lambda client: alter_topic(client, name, configs, defaults))
        )
    emit(as_json({"altered": name}) if output is Format.json else f"Altered topic {name}.")


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
@output_option
def _truncate(
    name: str, to: str, partitions: Sequence[int], yes: bool, bootstrap: str, output: Format
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
    if output is Format.json:
        emit(as_json(rows))
    else:
        columns = headings("partition", "log_start_offset", *(["error"] if failed else []))
        emit(as_table(columns, rows))
    if failed:
        codes = ", ".join(sorted({row["error"] for row in failed}))
        message = f"{len(failed)} of {len(rows)} partitions were not truncated: {codes}; remove "
        message += "the cause, then run the command again"
        fail(EXIT_FAILED, message, "NOT_TRUNCATED", output)


@topic.command("delete")
@_name_argument
@yes_option
@bootstrap_option
@output_option
def _delete(name: str, yes: bool, bootstrap: str, output: Format) -> None:
    """Delete a topic and all its data."""
    confirm(yes, f"permanently deletes topic {name} and all its data", name, output)

    from gateway.admin.topics import delete_topic

    ask(bootstrap, output, lambda client: delete_topic(client, name))
    emit(as_json({"deleted": name}) if output is Format.json else f"Deleted topic {name}.")
