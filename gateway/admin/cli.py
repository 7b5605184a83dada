"""The admin commands: `gateway topic ...` here; `group_cli` and `storage_cli` have more.

Exit codes: 0 done, 1 the server said no, 2 usage, 69 no server reached, 77 not allowed, 130 Ctrl-C.
A failure is one line on stderr, JSON with `-o json`. What a command needs is imported when it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeVar

import typer

from gateway.admin.output import Format, as_json, as_table, emit, headings

if TYPE_CHECKING:
    from gateway.admin.client import AdminClient

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 69  # sysexits.h: EX_UNAVAILABLE
EXIT_REFUSED = 77  # sysexits.h: EX_NOPERM
EXIT_INTERRUPTED = 130

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"

T = TypeVar("T")

topic_app = typer.Typer(
    help="Create, list, describe, alter, truncate and delete topics.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap", "-b", envvar="GATEWAY_BOOTSTRAP", help="Servers to ask: host:port,..."
    ),
]
Output = Annotated[Format, typer.Option("--output", "-o", help="table or json.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; there is no way back.")]
Configs = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", help="key=value; may be given more than once."),
]


def fail(exit_code: int, message: str, code: str, output: Format) -> NoReturn:
    """One line on stderr, then the end."""
    if output is Format.json:
        import json

        line = json.dumps({"error": message, "code": code}, ensure_ascii=False)
    else:
        line = f"gateway: {' '.join(message.split())}"
    print(line, file=sys.stderr)
    raise typer.Exit(exit_code)


def usage(message: str, output: Format) -> NoReturn:
    fail(EXIT_USAGE, message, "USAGE", output)


def ask(bootstrap: str, output: Format, work: Callable[[AdminClient], Awaitable[T]]) -> T:
    """What `work` brought back from the server."""
    import asyncio

    from gateway.admin.client import AdminClient, AdminError, Unreachable, parse_bootstrap

    try:
        parse_bootstrap(bootstrap)
    except ValueError as error:
        usage(f"--bootstrap: {error}", output)

    async def main() -> T:
        async with AdminClient(bootstrap) as client:
            return await work(client)

    try:
        return asyncio.run(main())
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except Unreachable as error:
        fix = "start one with `gateway dev`, or name it with --bootstrap host:port"
        fail(EXIT_UNREACHABLE, f"{error}; {fix}", "UNREACHABLE", output)
    except AdminError as error:
        refused = error.code.endswith("_AUTHORIZATION_FAILED")
        fail(EXIT_REFUSED if refused else EXIT_FAILED, str(error), error.code, output)


@topic_app.command("create")
def topic_create(
    name: Annotated[str, typer.Argument(help="The topic's name.")],
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", help="-1: the server's default.")
    ] = -1,
    replication_factor: Annotated[
        int, typer.Option("--replication-factor", "-r", help="-1: the server's default.")
    ] = -1,
    config: Configs = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Format.table,
) -> None:
    """Create a topic."""
    configs = _pairs(config, output)
    _check_range("--partitions", partitions, 2**31 - 1, output)
    _check_range("--replication-factor", replication_factor, 2**15 - 1, output)

    from gateway.admin.topics import create_topic

    made = ask(
        bootstrap,
        output,
        lambda client: create_topic(client, name, partitions, replication_factor, configs),
    )
    if output is Format.json:
        emit(as_json(made))
    else:
        emit(f"Created topic {name}.")


def _pairs(config: list[str] | None, output: Format) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for pair in config or ():
        key, equals, value = pair.partition("=")
        if not equals or not key:
            usage(f"--config {pair!r} is not key=value, for example retention.ms=3600000", output)
        pairs[key] = value
    return pairs


def _check_range(option: str, value: int, value_max: int, output: Format) -> None:
    if not (value == -1 or 0 < value <= value_max):
        usage(f"{option} {value}: must be between 1 and {value_max}", output)


@topic_app.command("list")
def topic_list(
    internal: Annotated[bool, typer.Option("--internal", help="Also Kafka's own topics.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Format.table,
) -> None:
    """List topics."""
    from gateway.admin.topics import list_topics

    rows = ask(bootstrap, output, lambda client: list_topics(client, internal=internal))
    if output is Format.json:
        emit(as_json(rows))
    else:
        emit(as_table(headings("name", "partitions", "internal"), rows))


@topic_app.command("describe")
def topic_describe(
    name: Annotated[str, typer.Argument(help="The topic's name.")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Format.table,
) -> None:
    """Show a topic's partitions, offsets and settings."""
    from gateway.admin.topics import describe_topic

    topic = ask(bootstrap, output, lambda client: describe_topic(client, name))
    if output is Format.json:
        emit(as_json(topic))
        return
    configs = ",".join(f"{key}={value}" for key, value in topic["configs"].items())
    emit(f"Topic: {name}  Id: {topic['topic_id'] or '-'}  Configs: {configs or '-'}\n")
    columns = headings("partition", "leader", "leader_epoch", "log_start_offset", "log_end_offset")
    emit(as_table(columns, topic["partitions"]))


@topic_app.command("alter")
def topic_alter(
    name: Annotated[str, typer.Argument(help="The topic's name.")],
    config: Configs = None,
    default: Annotated[
        list[str] | None,
        typer.Option("--default", "-d", help="A key that gets its default again."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Format.table,
) -> None:
    """Change some settings of a topic; the others stay."""
    configs = _pairs(config, output)
    if not configs and not default:
        usage("say what to change, for example -c retention.ms=3600000", output)

    from gateway.admin.topics import alter_topic

    ask(bootstrap, output, lambda client: alter_topic(client, name, configs, default or []))
    if output is Format.json:
        emit(as_json({"altered": name}))
    else:
        emit(f"Altered topic {name}.")


@topic_app.command("truncate")
def topic_truncate(
    name: Annotated[str, typer.Argument(help="The topic's name.")],
    to: Annotated[str, typer.Option("--to", help="The first offset that is kept, or end.")],
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", help="Only this one; may be given more than once."),
    ] = None,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Format.table,
) -> None:
    """Delete a topic's records below an offset."""
    from gateway.admin.topics import LATEST, truncate_topic

    if to != "end" and not to.isdecimal():
        usage(f"--to {to!r}: must be an offset, or end", output)
    if not yes:
        usage(f"this deletes records of topic {name} for ever; add --yes to do it", output)
    offset = LATEST if to == "end" else int(to)
    rows = ask(
        bootstrap, output, lambda client: truncate_topic(client, name, partition or [], offset)
    )
    if output is Format.json:
        emit(as_json(rows))
    else:
        emit(as_table(headings("partition", "log_start_offset"), rows))
    if any(row["log_start_offset"] is None for row in rows):
        fail(EXIT_FAILED, "not all partitions could be truncated", "NOT_TRUNCATED", output)


@topic_app.command("delete")
def topic_delete(
    name: Annotated[str, typer.Argument(help="The topic's name.")],
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Format.table,
) -> None:
    """Delete a topic and all its data."""
    if not yes:
        usage(f"this deletes topic {name} and all its data for ever; add --yes to do it", output)

    from gateway.admin.topics import delete_topic

    ask(bootstrap, output, lambda client: delete_topic(client, name))
    if output is Format.json:
        emit(as_json({"deleted": name}))
    else:
        emit(f"Deleted topic {name}.")
