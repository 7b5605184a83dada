"""The commands `gateway topic config ...`."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from gateway.admin import config_shapes
from gateway.admin.config_output import explained_text, key_values, show_change, show_settings
from gateway.admin.requests import ask, bootstrap_option
from ledger.command_line.output import Output, emit, output_option
from ledger.command_line.program import CommandGroup, option

config = CommandGroup("config", "Show, set, unset and explain the settings of a topic.")

_topic_argument = click.argument("name", metavar="TOPIC", help="Name of the topic.")
_keys_argument = click.argument(
    "keys", metavar="KEY...", nargs=-1, required=True, help="Settings to reset to their defaults."
)


@config.command("show")
@_topic_argument
@option("--all", "every", is_flag=True, help="Also show settings that have their defaults.")
@bootstrap_option
@output_option(config_shapes.SHOWN)
def _show(name: str, every: bool, bootstrap: str, output: Output) -> None:
    """Show the settings of a topic, with their origins."""
    from gateway.admin import configs

    rows = ask(
        bootstrap, output, lambda client: configs.describe(client, configs.topic(name), None)
    )
    show_settings(rows, every, output)


@config.command("set")
@_topic_argument
@click.argument(
    "pairs", metavar="KEY=VALUE...", nargs=-1, required=True, help="Settings and their new values."
)
@bootstrap_option
@output_option(config_shapes.CHANGED)
def _set(name: str, pairs: Sequence[str], bootstrap: str, output: Output) -> None:
    """Set settings of a topic, all of them or none."""
    values = key_values(pairs, output)
    from gateway.admin import configs

    resource = configs.topic(name)
    show_change(ask(bootstrap, output, lambda c: configs.change(c, resource, values)), output)


@config.command("unset")
@_topic_argument
@_keys_argument
@bootstrap_option
@output_option(config_shapes.CHANGED)
def _unset(name: str, keys: Sequence[str], bootstrap: str, output: Output) -> None:
    """Reset settings of a topic to their defaults, all of them or none."""
    from gateway.admin import configs

    resource, values = configs.topic(name), dict.fromkeys(keys)
    show_change(ask(bootstrap, output, lambda c: configs.change(c, resource, values)), output)


@config.command("explain")
@_topic_argument
@click.argument("key", metavar="KEY", help="Setting to explain.")
@bootstrap_option
@output_option(config_shapes.EXPLAINED)
def _explain(name: str, key: str, bootstrap: str, output: Output) -> None:
    """Explain a setting of a topic: value, origin, meaning, and what it does to which segments.

    The segments are those of the ledgers, if they are within reach from here; Apache Kafka does
    not show its own.
    """
    from gateway.admin.config_explain import explain_topic

    now_ms = time.time_ns() // 1_000_000
    found = ask(bootstrap, output, lambda client: explain_topic(client, name, key, now_ms))
    text = explained_text(found)
    if output.is_table and not found["segments"]:
        emit(text)
    else:
        output.show(found, before=f"{text}\n")
